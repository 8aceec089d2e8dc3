"""Task folders that a loop writes: atomically, and only where they are not there already."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from eft.manifest import clear_disk_errors
from eft.tasks.task import Task, load_task

PARTIAL = ".partial"


def write_task(folder: Path, files: Mapping[str, str | bytes]) -> Task:
    """The task in `folder`, which holds exactly `files` (path inside the folder -> content) afterwards.

    A folder with just these contents stays untouched; one that differs is replaced as a whole, so that a killed run
    leaves the old or the new task and never half of one. Raises EftError where the folder cannot be written or is no
    task then.
    """
    wanted = {name: content.encode() if isinstance(content, str) else content for name, content in files.items()}
    if _contents(folder) == wanted:
        return load_task(folder)
    partial = folder.with_name(f"{folder.name}{PARTIAL}")
    with clear_disk_errors(folder):
        shutil.rmtree(partial, ignore_errors=True)
        for name, content in wanted.items():
            file = partial / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        load_task(partial)  # a folder that is no task never takes the place of one
        if folder.exists():
            shutil.rmtree(folder)
        partial.rename(folder)
    return load_task(folder)


def _contents(folder: Path) -> dict[str, bytes] | None:
    if not folder.is_dir():
        return None
    found = sorted(p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    return {str(p.relative_to(folder)): p.read_bytes() for p in found}
