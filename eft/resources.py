"""Where shipped recipes and accelerate configs are: a path as given, the checkout's top level, or the installed wheel.
And where is kept what is made once for a machine."""

from __future__ import annotations

import os
from pathlib import Path

from eft.errors import UsageError, nearest

PACKAGE = Path(__file__).resolve().parent


def cache() -> Path:
    """The folder of what is made once and can be made again: $EFT_CACHE, else $XDG_CACHE_HOME/eft or ~/.cache/eft."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return Path(os.environ.get("EFT_CACHE") or home / "eft")


def _folders(kind: str) -> list[Path]:
    """`kind` ("recipes" or "accelerate_configs") in the checkout, then in the wheel (eft/_shipped, made by setup.py)."""
    return [f for f in (PACKAGE.parent / kind, PACKAGE / "_shipped" / kind) if f.is_dir()]


def names(kind: str) -> list[str]:
    """The shipped names of a kind: recipe folders, or accelerate configs without `.yaml`."""
    found = {f.name if f.is_dir() else f.stem for d in _folders(kind) for f in d.iterdir()
             if f.suffix in ("", ".yaml") and not f.name.startswith((".", "_"))}  # fmt: skip
    return sorted(found)


def path(kind: str, name: str) -> Path:
    """The folder or file behind `name`: an existing path, or a shipped NAME (`.yaml` and a leading `kind/` optional).

    Raises UsageError with the nearest shipped name where there is none.
    """
    given = Path(name).expanduser()
    if given.is_file() or given.is_dir() and kind == "recipes":  # only recipes are folders
        return given.resolve()
    short = name.removeprefix(f"{kind}/")
    for folder in _folders(kind):
        for candidate in (folder / short, folder / f"{short}.yaml"):
            if candidate.is_file() or candidate.is_dir() and kind == "recipes":
                return candidate
    raise UsageError(f"there is no {kind.rstrip('s').replace('_', ' ')} '{name}'", way_out=nearest(Path(name).stem, names(kind)))
