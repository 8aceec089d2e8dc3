"""What training costs here, against plain TRL and LLaMA-Factory, on one machine and the same rows.

    python benchmarks/train.py env                          the environment of LLaMA-Factory (once, 3 minutes)
    python benchmarks/train.py prepare                      rows and model (once)
    python benchmarks/train.py run kto,sft [best,fp32,defaults] [--rounds 3] [--seconds 220]
    python benchmarks/train.py start [--rounds 3]           from the command to the first step
    python benchmarks/train.py table                        medians and ratios of all that was measured

Work and raw numbers are in out/benchmarks/train (another folder: EFT_BENCHMARK); raw.jsonl gets one line per run, so `run`
goes on where it stopped, and stops after `--seconds`. Rounds are interleaved: every side in every round. A run is one pass
over the same rows in a process of its own with one thread, and its time is CPU time, so that other work on the machine
disturbs little; tokens/s counts prompt and response tokens, never padding, over the time of all steps plus what is computed
before them (reference log-probabilities). Half of the rows are those that `eft collect` to `eft build` make of the embedded
tasks with the shipped recipe, half are of a recorded run, its texts cut to a sixth. The model is a Llama of 20M random weights
over a vocabulary of 8,192, whose head has the same share of all weights as that of Qwen3.5-4B (16 %); another one:
EFT_BENCHMARK_MODEL=FOLDER.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WORK = Path(os.environ.get("EFT_BENCHMARK", ROOT / "out" / "benchmarks" / "train"))
FACTORY = Path(os.environ.get("EFT_LLAMAFACTORY_VENV", ROOT / ".venv-scaffolds" / "llamafactory"))
RAW = WORK / "raw.jsonl"
ROWS, BATCH, MICRO, THREADS = 16, 4, 4, 1
RECORDED = ROOT.parent / "shared" / "data" / "openevolve_runs" / "circle_packing_v0_1"
CUT = 6  # texts of the recorded run are cut to one sixth: 5,000 tokens a row are too much for a CPU
MODEL = os.environ.get("EFT_BENCHMARK_MODEL", str(WORK / "model"))
# Every side's arguments by stage and mode. "best": the fastest of what its documentation offers for one CPU process, found
# with `tune` (candidates below); fp32: the same arithmetic for all; defaults: what a side does when it is told nothing. micro:
# rows a forward pass.
EFT: dict[str, Any] = {"precision": "bf16_weights", "activation_checkpointing": False, "micro": 1}
TRL: dict[str, Any] = {"bf16": True, "gradient_checkpointing": False, "max_length": None, "micro": 1}
LLAMA_FACTORY: dict[str, Any] = {"bf16": True, "disable_gradient_checkpointing": True, "flash_attn": "sdpa", "micro": 1}
PAIRS, FP32 = {"micro": 2}, {"bf16": False}
SETTINGS: dict[str, dict[str, dict[str, dict[str, Any]]]] = {
    "sft": {
        "best": {"eft": EFT, "trl": TRL, "llamafactory": LLAMA_FACTORY},
        "fp32": {"eft": EFT | {"precision": "fp32"}, "trl": TRL | FP32, "llamafactory": LLAMA_FACTORY | FP32},
        "defaults": {"eft": {}, "trl": {}, "llamafactory": {}},
    },
    "kto": {  # two rows at least, for all
        "best": {"eft": EFT | PAIRS, "trl": TRL | PAIRS, "llamafactory": LLAMA_FACTORY | PAIRS},
        "fp32": {
            "eft": EFT | PAIRS | {"precision": "fp32"},
            "trl": TRL | PAIRS | FP32,
            "llamafactory": LLAMA_FACTORY | PAIRS | FP32,
        },
        "defaults": {"eft": {}, "trl": {}, "llamafactory": {}},
    },
}
MICRO_OF = {"defaults": {"eft": {"sft": 1, "kto": 2}}}  # theirs is 8 rows, here a whole step
# What was tried for "best", by side: changes to its settings there (micro: rows a forward pass).
CANDIDATES: dict[str, list[dict[str, Any]]] = {
    "eft": [{}, {"attention": "eager"}, {"micro": 2}, {"micro": 4}, {"precision": "fp32"}, {"packing": True}],
    "trl": [{}, {"attention": "eager"}, {"micro": 2}, {"micro": 4}, FP32, {"precompute_ref_log_probs": True},
            {"dtype": "bfloat16"}, {"train_sampling_strategy": "group_by_length"}, {"packing": True, "max_length": 2048, "micro": 2}],
    "llamafactory": [{}, {"flash_attn": "disabled"}, {"micro": 2}, {"micro": 4}, FP32,
                     {"neat_packing": True, "cutoff_len": 2048, "micro": 2}],
}  # fmt: skip


def environment() -> Path:
    """The Python of LLaMA-Factory 0.9.5's own environment, which is made where it is not there."""
    python, mark = FACTORY / "bin" / "python", FACTORY / ".eft-stamp"
    if mark.exists() and python.exists():
        return python
    print(f"environment of LLaMA-Factory: {FACTORY}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", str(FACTORY)], check=True)
    torch = subprocess.run([sys.executable, "-c", "import torch; print(torch.__version__.split('+')[0])"], check=True,
                           capture_output=True, text=True).stdout.strip()  # fmt: skip
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "install", "llamafactory==0.9.5", f"torch=={torch}"], check=True)
    # Wheels of these two for another build of torch break the import of transformers. Text needs neither, but
    # LLaMA-Factory imports torchaudio by name.
    if subprocess.run([str(python), "-c", "import torchvision, torchaudio"], capture_output=True).returncode:
        subprocess.run([*pip, "uninstall", "-y", "torchvision", "torchaudio"], check=True)
        place = subprocess.run([str(python), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"], check=True,
                               capture_output=True, text=True).stdout.strip()  # fmt: skip
        (Path(place) / "torchaudio").mkdir(exist_ok=True)
        (Path(place) / "torchaudio" / "__init__.py").write_text('"""Placeholder: text needs no audio."""\n')
    subprocess.run([str(python), "-c", "from llamafactory.train.tuner import run_exp"], check=True)
    mark.write_text("llamafactory==0.9.5")
    return python


# ------------------------------------------------------------------------------------------------------ rows and model


def prepare() -> None:
    """Rows for every side in the form that it reads, and the model."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    WORK.mkdir(parents=True, exist_ok=True)
    made = WORK / "embedded"
    common = ["--config", str(ROOT / "recipes/smollm2_135m/data.yaml"), "--set", f"root={made}"]
    if not (made / "build" / "manifest.json").exists():
        for verb, sets in {"collect": ["seeds=2", "iterations=15"], "harvest": [], "label": [], "clean": ["max_tokens=8192"],
                           "build": ["max_rows_per_task=100"]}.items():  # fmt: skip
            more = [a for s in sets for a in ("--set", s)]
            subprocess.run([sys.executable, "-m", "eft.cli", verb, *common, *more], check=True, cwd=ROOT)
    built = [made / "build"]
    if RECORDED.is_dir():
        real = WORK / "recorded"
        if not (real / "build" / "manifest.json").exists():
            for verb, source in {"harvest": RECORDED, "label": real / "harvest", "clean": real / "label", "build": real / "clean"}.items():
                subprocess.run([sys.executable, "-m", "eft.cli", verb, str(source), "-o", str(real / verb)], check=True, cwd=ROOT)
        built.append(real / "build")
    else:
        print(f"the recorded run is not here ({RECORDED}): rows of the embedded tasks only", file=sys.stderr)
    texts: list[str] = []
    for stage in ("sft", "kto"):
        tables = [pq.read_table(b / stage / "train.parquet").to_pylist() for b in built]
        rows = [r for t in tables for r in t]
        for number, row in enumerate(rows[len(tables[0]):]):
            # As many tasks as rows: public sets have hundreds. One task for half of the rows would have KTO pair short rows
            # with long ones, since it wants partners of different tasks.
            row["task"] = f"{row['task']}/{number}"
            for message in [*row["prompt"], *row["completion"]]:
                message["content"] = message["content"][: len(message["content"]) // CUT]
        texts += [m["content"] for r in rows for m in [*r["prompt"], *r["completion"]]]
        # Rows at the quantiles of the lengths of every source (and, for KTO, label), taken in turn, as `eft build` does.
        parts = [[r for r in t if stage == "sft" or r["label"] is label] for label in (True, False) for t in tables]
        parts = parts[: len(tables)] if stage == "sft" else parts
        each = ROWS // len(parts)
        picked = []
        for part in parts:
            part.sort(key=lambda r: sum(len(m["content"]) for m in [*r["prompt"], *r["completion"]]))
            some = [part[(2 * k + 1) * len(part) // (2 * each)] for k in range(each)]
            random.Random(0).shuffle(some)
            picked.append(some)
        chosen = [r for rows in zip(*picked, strict=True) for r in rows]
        folder = WORK / "data" / stage
        folder.mkdir(parents=True, exist_ok=True)
        for split in ("train", "validation"):
            pq.write_table(pa.Table.from_pylist(chosen), folder / f"{split}.parquet")
        lines = [{"prompt": r["prompt"], "completion": r["completion"], "messages": [*r["prompt"], *r["completion"]],
                  "label": bool(r.get("label", True))} for r in chosen]  # fmt: skip
        (folder / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        columns = {"messages": "messages", **({"kto_tag": "label"} if stage == "kto" else {})}
        tags = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant", "system_tag": "system"}
        info = {"rows": {"file_name": "train.jsonl", "formatting": "sharegpt", "columns": columns, "tags": tags}}
        (folder / "dataset_info.json").write_text(json.dumps(info))
    if not (WORK / "model" / "config.json").exists():
        model(texts)
    print(json.dumps(lengths(), indent=1))


def model(texts: list[str]) -> None:
    """WORK/model: a Llama of 20M random weights, and a tokenizer trained on the rows' own text."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=8192, special_tokens=specials, initial_alphabet=alphabet))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token=specials[0], eos_token=specials[2])
    # ChatML without a line end after the last turn, so that all sides mean the same tokens by "response".
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' }}"
        "{% if not loop.last or add_generation_prompt %}{{ '\n' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=8192, hidden_size=384, intermediate_size=1024, num_hidden_layers=10, num_attention_heads=6,
                         num_key_value_heads=2, head_dim=64, max_position_embeddings=32768, tie_word_embeddings=True,
                         eos_token_id=2, pad_token_id=0, bos_token_id=None)  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(WORK / "model")
    tokenizer.save_pretrained(WORK / "model")


