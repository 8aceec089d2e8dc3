"""What a stage reads from the stage before it: a finished output folder, or a table that somebody brought along."""

from __future__ import annotations

from pathlib import Path

from eft import manifest
from eft.errors import EftError, UsageError


def check(source: Path, out: Path, before: str) -> str:
    """The name of the stage that made `source` ("" for a table file). `before`: the verb that usually comes before.

    Raises UsageError where the output would overwrite its input, EftError where the stage before did not finish.
    """
    if out.resolve() == source.resolve():
        raise UsageError("the output folder is the input", where=out, way_out="give another -o OUT")
    if source.is_file():
        return ""
    done = manifest.read(source)
    if done is None:
        why = "it has no manifest.json, so the stage did not finish" if source.is_dir() else "it does not exist"
        raise EftError(
            f"no finished output of 'eft {before}'", where=source, why=why, way_out=f"run 'eft {before}' first"
        )
    return str(done.get("stage", ""))
