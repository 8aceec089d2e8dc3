"""What the data tools find and what they cost, beside OpenEvolve's own tools, in one run on one machine.

    python benchmarks/data.py harvest [--runs FOLDER…] [--programs 5000] [--checkpoints 50] [--alive 1000 5000]
    python benchmarks/data.py scale [--rows 20000 60000 217780]       label, clean and build; see benchmarks/scale.py

Recall: a search is run through the gateway by a mutator that also sends unusable replies. The gateway's journal is the
truth: every reply that can be applied became a child. Beside `eft harvest` stand OpenEvolve's trace and its extractor,
on the last checkpoint. `--runs`: recorded runs as well; their truth is the log (iterations that made a program) or,
where there is none, the union of all checkpoints.

Speed: a generated run of overlapping checkpoints with prompts and artifacts; `eft harvest` of the union, every reply
replayed, to Parquet, against OpenEvolve's extractor called on each checkpoint: in memory, and to JSON lines. Each in a
process of its own, by turns. How much the checkpoints overlap depends on the population (`--alive`): OpenEvolve's
default is 1000, and with as many as there are programs every checkpoint has all programs so far.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import scale  # beside this file

HERE = Path(__file__).resolve()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    harvest = commands.add_parser("harvest")
    harvest.add_argument("--runs", nargs="*", type=Path, default=[])
    harvest.add_argument("--programs", type=int, default=5000)
    harvest.add_argument("--checkpoints", type=int, default=50)
    harvest.add_argument("--alive", type=int, nargs="+", default=[1000, 5000], help="population_size of the run")
    harvest.add_argument("--iterations", type=int, default=120)
    harvest.add_argument("--rounds", type=int, default=2)
    harvest.add_argument("--what", nargs="+", default=["eft", "memory", "files"], help="what is timed; eft is needed")
    harvest.add_argument("--no-recall", action="store_true", help="speed only")
    harvest.add_argument("--keep", type=Path, help="folder of generated runs, made where they are missing, and kept")
    at_scale = commands.add_parser("scale")  # benchmarks/scale.py
    scale.add_arguments(at_scale)
    part = commands.add_parser("part")  # one measurement, in a process of its own
    part.add_argument("what", choices=["eft", "memory", "files"])
    part.add_argument("run", type=Path)
    part.add_argument("out", type=Path)
    options = parser.parse_args()
    if options.command == "scale":
        return print(scale.run(options))
    if options.command == "part":
        return measure_part(options.what, options.run, options.out)
    with tempfile.TemporaryDirectory() as temporary:
        if not options.no_recall:
            print(recall(Path(temporary), options.runs, options.iterations))
        for alive in options.alive:
            print(speed(Path(temporary), alive, options))


# ---------------------------------------------------------------------------------------------------------- recall


class Careless:
    """A mutator whose every fourth reply is of no use; the others come from `ast`."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def propose(self, messages: list[dict[str, str]], call: int) -> Any:
        from eft.mutators.reply import Reply

        if call % 4 == 3:
            useless = "I would rather not.", "<<<<<<< SEARCH\nno such line\n=======\nx\n>>>>>>> REPLACE"
            return Reply(useless[call % 8 // 4])
        return self.inner.propose(messages, call)


def search(folder: Path, iterations: int) -> tuple[Path, Path]:
    """One search through the gateway. Returns its folder and its journal."""
    from eft.mutators.ast import AstMutator
    from eft.mutators.gateway import Gateway, running
    from eft.search import executor
    from eft.search.spec import SearchSpec
    from eft.tasks import sandbox
    from eft.tasks.suite import load_suite

    sandbox.choose("auto" if shutil.which("bwrap") else "rlimits")
    task = load_suite("embedded").tasks("train")[0]
    spec = SearchSpec(task=str(task.folder), base_url="", out=str(folder / "s1"), name="s1", mutator="m", seed=1,
                      iterations=iterations, journal=str(folder / "journal" / "s1.jsonl"))  # fmt: skip
    source = {"m": lambda name: Careless(AstMutator(1, task=task))}
    with running(Gateway(folder / "journal", source, threads=1)) as gateway:
        (outcome,) = executor.run_all([spec.replace(base_url=gateway.url("s1", "m"))], 1, quiet=True)
    if outcome.result is None:
        sys.exit(f"the search failed: {outcome.error}")
    return folder / "s1", folder / "journal" / "s1.jsonl"


def applied(journal: Path) -> int:
    """How many replies of the journal can be applied to the program that their prompt shows."""
    from eft import edits, prompts
    from eft.mutators import journal as journals

    count = 0
    for record in journals.read(journal):
        if record["kind"] == "reply" and record["status"] == "ok":
            user = record["messages"][-1]["content"]
            parent = prompts.current_program(user)
            count += bool(edits.apply(parent or "", record["content"], kind=prompts.edit_kind(user) or "diff"))
    return count


def last_checkpoint(run: Path) -> Path:
    return max(run.rglob("checkpoint_*"), key=lambda p: int(p.name.rpartition("_")[2]))


def extractor(checkpoint: Path) -> str:
    """What OpenEvolve's extractor finds in one checkpoint: children, and how many with their prompt."""
    from openevolve.evolution_trace import extract_evolution_trace_from_checkpoint as extract

    try:
        found = extract(checkpoint)
        return f"{len(found)} ({sum(bool(t.prompt) for t in found)})"
    except AttributeError:
        without = extract(checkpoint, include_prompts=False)
        return f"fails (without prompts {len(without)})"


def recall(folder: Path, runs: list[Path], iterations: int) -> str:
    """The table of recall."""
    ours, journal = search(folder / "runs", iterations)
    lines = ["| search | children | `eft harvest` (with prompt) | OpenEvolve's trace | its extractor, last checkpoint "
             "(with prompt) |", "|---|---|---|---|---|"]  # fmt: skip
    for run, source in [(ours, [ours, journal]), *((r, [r]) for r in runs)]:
        out = folder / f"h-{run.name}"
        counts = harvested(source, out)
        log = counts["iterations"] - counts["failed_iterations"] if "failed_iterations" in counts else None
        truth = applied(journal) if run is ours else log or counts["transitions"]
        said = "journal" if run is ours else "log" if log else "union"
        lines_of = [sum(1 for _ in open(t, "rb")) for t in run.rglob("evolution_trace.jsonl")]
        lines.append(f"| {run.name} | {truth} ({said}) | {counts['transitions']} = {counts['transitions'] / truth:.1%} "
                     f"({counts['with_prompt']}) | {sum(lines_of) if lines_of else 'none'} | "
                     f"{extractor(last_checkpoint(run))} |")  # fmt: skip
        if run is ours:
            kept = f"{counts['replies']} replies in the journal of {ours.name}, all of them in replies.parquet"
    return "\n".join([*lines, "", kept, ""])


def harvested(runs: list[Path], out: Path) -> dict[str, Any]:
    """`eft harvest`, its report silenced. Returns the counts."""
    import contextlib
    import io

    from data_tools import harvest
    from eft import manifest

    with contextlib.redirect_stderr(io.StringIO()):
        harvest.run(harvest.Config(runs=[r.resolve() for r in runs], output=out))
    return manifest.read(out)["counts"]


# ----------------------------------------------------------------------------------------------------------- speed


def generate(folder: Path, programs: int, checkpoints: int, alive: int) -> int:
    """A run as OpenEvolve 0.4 leaves it: `programs` children over `checkpoints` checkpoints, each with the programs
    that were alive then: the newest ones and survivors, at most `alive`. Returns the bytes written."""
    rng = random.Random(0)
    body = [f"    v{n} = {n} * scale + offset  # a line of the program\n" for n in range(60)]
    codes = {"seed": "".join(body)}
    records: dict[str, str] = {}
    living, names, written = ["seed"], ["seed"], 0
    records["seed"] = json.dumps({"id": "seed", "code": codes["seed"], "language": "python", "parent_id": None,
                                  "generation": 0, "iteration_found": 0, "metrics": {"combined_score": 0.0},
                                  "timestamp": 0.0, "metadata": {"island": 0}, "prompts": None})  # fmt: skip
    each = programs // checkpoints
    for number in range(1, programs + 1):
        parent, name = rng.choice(living), str(uuid.UUID(int=rng.getrandbits(128)))
        line = rng.randrange(60)
        lines = codes[parent].split("\n")
        old, new = lines[line], f"    v{line} = {rng.random():.6f}"
        lines[line] = new
        codes[name] = "\n".join(lines)
        # As OpenEvolve's stock prompt has it: three of the best programs, and some for inspiration.
        others = [codes[rng.choice(living)] for _ in range(5)]
        shown = "\n\n".join(f"### Program {k} (Score: 0.5)\n```python\n{c}\n```" for k, c in enumerate(others))
        user = ("# Current Program Information\n- Fitness: 0.5000\n\n# Program Evolution History\n## Top Performing "
                f"Programs\n{shown}\n\n# Current Program\n```python\n{codes[parent]}\n```\n\n# Task\n"
                "Suggest improvements.\n\n<<<<<<< SEARCH\n# Original\n=======\n# New\n>>>>>>> REPLACE\n")  # fmt: skip
        reply = f"I change line {line}.\n<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE\n" + "It helps. " * 40
        records[name] = json.dumps({
            "id": name, "code": codes[name], "changes_description": None, "language": "python", "parent_id": parent,
            "generation": 1, "timestamp": float(number), "iteration_found": number,
            "metrics": {"combined_score": rng.random(), "time": rng.random()}, "complexity": 0.0, "diversity": 0.0,
            "metadata": {"changes": f"Change {line}", "parent_metrics": {"combined_score": 0.5}, "island": number % 5,
                         "token_usage": {"prompt_tokens": 900, "completion_tokens": 90, "model": "m"}},
            "prompts": {"diff_user": {"system": "You improve programs.", "user": user, "responses": [reply]}},
            "artifacts_json": json.dumps({"stderr": "warning: slow\n" * 60}), "artifact_dir": None, "embedding": None,
        })  # fmt: skip
        living.append(name)
        names.append(name)
        if len(living) > alive:
            living.pop(rng.randrange(len(living) - each))
        if number % each == 0:
            place = folder / "checkpoints" / f"checkpoint_{number}" / "programs"
            place.mkdir(parents=True)
            (place.parent / "metadata.json").write_text(json.dumps({"last_iteration": number, "islands": []}))
            for alive_one in living:
                written += (place / f"{alive_one}.json").write_text(records[alive_one])
    return written


def measure_part(what: str, run: Path, out: Path) -> None:
    """One measurement: seconds (wall, CPU), peak memory in MB, children found; printed as JSON."""
    started, cpu = time.perf_counter(), time.process_time()
    if what == "eft":
        found = harvested([run], out)["transitions"]
    else:
        import logging

        from openevolve.evolution_trace import extract_evolution_trace_from_checkpoint as extract

        logging.disable(logging.INFO)
        ids = set()
        out.mkdir(parents=True, exist_ok=True)
        for checkpoint in sorted((run / "checkpoints").iterdir(), key=lambda p: int(p.name.rpartition("_")[2])):
            # The generated run has no migrants, and its seed, which has no prompts, no parent: here it does not fail.
            to = str(out / f"{checkpoint.name}.jsonl") if what == "files" else None
            ids |= {t.child_id for t in extract(checkpoint, to)}
        found = len(ids)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"wall": time.perf_counter() - started, "cpu": time.process_time() - cpu, "peak": peak,
                      "found": found}))  # fmt: skip