def lengths() -> dict[str, Any]:
    """Tokens of the rows: of both stages, all together and as quantiles, and the responses' share."""
    from eft import tokenizers

    tokenizer = tokenizers.load(MODEL)
    found = {}
    for stage in ("sft", "kto"):
        rows = [json.loads(x) for x in (WORK / "data" / stage / "train.jsonl").read_text().splitlines()]
        prompts = tokenizers.count(tokenizer, [tokenizers.prompt_text(tokenizer, r["prompt"]) for r in rows])
        replies = [n + 1 for n in tokenizers.count(tokenizer, [r["completion"][0]["content"] for r in rows])]
        whole = sorted(p + r for p, r in zip(prompts, replies, strict=True))
        found[stage] = {"rows": len(rows), "tokens": sum(whole), "responses": sum(replies),
                        "quantiles": [whole[round(q * (len(whole) - 1))] for q in (0, 0.1, 0.25, 0.5, 0.75, 0.9, 1)]}  # fmt: skip
    return found


# ------------------------------------------------------------------------------------------------------- measurements


def measured() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RAW.read_text().splitlines()] if RAW.exists() else []


def keep(line: dict[str, Any]) -> None:
    with open(RAW, "a") as f:
        f.write(json.dumps(line) + "\n")


def once(stage: str, mode: str, side: str, change: dict[str, Any] | None = None, timeout: float = 600) -> dict[str, Any]:
    """One run of one side. Returns what it measured, its order included; `error` where it failed."""
    import shutil

    settings = {**SETTINGS[stage][mode][side], **(change or {})}
    micro = settings.pop("micro", MICRO_OF.get(mode, {}).get(side, {}).get(stage, MICRO))
    place = WORK / "runs" / f"{stage}-{mode}-{side}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    shutil.copytree(WORK / "data" / stage, place / "data")  # so that nothing kept beside the data by another run is used
    order = {"side": side, "stage": stage, "model": MODEL, "data": str(place / "data"), "out": str(place / "out"),
             "batch": BATCH, "micro": micro, "steps": ROWS // BATCH, "learning_rate": 1e-5, "settings": settings,
             "threads": THREADS, "result": str(place / "result.json")}  # fmt: skip
    (place / "order.json").write_text(json.dumps(order))
    python = environment() if side == "llamafactory" else sys.executable
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(place / "hf"), "TOKENIZERS_PARALLELISM": "true", "WANDB_MODE": "disabled",
           "PYTHONPATH": str(ROOT) if side == "eft" else "", "HF_HUB_DISABLE_TELEMETRY": "1", "CUDA_VISIBLE_DEVICES": "",
           "OMP_NUM_THREADS": str(THREADS), "MKL_NUM_THREADS": str(THREADS), "DISABLE_VERSION_CHECK": "0"}  # fmt: skip
    began = time.time()
    with open(place / "log", "wb") as log:
        code = subprocess.run([str(python), str(ROOT / "benchmarks" / "train_sides.py"), str(place / "order.json")], stdout=log,
                              stderr=log, env=env, cwd=place, timeout=timeout).returncode  # fmt: skip
    line: dict[str, Any] = {"stage": stage, "mode": mode, "side": side, "micro": micro, "change": change or {}}
    if code or not (place / "result.json").exists():
        return {**line, "error": (place / "log").read_text(errors="replace")[-600:]}
    done = json.loads((place / "result.json").read_text())
    load = os.getloadavg()[0]
    return {**line, "to_first_step": round(done["started"] - began, 2), "load": round(load, 1), **done}


