"""Finished outputs on the Hugging Face hub: models, adapters and data sets, through the `huggingface_hub` client.

`ready` asks the hub before any work is done (the token, the name, who may see it), `push` uploads. What arrived before an
interruption is not sent again, since the hub knows files by content, and a repository changes in one commit when all of it is
there. OUT/.pushed.json notes what was uploaded where, so that a repeated command sends nothing twice; HF_ENDPOINT and HF_TOKEN
mean what they mean to the client.
"""

from __future__ import annotations

import glob
import hashlib
import importlib
import json
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eft import __version__, manifest
from eft.errors import EftError, UsageError

RECORD = ".pushed.json"
OURS = ("evolution-finetuning", "evolution-fine-tuning")  # tags of every card that eft writes
PLAIN = (".gitattributes", "README.md", "LICENSE", ".gitignore")  # a repository with these alone is empty
KINDS = {"model": "model", "dataset": "data set"}


@dataclass(frozen=True)
class Place:
    """Where to: `name` is ORG/NAME, `kind` model or dataset, `revision` a branch (None: the main one)."""

    name: str
    kind: str = "model"
    private: bool = False
    revision: str | None = None

    def check(self) -> None:
        """Raise UsageError for what can be no name on the hub."""
        from huggingface_hub.errors import HFValidationError
        from huggingface_hub.utils import validate_repo_id

        way_out = "give --push-to-hub ORG/NAME"
        try:
            validate_repo_id(self.name)
        except HFValidationError as e:
            raise UsageError(f"this is no name of a {KINDS[self.kind]} on the hub", where=self.name,
                             why=str(e).split("\n")[0], way_out=way_out) from None  # fmt: skip
        if self.name.count("/") != 1:
            raise UsageError(f"this is no name of a {KINDS[self.kind]} on the hub", where=self.name,
                             why="whose it is to be is not said", way_out=way_out)  # fmt: skip


def ready(place: Place) -> bool:
    """Ask the hub whether `place` can be written, and make the repository where there is none.

    Returns False where the hub cannot be reached now (it may be when the work is done). Raises UsageError for a bad name and in
    offline mode, EftError for a bad token, a name that is somebody else's, or a repository that holds what eft did not write.
    """
    from huggingface_hub import constants

    place.check()
    if constants.HF_HUB_OFFLINE:
        raise UsageError("nothing can be pushed in offline mode", where=place.name, why="HF_HUB_OFFLINE is set",
                         way_out="push from a machine with a network: unset HF_HUB_OFFLINE, run the same command")  # fmt: skip
    try:
        _claim(place)
    except _Unreachable as e:
        print(f"hub: not reached now ({e}); the upload is tried when the work is done", file=sys.stderr, flush=True)
        return False
    return True


def push(folder: Path, place: Place, files: Iterable[str], *, replaces: tuple[str, ...] = ()) -> str:
    """Upload `files` (names within the finished output `folder`) to `place` as one commit. Returns its address.

    `replaces`: patterns of files that go from the repository where this upload has none of that name (shards of an older
    model). Nothing is sent where this very content was pushed there before. Raises EftError where the hub refuses, is not
    reached, or the connection is cut; the folder stays, and the same command continues.
    """
    names = sorted(set(files))
    content, record = _content(folder, names), _read(folder)
    key = f"{_api().endpoint} {place.kind} {place.name} {place.revision or 'main'}"
    if record.get(key, {}).get("content") == content:
        return str(record[key]["address"])
    place.check()
    try:
        _claim(place)
        if place.revision:
            _call(place, _api().create_branch, place.name, repo_type=place.kind, branch=place.revision, exist_ok=True)
        done = _call(place, _api().upload_folder, repo_id=place.name, repo_type=place.kind, folder_path=folder,
                     revision=place.revision, allow_patterns=[glob.escape(n) for n in names],
                     delete_patterns=list(replaces) or None, commit_message=f"{KINDS[place.kind].capitalize()} by eft {__version__}")  # fmt: skip
    except _Unreachable as e:
        raise _refused(place, str(e), f"{folder} is finished and stays: run the same command again") from None
    address = str(done.commit_url)
    manifest.write_json(folder / RECORD, {**record, key: {"content": content, "address": address}})
    print(f"hub: pushed to {address}", file=sys.stderr, flush=True)
    return address


