"""W&B and trackio: one run per training, taken up again by its id where the training continues from a checkpoint.

transformers' own callbacks do the logging (`report_to`); here the run is opened, before anything heavy is loaded, and
closed however the training ends. The id is kept in OUT/tracker.json. Online, offline (WANDB_MODE=offline, then
`wandb sync OUT/wandb/offline-run-*`) and disabled are W&B's own settings; its project is WANDB_PROJECT, else `eft`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from eft import manifest
from eft.errors import EftError, UsageError, nearest

NAMES = ("wandb", "trackio", "tensorboard")
PROJECT = "eft"
FILE = "tracker.json"


def check(names: Iterable[str]) -> None:
    """Raise UsageError for a tracker that eft does not know, or that is not installed."""
    for name in names:
        if name not in NAMES:
            raise UsageError(f"unknown tracker 'report_to: {name}'", way_out=nearest(name, NAMES))
        if importlib.util.find_spec(name) is None:
            raise UsageError(
                f"'report_to: {name}' needs the package {name}", why="it is not installed", way_out=f"pip install {name}"
            )


def run_id(out: Path, resumed: bool) -> str:
    """The id of this training's run: the one before where it is continued, else a new one."""
    file = out / FILE
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        if resumed:
            return str(json.loads(file.read_text())["id"])
    made = secrets.token_hex(4)
    manifest.write_json(file, {"id": made})
    return made


def begin(run: Any) -> None:
    """Open the runs of this training (the main process). Raises EftError where a tracker refuses."""
    names = run.config.report_to
    if not names or not run.main:
        return
    key = run_id(run.out, run.resume is not None)
    name = f"{run.verb} {run.out.name} {key}"
    if not run.config.trainer.get("run_name"):
        run.args.run_name = name
    if "project" not in run.config.trainer:
        run.args.project = os.environ.get("TRACKIO_PROJECT", PROJECT)
    if "wandb" in names:
        _wandb(run, key, name)


def _wandb(run: Any, key: str, name: str) -> None:
    import wandb

    os.environ.setdefault("WANDB_SILENT", "true")
    offline = os.environ.get("WANDB_MODE") == "offline"
    try:
        made = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=os.environ.get("WANDB_NAME", name),
            id=os.environ.get("WANDB_RUN_ID", key),
            dir=str(run.out),
            resume=None if offline else "allow",  # offline there is nobody to ask; syncing joins what has one id
            config={"recipe": run.config.model_dump(mode="json"), "verb": run.verb},
        )
    except wandb.errors.Error as e:
        raise EftError(
            "W&B does not take this run",
            why=(str(e).strip() or type(e).__name__).splitlines()[0],
            way_out="run 'wandb login', set WANDB_MODE=offline, or take wandb out of `report_to`",
        ) from None
    run.say(f"W&B run {made.id}: {made.url or 'offline, ' + str(Path(made.dir).parent)}")


def end(failed: bool) -> None:
    """Close what was opened, and tell the tracker whether the training failed. Never raises."""
    module = sys.modules.get("wandb")
    if module is not None and getattr(module, "run", None) is not None:
        with contextlib.suppress(Exception):
            module.finish(exit_code=int(failed))
    module = sys.modules.get("trackio")
    if module is not None and failed:  # transformers' callback closes it after a training that ended
        with contextlib.suppress(Exception):
            module.finish()