def seconds(line: dict[str, Any]) -> float:
    """CPU seconds of a run's training: all steps, and what is computed before them."""
    return sum(line["steps"]) + line["before"]


def run(stages: list[str], modes: list[str], rounds: int, limit: float, sides: list[str]) -> bool:
    """Measure what is not measured yet, side by side. Returns False where time ran out before the end."""
    began = time.time()
    longest = 0.0
    for k in range(rounds):
        for stage in stages:
            for mode in (m for m in modes if m in SETTINGS[stage]):
                for side in sides:
                    have = [m for m in measured() if (m["stage"], m["mode"], m["side"]) == (stage, mode, side) and m.get("round") == k]
                    if have:
                        continue
                    if time.time() - began + longest > limit:
                        return False
                    started = time.time()
                    line = once(stage, mode, side)
                    longest = max(longest, time.time() - started)
                    keep({**line, "round": k, "at": time.strftime("%H:%M:%S")})
                    say(line)
    return True


def say(line: dict[str, Any]) -> None:
    what = f"{line['stage']} {line['mode']} {line['side']} {line['change'] or ''}"
    if "error" in line:
        print(f"{what}: FAILED {line['error'][-300:]}", flush=True)
    else:
        print(f"{what}: {seconds(line):.2f} s, steps {line['steps']}, before {line['before']}, {line['peak_gb']} GB", flush=True)


