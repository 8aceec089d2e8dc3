"""Label, clean and build at the size of the Finch-Collection, beside the same filters written plainly with `datasets`.

    python benchmarks/data.py scale [--rows 20000 60000 217780] [--plain 20000] [--folder FOLDER]

The rows are made here: searches of 100 children each on 371 tasks; programs of about 170 lines, children that differ
from their parents by a few of them, prompts with the parent and three earlier programs as OpenEvolve words them; 8,600
tokens a row in the median. Tokens are counted with the embedded tokenizer (SmolLM2's).

For every size: seconds and rows/s of each stage, how much of two cores was used, peak memory of all its processes; then
a second `clean` after one changed option. Plainly: `datasets.map` and `filter` with two processes and batches, the same
functions of a row, the same output files.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
TOKENIZER = "embedded:smollm2-135m"
WORDS = ("step size best score cost item order path load bin weight rate limit queue node edge gain depth width value point "
         "radius center angle shift scale bound total count index swap move merge split pick drop keep sort rank").split()  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, nargs="+", default=[20_000, 60_000, 217_780])
    parser.add_argument("--plain", type=int, default=20_000, help="rows that are also done with datasets; 0: none")
    parser.add_argument("--folder", type=Path, default=Path("out/scale"), help="for the data: 40 GB at the full size")
    parser.add_argument("--workers", type=int, default=2)


def run(options: argparse.Namespace) -> str:
    """Measure all sizes; returns the tables."""
    lines = ["| rows | stage | seconds | rows/s | CPU ms a row | cores busy | peak memory MB |",
             "|---|---|---|---|---|---|---|"]
    ratios = []
    for rows in options.rows:
        folder = options.folder / str(rows)
        source = folder / "harvest"
        if not (source / "manifest.json").is_file():
            generate(source, rows)
        stages = [("label", source, []), ("clean", folder / "label", ["--tokenizer", TOKENIZER]),
                  ("clean, one option changed", folder / "label", ["--tokenizer", TOKENIZER, "--max-response-tokens", "900"]),
                  ("build", folder / "clean", [])]  # fmt: skip
        for old in ("label", "clean", "build", "plain", "plain_cache"):
            shutil.rmtree(folder / old, ignore_errors=True)  # facts that an earlier run left would make it look fast
        seconds = {}
        for name, given, more in stages:
            verb = name.split(",")[0]
            command = [sys.executable, "-m", "eft.cli", verb, str(given), "-o", str(folder / verb), "--force",
                       "--workers", str(options.workers), *more]  # fmt: skip
            wall, cpu, peak = measured(command, folder / f"{verb}.log")
            seconds[name] = wall
            lines.append(f"| {rows:,} | {name} | {wall:.0f} | {rows / wall:,.0f} | {1000 * cpu / rows:.1f} | {cpu / wall:.1f} | {peak:.0f} |")
            print(lines[-1], file=sys.stderr, flush=True)
        if rows == options.plain:
            command = [sys.executable, str(HERE), "plain", str(folder)]
            wall, cpu, peak = measured(command, folder / "plain.log")
            ours = seconds["clean"] + seconds["build"]
            lines.append(
                f"| {rows:,} | plainly: clean + build | {wall:.0f} | {rows / wall:,.0f} | {1000 * cpu / rows:.1f} | {cpu / wall:.1f} | {peak:.0f} |"
            )
            ratios.append(f"clean + build, {rows:,} rows: {wall / ours:.1f} times as fast as plainly")
            print(lines[-1], ratios[-1], file=sys.stderr, flush=True)
    return "\n".join([*lines, "", *ratios])


def measured(command: list[str], log: Path) -> tuple[float, float, float]:
    """(wall seconds, CPU seconds, peak memory in MB) of a command and its children. Memory (PSS) and time are
    sampled twice a second."""
    import psutil

    started = time.perf_counter()
    with open(log, "w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    peak, spent, done = [0.0], {}, threading.Event()

    def watch() -> None:
        parent = psutil.Process(process.pid)
        while not done.wait(0.5):
            total = 0
            try:
                for p in [parent, *parent.children(recursive=True)]:
                    try:
                        total += p.memory_full_info().pss
                        times = p.cpu_times()  # a worker's own: it is a grandchild, which nobody waits for
                        spent[p.pid] = times.user + times.system
                    except psutil.Error:
                        continue
            except psutil.Error:
                break
            peak[0] = max(peak[0], total / 1e6)

    watcher = threading.Thread(target=watch)
    watcher.start()
    code = process.wait()
    wall = time.perf_counter() - started
    done.set()
    watcher.join()
    if code:
        sys.exit(f"{' '.join(command)} failed, see {log}")
    return wall, sum(spent.values()), peak[0]


# --------------------------------------------------------------------------------------------------------- the rows


def line(draw: random.Random, names: list[str]) -> str:
    a, b, c = draw.choice(names), draw.choice(names), draw.choice(names)
    return draw.choice([
        f"    {a} = {b} * {draw.random():.3f} + {c}", f"    if {a} > {b} and {c} < {draw.randrange(100)}:\n        {a} -= {b}",
        f"    for {a} in range({draw.randrange(2, 50)}):\n        {b} = max({b}, {c})", f"    {a} = sorted({b}, key=lambda x: x * {c})",
        f"    # try another {a} where the {b} is large", f"    {a}.append(({b}, {c}))", f"    return {a} / ({b} + {c})\n",
        f"def {a}_{b}({b}, {c}, limit={draw.randrange(9)}):",
    ])  # fmt: skip


def generate(out: Path, rows: int) -> None:
    """A finished output of `eft harvest` with so many transitions."""
    from eft import manifest
    from eft.records import TABLE, Transition, schema, to_json, transition_id, writing

    started = time.time()
    with writing(out / TABLE, schema()) as table:
        number = 0
        while number < rows:
            run = number // 100
            task, domain = f"task_{run % 371}", f"domain_{run % 371 % 10}"
            draw = random.Random(run)
            names = [f"{w}_{run % 371}" if draw.random() < 0.3 else w for w in WORDS]
            base = random.Random(f"task {run % 371}")
            population = [[line(base, names) for _ in range(base.randrange(90, 150))]]
            scores = [0.5]
            for child in range(min(100, rows - number)):
                p = draw.randrange(max(0, len(population) - 12), len(population))
                parent, k = population[p], draw.randrange(len(population[p]) - 4)
                size = draw.choice([1, 1, 2, 4])
                new = [line(draw, names) for _ in range(size)]
                made = parent[:k] + new + parent[k + size :]
                code, before = "\n".join(parent), "\n".join(made)
                fate = draw.random()
                score = scores[p] + draw.gauss(-0.001, 0.02) if fate > 0.1 else scores[p] if fate > 0.05 else None
                metrics = (
                    {"combined_score": score, "time": 0.1}
                    if score is not None
                    else {"error": "raised", "combined_score": 0.0}
                )
                shown = [population[draw.randrange(len(population))] for _ in range(3)]
                user = (f"# Current Program Information\n- Fitness: {scores[p]:.4f}\n\n# Program Evolution History\n"
                        + "\n".join(f"### Program {i} (Score: {draw.random():.4f})\n```python\n{chr(10).join(s)}\n```"
                                    for i, s in enumerate(shown))
                        + f"\n# Current Program\n```python\n{code}\n```\n\n# Task\nSuggest improvements.\n<<<<<<< SEARCH\n"
                          "# Original code\n=======\n# New code\n>>>>>>> REPLACE\n")  # fmt: skip
                reply = (" ".join(draw.choices(WORDS, k=draw.randrange(60, 400))) + "\n<<<<<<< SEARCH\n"
                         + "\n".join(parent[k : k + size]) + "\n=======\n" + "\n".join(new) + "\n>>>>>>> REPLACE")  # fmt: skip
                ids = f"r{run}p{p}", f"r{run}c{child}"
                table.add(Transition(
                    id=transition_id(f"run_{run}", *ids), run=f"run_{run}", scaffold="openevolve", scaffold_release="0.4.1",
                    task=task, domain=domain, suite_role="", iteration=child, island=0, generation=1, parent_id=ids[0],
                    child_id=ids[1], language="python", parent_code=code, child_code=before,
                    parent_metrics=to_json({"combined_score": scores[p]}), child_metrics=to_json(metrics),
                    parent_artifacts="{}", child_artifacts=to_json({"stdout": f"best {score}"}),
                    prompt_system="You improve programs.", prompt_user=user, prompt_format="openevolve@0.4", response=reply,
                    reasoning="", edit_kind="diff", replay="match", model="made-up", prompt_tokens=-1, response_tokens=-1,
                    sources="[]"))  # fmt: skip
                if score is not None:
                    population.append(made)
                    scores.append(score)
                number += 1
    manifest.write(out, "harvest", {}, [], [out / TABLE], {"transitions": rows}, started)
    print(
        f"{rows} rows made in {time.time() - started:.0f} s, {(out / TABLE).stat().st_size / 1e9:.2f} GB",
        file=sys.stderr,
    )


# ----------------------------------------------------------------------------------------------------------- plainly


def plain(folder: Path) -> None:
    """What `eft clean` and `eft build` do, with `datasets` alone: one map for what is to be known of a row, filters,
    two sets in shuffled order."""
    import datasets

    from data_tools import facts, leaks
    from data_tools.redact import TEXTS, redact
    from eft import tokenizers
    from eft.records import TABLE, Transition

    datasets.disable_caching()
    rows = datasets.load_dataset("parquet", data_files=str(folder / "label" / TABLE), split="train",
                                 cache_dir=str(folder / "plain_cache"))  # fmt: skip
    tokenizer, guard = tokenizers.load(TOKENIZER), leaks.guard("standard")

    def known(batch: dict[str, list]) -> dict[str, list]:
        found = [Transition(**dict(zip(batch, values, strict=True))) for values in zip(*batch.values(), strict=True)]
        found = [row.replace(**{name: redact(getattr(row, name)) for name in TEXTS}) for row in found]
        prompts = [
            tokenizer.apply_chat_template([{"role": "user", "content": r.prompt_user}], tokenize=False) for r in found
        ]
        about = [facts.facts_of(row) for row in found]
        return {
            **{name: [getattr(row, name) for row in found] for name in TEXTS},
            "prompt_length": [len(x) for x in tokenizer(prompts)["input_ids"]],
            "response_length": [len(x) + 1 for x in tokenizer([r.response for r in found])["input_ids"]],
            "leak": [bool(guard.by_name(r.task) or guard.by_text(r) or guard.by_program(r, {})) for r in found],
            **{k: [a[k] for a in about] for k in ("parent", "child", "system_error", "syntax_error")},
        }  # fmt: skip

    rows = rows.map(known, batched=True, batch_size=200, num_proc=2)
    rows = rows.filter(
        lambda r: bool(r["label"]) and not r["leak"] and not r["system_error"] and not r["syntax_error"], num_proc=2
    )
    rows = rows.filter(
        lambda r: r["label"] not in ("breakage", "unrecoverable") and r["parent"] != r["child"], num_proc=2
    )
    rows = rows.filter(
        lambda r: r["response_length"] <= 16384 and r["prompt_length"] + r["response_length"] <= 32768, num_proc=2
    )
    seen: set[tuple] = set()

    def first(r: dict[str, Any]) -> bool:
        key = (r["task"], r["parent"], r["child"])
        return not (key in seen or seen.add(key))

    rows = rows.filter(first)
    rows.to_parquet(str(folder / "plain" / "transitions.parquet"))

    def example(r: dict[str, Any]) -> dict[str, Any]:
        return {"prompt": [{"role": "system", "content": r["prompt_system"]}, {"role": "user", "content": r["prompt_user"]}],
                "completion": [{"role": "assistant", "content": r["response"]}]}  # fmt: skip

    kept = ["id", "task", "domain", "run", "delta", "label", "reasoning", "prompt_format", "edit_kind", "model"]
    good = rows.filter(lambda r: r["label"] == "improved", num_proc=2)
    both = rows.filter(lambda r: r["label"] in ("improved", "regressed"), num_proc=2)
    for name, part in (("sft", good), ("kto", both)):
        part = part.shuffle(seed=0)
        part = part.map(example, num_proc=2, remove_columns=[c for c in part.column_names if c not in kept])
        part.to_parquet(str(folder / "plain" / f"{name}.parquet"))


if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent.parent))
    if sys.argv[1:2] == ["plain"]:
        plain(Path(sys.argv[2]))
    else:
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        add_arguments(parser)
        print(run(parser.parse_args()))
