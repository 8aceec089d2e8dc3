"""Data sets on the hub by name: `hub:ORG/NAME@REVISION`, downloaded once into the hub library's own cache.

The revision is not optional: a published data set grows, and the same name has other rows a month later. Best is a
commit (40 hex digits); a tag will do; a branch moves, and is refused where it is called `main` or `master`.
"""

from __future__ import annotations

import re
from pathlib import Path

from eft.errors import EftError, UsageError

PREFIX = "hub:"
_NAME = re.compile(r"hub:(?P<name>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")
MOVING = {"main", "master", "HEAD"}
WANTED = ("*.parquet", "*.jsonl", "*.jsonl.gz")


def is_hub(run: object) -> bool:
    """Is this run a data set's hub id rather than a path?"""
    return str(run).startswith(PREFIX)


def parse(run: object) -> tuple[str, str]:
    """(ORG/NAME, REVISION) of a hub id. Raises UsageError for one that is malformed or pins no revision."""
    found = _NAME.fullmatch(str(run))
    if not found:
        raise UsageError("this is no data set on the hub", where=run, way_out="hub:ORG/NAME@REVISION")
    if not found["revision"] or found["revision"] in MOVING:
        raise UsageError("no revision is pinned", where=run,
                         why="the rows differ between revisions, so that nobody could repeat what is made of them",
                         way_out=f"hub:{found['name']}@COMMIT, out of the data set's history (or a tag)")  # fmt: skip
    return found["name"], found["revision"]


def fetch(run: object) -> Path:
    """The folder with the data set's Parquet and JSONL files. Raises EftError where they cannot be had."""
    name, revision = parse(run)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, repo_type="dataset", revision=revision, allow_patterns=list(WANTED)))
    except Exception as e:  # HTTP, cache, disk and validation failures of the library have no common base
        why = f"{type(e).__name__}: {e}".splitlines()[0]
        raise EftError("the data set cannot be downloaded", where=run, why=why,
                       way_out="check name, revision and network (HF_HUB_OFFLINE; HF_TOKEN for a gated one), or bring "
                               "a copy of it and name the folder: eft harvest FOLDER") from None  # fmt: skip
