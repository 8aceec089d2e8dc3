"""The steps of check.sh. Prints one line for each check and one for each training; exits with 1 where something is off."""

from __future__ import annotations

import gc
import importlib.util
import os
import random
import shutil
import sys
import time
from pathlib import Path
from typing import Any

TINY = os.environ.get("EFT_CHECK_TINY") == "1"
LENGTHS = (128, 256, 512) if TINY else (8192, 16384, 32768)
ROWS = 8  # of every length
FAILED: list[str] = []


def say(name: str, good: bool | None, text: str) -> None:
    """One line; `good` None: nothing that could be wrong."""
    if good is False:
        FAILED.append(name)
    print(f"{'    ' if good is None else 'ok  ' if good else 'BAD '}{name:<28} {text}", flush=True)


def device() -> Any:
    import torch

    if TINY:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        sys.exit("no GPU that torch can use (EFT_CHECK_TINY=1 tries the script without one)")
    return torch.device("cuda")


def products(place: Any) -> None:
    """bfloat16 matrix products against float32 ones, and how fast they are."""
    import torch

    n = 256 if TINY else 8192
    a, b = (torch.randn(n, n, device=place, dtype=torch.bfloat16) for _ in range(2))
    difference = ((a @ b).float() - a.float() @ b.float()).abs().max().item() / n**0.5
    if place.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(20):
        a @ b
    if place.type == "cuda":
        torch.cuda.synchronize()
    speed = 20 * 2 * n**3 / (time.perf_counter() - start)
    say("bf16 products", difference < 0.05, f"{speed / 1e12:.3g} TFLOP/s, off by {difference:.4f} of the deviation")


