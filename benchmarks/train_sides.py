"""One measured training of benchmarks/train.py: `python train_sides.py ORDER.json`, in the environment of the side.

ORDER: side (eft, trl, llamafactory), stage (sft, kto), model (folder), data (folder with train.jsonl and, for eft, `eft build`'s
tables), out (folder), batch (rows a step), micro, steps, settings (the side's own arguments). Prints one JSON object last: the
times of every step, the seconds before the steps that belong to training (reference log-probabilities computed in advance),
the process's peak memory. Nothing of eft is imported for the other sides: they run in environments of their own.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path


def peak() -> float:
    """Peak resident memory of this process, GB."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 3)


def clock() -> type:
    """A callback class of transformers that notes when steps begin and end."""
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        begun: float | None = None  # CPU seconds
        wall: float = 0.0
        last: float = 0.0
        ends: list[float] = []
        losses: list[float] = []
        loaded: float = 0.0

        def on_train_begin(self, args, state, control, **kwargs):
            Clock.loaded = peak()

        def on_step_begin(self, args, state, control, **kwargs):
            if Clock.begun is None:
                Clock.begun, Clock.wall = time.process_time(), time.time()

        def on_step_end(self, args, state, control, **kwargs):
            Clock.ends.append(time.process_time())
            Clock.last = time.time()

        def on_log(self, args, state, control, logs=None, **kwargs):
            if logs and "loss" in logs:
                Clock.losses.append(logs["loss"])

    return Clock


def result(kind: type, before: float) -> dict:
    marks = [kind.begun, *kind.ends]
    return {"started": kind.wall, "wall": round(kind.last - kind.wall, 3), "steps": [round(b - a, 4) for a, b in zip(marks, marks[1:], strict=False)],
            "before": round(before, 3), "losses": kind.losses, "peak_gb": peak(), "loaded_gb": kind.loaded}  # fmt: skip


def timed(owner: object, name: str, seconds: list[float]) -> None:
    """Note in `seconds` the CPU seconds that calls of `owner.name` take."""
    inner = getattr(owner, name)

    def outer(*args, **kwargs):
        started = time.process_time()
        try:
            return inner(*args, **kwargs)
        finally:
            seconds.append(time.process_time() - started)

    setattr(owner, name, outer)


def trl(order: dict) -> dict:
    """Plain TRL, as its documentation has it: a config, a data set of conversations, a trainer."""
    from datasets import load_dataset
    from trl import KTOConfig, KTOTrainer, SFTConfig, SFTTrainer

    Clock, before = clock(), []
    settings = dict(order["settings"])
    threads(order)
    attention = settings.pop("attention", None)
    dtype = settings.pop("dtype", "float32")
    config = (KTOConfig if order["stage"] == "kto" else SFTConfig)(
        output_dir=order["out"], per_device_train_batch_size=order["micro"], max_steps=order["steps"],
        gradient_accumulation_steps=order["batch"] // order["micro"], learning_rate=order["learning_rate"], use_cpu=True,
        report_to="none", save_strategy="no", logging_steps=1, disable_tqdm=True, dataloader_pin_memory=False, **settings,
        model_init_kwargs={"dtype": dtype, **({"attn_implementation": attention} if attention else {})})  # fmt: skip
    rows = load_dataset("json", data_files=f"{order['data']}/train.jsonl", split="train")
    if order["stage"] == "sft":
        rows = rows.select_columns(["prompt", "completion"])
        trainer = SFTTrainer(model=order["model"], args=config, train_dataset=rows, callbacks=[Clock()])
    else:
        timed(KTOTrainer, "_precompute_ref_logps", before)
        rows = rows.select_columns(["prompt", "completion", "label"])
        trainer = KTOTrainer(model=order["model"], args=config, train_dataset=rows, callbacks=[Clock()])
    trainer.train()
    return result(Clock, sum(before))


def llamafactory(order: dict) -> dict:
    """LLaMA-Factory through the function that its command line calls."""
    from llamafactory.train.tuner import run_exp

    Clock = clock()
    threads(order)
    arguments = {
        "stage": order["stage"], "do_train": True, "finetuning_type": "full", "model_name_or_path": order["model"],
        "dataset": "rows", "dataset_dir": order["data"], "output_dir": order["out"], "overwrite_output_dir": True,
        "per_device_train_batch_size": order["micro"], "gradient_accumulation_steps": order["batch"] // order["micro"],
        "learning_rate": order["learning_rate"], "max_steps": order["steps"], "logging_steps": 1, "save_strategy": "no",
        "report_to": "none", "disable_tqdm": True, "overwrite_cache": True, "cutoff_len": 8192, "use_cpu": True, **order["settings"],
    }  # fmt: skip
    run_exp(arguments, callbacks=[Clock()])
    return result(Clock, 0.0)


def eft(order: dict) -> dict:
    """eft's own stage: the recipe's words, one rank, in this process."""
    from eft import config as configs
    from eft.train import kto, launch, loop, sft

    Clock, before = clock(), []
    module = {"sft": sft, "kto": kto}[order["stage"]]
    out = Path(order["out"])
    values = {"root": str(out.parent), "output": out.name, "model": order["model"], "dataset": order["data"], "launch": "cpu",
              "global_batch": order["batch"], "micro_batch": order["micro"], "steps": order["steps"], "max_tokens": 8192,
              "learning_rate": order["learning_rate"], "eval_rows": 0, "save_every": 10**6, "watch": {"rows": 0},
              **order["settings"]}  # fmt: skip
    out.parent.mkdir(parents=True, exist_ok=True)
    recipe = out.parent / f"{out.name}.json"
    recipe.write_text(json.dumps(values))
    config = configs.load(module.Config, recipe)
    config.check()
    os.environ |= launch.environment(1)
    os.environ["OMP_NUM_THREADS"] = str(order["threads"])
    inner = loop.fit

    def fit(run, trainer, *args, **kwargs):
        trainer.add_callback(Clock())
        return inner(run, trainer, *args, **kwargs)

    loop.fit = fit
    callbacks = watch_callbacks()
    once: list[float] = []
    if order["stage"] == "kto":
        from eft.train.kto_trainer import ComputeReference

        timed(ComputeReference, "_fill", before)
        timed(ComputeReference, "on_train_begin", once)
    module.train(config, launch.Asked("cpu", cpu=True))
    # `once`: what KTO proves on its first rows, whatever the number of rows
    return {**result(Clock, sum(before)), "callbacks": round(sum(callbacks), 4), "once": round(sum(once) - sum(before), 3)}


def watch_callbacks() -> list[float]:
    """The seconds that eft's own callbacks take at every step, added up (saving and evaluation are not steps)."""
    from eft.train import callbacks, checkpoints, interrupt, meter, watch

    seconds: list[float] = []
    kinds = {k for module in (callbacks, checkpoints, interrupt, meter, watch) for k in vars(module).values() if isinstance(k, type)}
    for kind in kinds:
        for name in ("on_step_begin", "on_step_end", "on_log", "on_substep_end", "on_pre_optimizer_step", "on_optimizer_step"):
            if name in vars(kind) and kind.__module__.startswith("eft."):
                timed(kind, name, seconds)
    return seconds


def threads(order: dict) -> None:
    import torch

    torch.set_num_threads(order["threads"])


if __name__ == "__main__":
    order = json.loads(Path(sys.argv[1]).read_text())
    done = {"trl": trl, "llamafactory": llamafactory, "eft": eft}[order["side"]](order)
    Path(order["result"]).write_text(json.dumps(done))
