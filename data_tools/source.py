"""Where a stage reads and where it writes: finished outputs of the stage before it, and a folder of its own."""

from __future__ import annotations

import re
from pathlib import Path

from eft import manifest
from eft.errors import EftError, UsageError


def check(source: Path, out: Path, before: str) -> None:
    """`source` is a finished output of a data stage, or a table that somebody brought, and not where the output goes.

    `before`: the verb that comes before; the rows must have been through it. Raises UsageError or EftError otherwise.
    """
    if out.resolve() == source.resolve():
        raise UsageError("the output folder is the input", where=out, way_out="give another -o OUT")
    if source.is_file():
        return
    done = manifest.read(source)
    if done is None:
        why = "it has no manifest.json, so the stage did not finish" if source.is_dir() else "it does not exist"
        raise EftError(
            f"no finished output of 'eft {before}'", where=source, why=why, way_out=f"run 'eft {before}' first"
        )
    if done.get("stage") == "harvest" and before != "harvest":
        raise EftError("these rows are not labelled", where=source, why="this is the output of 'eft harvest'",
                       way_out="run 'eft label' first")  # fmt: skip


def start(out: Path) -> None:
    """Make the output folder and take away an old manifest, and what a killed run was writing: from here on the output
    counts as unfinished.

    Raises EftError where the folder cannot be made.
    """
    with manifest.clear_disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        (out / manifest.NAME).unlink(missing_ok=True)
        for left in out.glob(".*"):
            if _TEMPORARY.fullmatch(left.name) and left.is_file():
                left.unlink(missing_ok=True)


_TEMPORARY = re.compile(r"\.[\w-]+\.(?:parquet|json)\.[a-z0-9_]{8}")  # as `manifest.atomic_file` names them
