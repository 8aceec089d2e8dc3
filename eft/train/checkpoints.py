"""Checkpoints that can be trusted after a kill: complete, of this very training, and no more of them than asked for.

TRL writes a checkpoint file by file, ranks on their own. Here it counts only once every rank has written its part: then
the main process notes all files and their sizes in `complete.json`, and only then are older checkpoints deleted.
Resuming takes the newest complete one; a torn one, the usual rest of a kill, is removed.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from eft import manifest
from eft.errors import EftError
from eft.train.config import TrainConfig
from eft.train.launch import Asked

MARK = "complete.json"
# what may change between two runs of one training
FREE = {
    "root", "output", "launch", "ranks", "save_every", "keep", "keep_finished", "log_every", "report_to", "watch", "explode",
}  # fmt: skip


def identity(config: TrainConfig, asked: Asked) -> dict[str, Any]:
    """What decides a training's result: two runs with the same identity are one training."""
    values = {k: v for k, v in config.model_dump(mode="json").items() if k not in FREE}
    stage = config.path(config.model).parent
    made = (stage / manifest.NAME).is_file()  # another folder's times may change while its weights do not
    return {
        **values,
        "weights": manifest.fingerprint(stage) if made else None,
        "launch": f"{asked.kind}{'' if asked.stage is None else asked.stage} x {asked.ranks}",
        "data": manifest.fingerprint(config.file("train")),
    }


def step_of(folder: Path) -> int:
    """The step of `checkpoint-N`."""
    return int(folder.name.rpartition("-")[2])


def complete(folder: Path) -> dict[str, Any] | None:
    """The mark of a complete checkpoint; None where there is none, or a file is missing or has another size."""
    try:
        mark = json.loads((folder / MARK).read_text())
    except (OSError, ValueError):
        return None
    intact = all(
        (folder / name).is_file() and (folder / name).stat().st_size == size for name, size in mark["files"].items()
    )
    return mark if intact else None


def checkpoints(out: Path) -> list[Path]:
    """All checkpoint folders, oldest first, complete or not."""
    return sorted((f for f in out.glob("checkpoint-*") if f.name.rpartition("-")[2].isdigit()), key=step_of)


def resume_point(out: Path, wanted: dict[str, Any]) -> Path | None:
    """The newest complete checkpoint in `out`, or None. Raises EftError where it belongs to another training."""
    for folder in reversed(checkpoints(out)):
        mark = complete(folder)
        if mark is None:
            continue
        was = mark["identity"]
        changed = [f"{k}: {was.get(k)!r} → {wanted.get(k)!r}" for k in wanted if was.get(k) != wanted.get(k)]
        if changed:
            raise EftError(
                "the checkpoints here are of another training",
                where=folder,
                why="; ".join(changed)[:600],
                way_out=f"give another -o, or remove {out} to start anew",
            )
        return folder
    return None


def remove(folders: list[Path]) -> None:
    """Delete checkpoints; the mark goes first, so that one half deleted never looks complete."""
    for folder in folders:
        (folder / MARK).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)


def needed(parameters: int, trained: int, bytes_each: int, *, deepspeed: bool) -> int:
    """Bytes of one checkpoint, estimated from above: `parameters` of `bytes_each`, of which `trained` have an optimizer.

    Two float32 moments a trained weight; DeepSpeed adds its float32 master weights, and keeps the weights a second time
    in its own format. Adapters are saved without their base, where DeepSpeed allows (as transformers asks it to).
    """
    written = parameters if trained > parameters / 2 else trained
    return written * bytes_each * (2 if deepspeed else 1) + trained * (12 if deepspeed or bytes_each == 2 else 8)


class Space(TrainerCallback):
    """Looks before every checkpoint whether the disk has room for it: a torn checkpoint helps nobody.

    Where it has not, older checkpoints but the newest go first, since they would go right afterwards. Only the main
    process looks (the folder is one for all), and where it raises, the launcher ends the others.
    """

    def __init__(self, out: Path, estimate: int) -> None:
        """`estimate`: bytes of the first checkpoint; later ones are expected as large as the one before."""
        self.out, self.estimate = out, estimate

    def size(self) -> int:
        """Bytes that the next checkpoint is expected to need."""
        for folder in reversed(checkpoints(self.out)):
            if mark := complete(folder):
                return sum(mark["files"].values())
        return self.estimate

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not (control.should_save and state.is_world_process_zero):
            return
        size = int(1.05 * self.size()) + (1 << 16)
        whole = [f for f in checkpoints(self.out) if complete(f) is not None]
        while free(self.out) < size and len(whole) > 1:
            remove([whole.pop(0)])
        if (left := free(self.out)) < size:
            kept = f"continues from {whole[-1].name}" if whole else "starts anew"
            raise EftError(
                "the disk has no room for a checkpoint",
                where=self.out,
                why=f"step {state.global_step}: it needs about {_gigabytes(size)}, {_gigabytes(left)} are free",
                way_out=f"free space and run the same command again: it {kept}",
            )


def free(folder: Path) -> int:
    """Bytes that this user can still write there."""
    return shutil.disk_usage(folder).free


def _gigabytes(size: int) -> str:
    return f"{size / 2**30:.2f} GB" if size > 1 << 27 else f"{size / 2**20:.1f} MB"


class Checkpoints(TrainerCallback):
    """Marks a checkpoint when all ranks have written it, then deletes what is too many."""

    def __init__(self, out: Path, identity: dict[str, Any], keep: int, wait: Any) -> None:
        self.out, self.identity, self.keep, self.wait = out, identity, keep, wait

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.wait()
        if state.is_world_process_zero:
            folder = self.out / f"checkpoint-{state.global_step}"
            files = {
                str(f.relative_to(folder)): f.stat().st_size
                for f in sorted(folder.rglob("*"))
                if f.is_file() and f.name != MARK
            }
            manifest.write_json(folder / MARK, {"step": state.global_step, "identity": self.identity, "files": files})
            older = [f for f in checkpoints(self.out) if step_of(f) < state.global_step]
            whole = [f for f in older if complete(f) is not None]
            remove([f for f in older if f not in whole] + whole[: len(whole) - (self.keep - 1)])
        self.wait()