def tune(stages: list[str], sides: list[str], limit: float) -> None:
    """Try the candidates for "best", one run each."""
    began = time.time()
    for stage in stages:
        for side in sides:
            for change in CANDIDATES[side]:
                if stage == "sft" and "precompute_ref_log_probs" in change:
                    continue
                if stage == "kto" and any("packing" in k or "sampling" in k for k in change):
                    continue
                done = [m for m in measured() if m["mode"] == "tune" and (m["stage"], m["side"], m["change"]) == (stage, side, change)]
                if done or time.time() - began > limit:
                    continue
                line = once(stage, "best", side, change)
                keep({**line, "mode": "tune"})
                say(line)


def start(rounds: int, limit: float) -> None:
    """From the command, as users give it, to the first step: `eft sft`, and a script with TRL's trainer under `accelerate launch`
    and under plain `python`."""
    import shutil

    began = time.time()
    for k in range(rounds):
        for stage in ("sft", "kto"):
            for side in ("eft", "trl", "trl, accelerate launch"):
                if any((m["stage"], m["mode"], m["side"], m["round"]) == (stage, "start", side, k) for m in measured()):
                    continue
                if time.time() - began > limit:
                    return
                trl, own = ({k: v for k, v in SETTINGS[stage]["fp32"][s].items() if k != "micro"} for s in ("trl", "eft"))
                place = WORK / "runs" / "start"
                shutil.rmtree(place, ignore_errors=True)
                place.mkdir(parents=True)
                order = {"side": "trl", "stage": stage, "model": MODEL, "data": str(WORK / "data" / stage), "out": str(place / "out"),
                         "batch": BATCH, "micro": MICRO, "steps": 1, "learning_rate": 1e-5, "threads": THREADS,
                         "settings": trl, "result": str(place / "result.json")}  # fmt: skip
                (place / "order.json").write_text(json.dumps(order))
                values = {"root": str(place), "output": "out", "model": MODEL, "dataset": order["data"], "launch": "cpu", "steps": 1,
                          "global_batch": BATCH, "micro_batch": MICRO, "max_tokens": 8192, "eval_rows": 0, **own}  # fmt: skip
                (place / "recipe.yaml").write_text(json.dumps(values))  # JSON is YAML
                script = [str(ROOT / "benchmarks" / "train_sides.py"), str(place / "order.json")]
                command = [sys.executable, *{
                    "eft": ["-m", "eft.cli", stage, "--config", str(place / "recipe.yaml")], "trl": script,
                    "trl, accelerate launch": ["-m", "accelerate.commands.launch", "--num_processes", "1", "--cpu", *script]}[side]]  # fmt: skip
                env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(place / "hf"), "PYTHONPATH": str(ROOT), "WANDB_MODE": "disabled"}
                started = time.time()
                with open(place / "log", "wb") as log:
                    process = subprocess.Popen(command, stdout=log, stderr=log, env=env, cwd=place)
                    first = None
                    while process.poll() is None:
                        if side == "eft" and first is None and (place / "out" / "losses.jsonl").exists():
                            first = time.time()  # the journal is begun when training begins
                        time.sleep(0.02)
                if process.returncode:
                    raise SystemExit(f"{' '.join(command)} failed: {(place / 'log').read_text()[-800:]}")
                if side != "eft":
                    first = json.loads((place / "result.json").read_text())["started"]
                line = {"stage": stage, "mode": "start", "side": side, "round": k, "to_first_step": round(first - started, 2)}
                keep(line)
                print(line, flush=True)