def pushed(folder: Path, kind: str) -> str | None:
    """The name under which `folder` was pushed last, or None."""
    found = [key.split(" ")[2] for key in _read(folder) if key.split(" ")[1] == kind]
    return found[-1] if found else None


class _Unreachable(Exception):
    """No answer from the hub."""


def _api() -> Any:
    from huggingface_hub import HfApi

    return HfApi(library_name="eft", library_version=__version__)


def _claim(place: Place) -> None:
    """Make the repository, or see that the one that is there may be written over."""
    api = _api()
    _call(place, api.create_repo, place.name, repo_type=place.kind, private=place.private or None, exist_ok=True)
    seen = _call(place, api.repo_info, place.name, repo_type=place.kind)
    if place.private and seen.private is False:
        raise EftError("this repository is public", where=place.name, why="--private was given, and it exists already",
                       way_out="make it private on the hub, or give another name")  # fmt: skip
    foreign = sorted(s.rfilename for s in seen.siblings or [] if s.rfilename not in PLAIN)
    if not place.revision and foreign and not set(_tags(place)) & set(OURS):
        why = f"it holds {foreign[0]}{' and more' if len(foreign) > 1 else ''}, and its card is none of eft's"
        raise EftError(f"this name is taken by another {KINDS[place.kind]}", where=place.name, why=why,
                       way_out="give another name, or --revision BRANCH to put it beside")  # fmt: skip


def _tags(place: Place) -> list[str]:
    """The tags of the card that is there; none where there is no card, or one that cannot be read."""
    import yaml

    try:
        file = _call(place, _api().hf_hub_download, place.name, "README.md", repo_type=place.kind)
        header = yaml.safe_load(Path(file).read_text(encoding="utf-8").split("---")[1])
        tags = header.get("tags")
        return [str(t) for t in tags] if isinstance(tags, list) else []
    except (EftError, OSError, ValueError, IndexError, AttributeError, yaml.YAMLError):
        return []


def _call(place: Place, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Call the client. Raises _Unreachable without an answer, EftError for an answer that says no."""
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

    try:
        return function(*args, **kwargs)
    except (HfHubHTTPError, LocalTokenNotFoundError) as e:
        status = getattr(getattr(e, "response", None), "status_code", None)
        if status is not None and status >= 500:
            raise _Unreachable(_first(e)) from None
        raise _refused(place, _first(e), _way_out(status)) from None
    except (*_network(), OSError) as e:
        raise _Unreachable(f"{type(e).__name__}: {_first(e)}" if _first(e) else type(e).__name__) from None
    except (ValueError, RuntimeError) as e:
        raise _refused(place, _first(e), "run the same command again") from None


def _network() -> tuple[type[Exception], ...]:
    """The errors of the HTTP library under the client, whichever this release has."""
    found: list[type[Exception]] = []
    for name in ("httpx2", "httpx", "requests"):
        try:
            module: Any = importlib.import_module(name)
        except ImportError:
            continue
        found.append(module.HTTPError if hasattr(module, "HTTPError") else module.RequestException)
    return tuple(found)


def _way_out(status: int | None) -> str:
    from huggingface_hub import get_token

    if not (os.environ.get("HF_TOKEN") or get_token()):
        return "set HF_TOKEN to a token with write access, or run `hf auth login`"
    if status == 401:
        return "this token is not valid here: set HF_TOKEN to one with write access, or run `hf auth login`"
    if status == 403:
        return "use a name of your own or of an organisation that you may write to, and a token with write access"
    return "run the same command again; what has arrived is not sent again"


def _refused(place: Place, why: str, way_out: str) -> EftError:
    return EftError(f"the {KINDS[place.kind]} could not be pushed", where=place.name, why=why, way_out=way_out)


def _first(e: Exception) -> str:
    """The line of an error that says something."""
    lines = [line.strip() for line in str(e).splitlines() if line.strip()]
    said = [line for line in lines if not line.lower().startswith(("client error", "server error", "for more information"))]
    return (said or lines or [""])[0][:300]


def _read(folder: Path) -> dict[str, Any]:
    try:
        value = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _content(folder: Path, names: list[str]) -> str:
    """What tells this upload from another: names and hashes, those of the manifest where it has them."""
    outputs = (manifest.read(folder) or {}).get("outputs", {})
    digest = hashlib.sha256()
    for name in names:
        known = outputs.get(name, {}).get("sha256")
        digest.update(f"{name}\0{known or manifest.file_hash(folder / name)}\n".encode())
    return digest.hexdigest()