def sizes() -> dict[str, Any]:
    """A Qwen3 of 1.7 billion weights (0.6 where the GPU has less than 60 GB), or a tiny one."""
    import torch

    base = {"tie_word_embeddings": True, "architectures": ["Qwen3ForCausalLM"], "max_position_embeddings": 40960}
    if TINY:
        return {**base, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 2,
                "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 2048}  # fmt: skip
    large = torch.cuda.get_device_properties(0).total_memory > 60e9
    width = {"hidden_size": 2048, "intermediate_size": 6144} if large else {"hidden_size": 1024, "intermediate_size": 3072}
    return {**base, **width, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
            "head_dim": 128, "vocab_size": 151936}  # fmt: skip


def write_model(folder: Path, place: Any, hybrid: bool = False) -> int:
    """A model folder with random weights and the tokenizer of random:qwen3. Returns the number of parameters."""
    import torch
    import transformers

    from eft import tokenizers

    tokenizer = tokenizers.load("random:qwen3")
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    if hybrid:
        wide = {k: v for k, v in sizes().items() if k != "architectures"}
        if TINY:
            wide |= {"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 32,
                     "linear_value_head_dim": 32, "layer_types": ["linear_attention", "full_attention"]}  # fmt: skip
        config: Any = transformers.Qwen3_5TextConfig(**wide, **ids, architectures=["Qwen3_5ForCausalLM"])
    else:
        config = transformers.Qwen3Config(**sizes(), **ids)
    torch.manual_seed(0)
    with place:
        model = getattr(transformers, config.architectures[0])._from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(p.numel() for p in model.parameters())


def kernels(folder: Path, place: Any) -> None:
    """Every attention kernel that is there against eager attention in float32: logits of a short row."""
    import torch

    from eft.models.load import load_model

    ids = torch.arange(3, 3 + min(256, LENGTHS[0]), device=place)[None]
    found = {}
    flash = importlib.util.find_spec("flash_attn") is not None
    for kernel, dtype in (("eager", "float32"), ("sdpa", "bfloat16"), *([("flash_attention_2", "bfloat16")] if flash else [])):
        model = load_model(str(folder), dtype, kernel).to(place).eval()
        with torch.no_grad():
            found[kernel] = model(input_ids=ids).logits.float()
        del model
    scale = found["eager"].std().item()
    for kernel, logits in found.items():
        if kernel != "eager":
            off = (logits - found["eager"]).abs().mean().item() / scale
            say(f"attention: {kernel}", off < 0.05, f"mean difference to eager in float32: {off:.4f} deviations")
    if not flash:
        say("attention: flash", None, "flash_attn is not installed: sdpa is used")


def write_rows(root: Path, tokenizer: Any) -> None:
    """build/{sft,kto}-LENGTH: rows of just under LENGTH tokens, replies of an eighth of that, the same ones every time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from eft import tokenizers

    rng = random.Random(0)
    line = "".join(f"v{rng.randint(0, 99)} = {rng.randint(0, 999)}\n" for _ in range(400))
    per_character = tokenizers.count(tokenizer, [line])[0] / len(line)
    for length in LENGTHS:
        rows = []
        for number in range(ROWS):
            size = int((length - 64) * rng.uniform(0.8, 0.95) / per_character)
            whole = "".join(f"v{rng.randint(0, 99)} = {rng.randint(0, 999)}\n" for _ in range(size // 10))
            cut = len(whole) * 7 // 8
            rows.append({
                "id": f"{length}-{number}", "task": f"task{number % 2}", "label": number % 4 < 2,
                "prompt": [{"role": "user", "content": whole[:cut]}],
                "completion": [{"role": "assistant", "content": whole[cut:].strip()}],
            })  # fmt: skip
        for verb in ("sft", "kto"):
            folder = root / f"build/{verb}-{length}"
            folder.mkdir(parents=True)
            kept = rows if verb == "kto" else [{k: v for k, v in r.items() if k != "label"} for r in rows]
            pq.write_table(pa.Table.from_pylist(kept), folder / "train.parquet")


def train(root: Path, verb: str, name: str, model: str, length: int, **changes: Any) -> dict[str, Any]:
    """A training of a few steps in this process. Returns its first loss and the last line of its journal."""
    import torch

    from eft import config as configs
    from eft import manifest
    from eft.train import callbacks, kto, launch, sft

    stage = {"sft": sft, "kto": kto}[verb]
    values = {
        "root": str(root), "model": model, "dataset": f"build/{verb}-{length}", "output": name, "max_tokens": length,
        "precision": "bf16_weights", "global_batch": 4, "micro_batch": 2 if verb == "kto" else 1, "steps": 3,
        "learning_rate": 1e-5, "eval_rows": 0, "watch": {"rows": 0}, "save_every": 100,
        "launch": "cpu" if TINY else "single_gpu", **changes,
    }  # fmt: skip
    config = configs.make(stage.Config, values)
    config.check()
    os.environ |= launch.environment(1)
    if not TINY:
        torch.cuda.reset_peak_memory_stats()
    stage.train(config, launch.Asked("cpu" if TINY else "single_gpu", cpu=TINY))
    lines = [x for x in callbacks.read_journal(root / name) if "loss" in x]
    counts = manifest.require(root / name, verb)["counts"]
    shutil.rmtree(root / name / "final", ignore_errors=True)
    gc.collect()
    if not TINY:
        torch.cuda.empty_cache()
    return {"first": lines[0]["loss"], "losses": [x["loss"] for x in lines], **lines[-1], "counts": counts}


def told(name: str, done: dict[str, Any], expected: float | None, tolerance: float) -> None:
    """One line about a training. `expected`: its first loss."""
    import math

    estimate = done["counts"]["estimate"]
    good = all(math.isfinite(x) for x in done["losses"])
    if expected is not None:
        good = good and abs(done["first"] - expected) < tolerance
    mfu = f", MFU {done['mfu']:.1%}" if done.get("mfu") else ""
    say(
        name,
        good,
        f"loss {done['first']:.4f} → {done['losses'][-1]:.4f}, {done['tokens_per_second']:,.0f} tok/s{mfu}, "
        f"{done['memory_gb']:.1f} GiB (estimated {estimate['memory_total'] / 2**30:.1f})",
    )


def main() -> None:
    import math

    import torch

    from eft import tokenizers

    root = Path(sys.argv[1]).resolve()
    place = device()
    say("versions", None, f"torch {torch.__version__}, {place}")
    products(place)
    parameters = write_model(root / "model", place)
    say("model", None, f"Qwen3, {parameters:,} random weights")
    kernels(root / "model", place)
    write_rows(root, tokenizers.load("random:qwen3"))
    model = str(root / "model")
    uniform = math.log(sizes()["vocab_size"])  # the loss of a model that knows nothing
    for length in LENGTHS:
        done = train(root, "sft", f"sft-{length}", model, length)
        told(f"SFT, {length} tokens", done, uniform, 0.5)
    long = 2 * LENGTHS[0]
    apart = train(root, "sft", "apart", model, LENGTHS[0], max_tokens=LENGTHS[0])
    packed = train(root, "sft", "packed", model, LENGTHS[0], max_tokens=long, packing=True)
    off = max(abs(a - b) for a, b in zip(apart["losses"], packed["losses"], strict=True))
    say("packed = unpacked", off < 0.01, f"losses differ by at most {off:.5f}")
    told("SFT, packed", packed, uniform, 0.5)
    for length in LENGTHS[:2]:
        done = train(root, "kto", f"kto-{length}", model, length)
        told(f"KTO, {length} tokens", done, 0.5, 0.02)
    if importlib.util.find_spec("fla") is not None or TINY:
        write_model(root / "hybrid", place, hybrid=True)
        done = train(root, "sft", "hybrid-out", str(root / "hybrid"), LENGTHS[0])
        told(f"SFT, Qwen3.5, {LENGTHS[0]} tokens", done, uniform, 0.5)
    else:
        say("SFT, Qwen3.5", None, "left out: flash-linear-attention is not installed")
    if FAILED:
        sys.exit(f"off: {', '.join(FAILED)}")
    print("all good")


if __name__ == "__main__":
    main()
