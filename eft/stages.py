"""Run a stage: here, or as a process of its own (so that loops and recipes share nothing with it but files)."""

from __future__ import annotations

import ctypes
import importlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from eft import config as configs
from eft import manifest
from eft.errors import EftError

# verb -> module. The order is the pipeline's; `eft --help`, recipes and the output folders follow it.
STAGES = {
    "collect": "eft.search.collect",
    "harvest": "data_tools.harvest",
    "label": "data_tools.label",
    "clean": "data_tools.clean",
    "build": "data_tools.build",
    "sft": "eft.train.sft",
    "kto": "eft.train.kto",
    "export": "eft.train.export",
    "serve": "eft.mutators.server",
    "evaluate": "eft.evaluate.run",
    "report": "eft.evaluate.report",
}


# Stages that go on where they stopped, or keep a part of what is there: a repetition from the start (--force) first discards what is there, by the
# module's `discard(config)`.
RESUMABLE = ("evaluate", "export")


def module(verb: str) -> Any:
    """The module behind a verb: exports `Config`, `run(config) -> Path` and `inputs(config) -> list[Path]`."""
    return importlib.import_module(STAGES[verb])


def execute(verb: str, config: configs.StageConfig, *, force: bool = False) -> dict[str, Any]:
    """Run a stage in this process unless its output is up to date. Returns its manifest, with `skipped` added."""
    stage = module(verb)
    resolved = config.model_dump(mode="json")
    out = config.out()
    if not force and manifest.up_to_date(out, verb, resolved, stage.inputs(config)):
        if hasattr(stage, "push"):
            stage.push(config)  # an upload that was cut goes on; one that is done says so without asking the hub
        return {**(manifest.read(out) or {}), "skipped": True}
    if force and verb in RESUMABLE:
        stage.discard(config)
    path = stage.run(config)
    done = manifest.read(path)
    if done is None:
        raise EftError(f"'eft {verb}' left no manifest", where=path)
    return {**done, "skipped": False}


def with_parent(number: int = signal.SIGKILL) -> None:
    """Ask Linux to end this process, by the signal `number`, with the one that waits for it: a killed loop leaves no stage
    behind that goes on writing where the next attempt writes too."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(1, number)  # PR_SET_PDEATHSIG


def run(verb: str, *, config: Path | None = None, sets: tuple[str, ...] = (), args: tuple[str, ...] = ()) -> dict[str, Any]:
    """Run `eft VERB` as a process and return the JSON object that it prints last. Raises EftError where it fails."""
    command = [sys.executable, "-m", "eft.cli", verb, *args, "--json"]
    if config is not None:
        command += ["--config", str(config)]
    for item in sets:
        command += ["--set", item]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, preexec_fn=with_parent)
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        raise EftError(f"'eft {verb}' failed with exit code {done.returncode}", where=config or " ".join(args))
    return json.loads(lines[-1])