def table() -> None:
    """Print medians, and ratios against the best of the others."""
    counted, lines = lengths(), [m for m in measured() if "error" not in m]
    print(json.dumps(counted))
    middle = statistics.median
    print("| stage | settings | side | tokens/s | ratio to the best other | peak GB | runs |\n|---|---|---|---|---|---|---|")
    for stage in ("kto", "sft"):
        for mode in SETTINGS[stage]:
            runs = {s: [m for m in lines if (m["stage"], m["mode"], m["side"]) == (stage, mode, s)] for s in ("eft", "trl", "llamafactory")}
            speed = {s: counted[stage]["tokens"] / middle(seconds(m) for m in r) for s, r in runs.items() if r}
            memory = {s: middle(m["peak_gb"] for m in r) for s, r in runs.items() if r}
            for side, value in speed.items():
                others = [v for s, v in speed.items() if s != side and (side == "eft" or s != "eft")]
                ratio = f"{value / max(others):.2f}" if side == "eft" and others else ""
                print(f"| {stage} | {mode} | {side} | {value:.0f} | {ratio} | {memory[side]:.2f} | {len(runs[side])} |")
    once = [m["once"] for m in lines if m.get("once")]
    if once:
        print(f"KTO's proof on its first rows, once a training, not in tokens/s: {middle(once):.2f} CPU s")
    share = [m["callbacks"] / sum(m["steps"]) for m in lines if m.get("callbacks") is not None and m["mode"] != "start"]
    if share:
        print(f"callbacks: {100 * middle(share):.2f} % of the steps' time (median of {len(share)} runs, at most {100 * max(share):.2f} %)")
    for stage in ("sft", "kto"):
        starts = {s: [m["to_first_step"] for m in lines if (m["stage"], m["mode"], m["side"]) == (stage, "start", s)]
                  for s in ("eft", "trl", "trl, accelerate launch")}  # fmt: skip
        print(f"{stage}, command to first step: " + "; ".join(f"{s} {middle(v):.1f} s ({len(v)})" for s, v in starts.items() if v))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["env", "prepare", "run", "tune", "start", "table"])
    parser.add_argument("what", nargs="*", help="stages (kto,sft), then modes (best,fp32,defaults)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=220)
    parser.add_argument("--sides", default="eft,trl,llamafactory")
    told = parser.parse_args()
    stages = (told.what[0] if told.what else "kto,sft").split(",")
    modes = (told.what[1] if len(told.what) > 1 else "best,fp32,defaults").split(",")
    if told.verb == "env":
        environment()
    elif told.verb == "prepare":
        prepare()
    elif told.verb == "run":
        print("complete" if run(stages, modes, told.rounds, told.seconds, told.sides.split(",")) else "not complete: run it again")
    elif told.verb == "tune":
        tune(stages, told.sides.split(","), told.seconds)
    elif told.verb == "start":
        start(told.rounds, told.seconds)
    else:
        table()