def speed(folder: Path, alive: int, options: argparse.Namespace) -> str:
    """The table of speed for one population."""
    run = (options.keep or folder) / f"generated{alive}"
    if not run.exists():
        generate(run, options.programs, options.checkpoints, alive)
    sizes = [f.stat().st_size for f in run.rglob("programs/*.json")]
    results: dict[str, list[dict[str, float]]] = {what: [] for what in options.what}
    for number in range(options.rounds):
        for what in results:  # by turns, so that a noisy minute hits all
            out = folder / f"{what}{alive}-{number}"
            command = [sys.executable, str(HERE), "part", what, str(run), str(out)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            results[what].append(json.loads(done.stdout))
            shutil.rmtree(out)
    if not options.keep:
        shutil.rmtree(run)
    middle = {what: {k: statistics.median(r[k] for r in found) for k in found[0]} for what, found in results.items()}
    ours = middle["eft"]
    names = {"eft": "`eft harvest` of the union, replayed, to Parquet",
             "memory": "OpenEvolve's extractor on each checkpoint, in memory",
             "files": "OpenEvolve's extractor on each checkpoint, to JSON lines"}  # fmt: skip
    times = {k: f"{m['wall'] / ours['wall']:.1f}, {m['cpu'] / ours['cpu']:.1f}" for k, m in middle.items()}
    return "\n".join([
        f"population {alive}: {options.programs} programs, {options.checkpoints} checkpoints, {len(sizes)} files, "
        f"{sum(sizes) / 1e9:.1f} GB", "",
        "| | wall s | CPU s | times `eft harvest` (wall, CPU) | peak memory MB | children |",
        "|---|---|---|---|---|---|",
        *(f"| {names[k]} | {m['wall']:.1f} | {m['cpu']:.1f} | {times[k]} | {m['peak']:.0f} | {m['found']:.0f} |"
          for k, m in middle.items()), "",
    ])  # fmt: skip


if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent.parent))
    main()
