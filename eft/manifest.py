"""What a stage wrote, from what, and whether that is still true: `manifest.json` beside every output.

A stage's output counts as finished only when its manifest exists; the manifest is written last and atomically. It holds
the stage, the resolved config, fingerprints of the inputs, hashes of the outputs and the counts. `up_to_date` is the
whole caching rule of the pipeline.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from eft import __version__
from eft.errors import EftError, UsageError

NAME = "manifest.json"


@contextlib.contextmanager
def clear_disk_errors(where: Path) -> Iterator[None]:
    """Turn a full disk, a read-only or forbidden folder, a file in the way into one clear EftError; what was finished stays."""
    try:
        yield
    except OSError as e:
        if e.errno in (errno.ENOSPC, errno.EDQUOT):
            raise EftError("the disk is full", where=where, way_out="free space and run the same command again; "
                           "finished outputs are kept") from e  # fmt: skip
        if e.errno in (errno.EEXIST, errno.ENOTDIR, errno.EISDIR):
            kind = "folder" if e.errno == errno.EISDIR else "file"
            raise UsageError("the output cannot be written", where=where, why=f"a {kind} is in the way") from e
        if e.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise EftError("the output cannot be written", where=where, why=e.strerror) from e
        raise


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`; renamed over `path` (after fsync) when the block ends well, removed otherwise."""
    with clear_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        os.close(fd)
        temporary = Path(name)
        try:
            yield temporary
            with open(temporary, "rb") as f:
                os.fsync(f.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` atomically."""
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON to `path` atomically. NaN and infinity are refused (they are not JSON)."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False, default=str) + "\n")


def file_hash(path: Path) -> str:
    """SHA-256 of a file's content, in hex."""
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def fingerprint(path: Path) -> str:
    """What identifies an input: a finished stage by its manifest's outputs, a file by content, a folder by its listing.

    Folders without a manifest (raw logs, models) are identified by names, sizes and modification times: hashing tens of
    gigabytes of logs for every check would cost more than the stage.
    """
    if not path.exists():
        return "absent"
    if path.is_file():
        return file_hash(path)
    done = read(path)
    digest = hashlib.sha256()
    if done is not None:
        digest.update(json.dumps(done["outputs"], sort_keys=True).encode())
        return digest.hexdigest()
    for lines in _listing(path, ""):
        digest.update("".join(lines).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _listing(folder: Path | str, prefix: str) -> Iterator[list[str]]:
    """Name within the folder, size and time of all files below, folder by folder, in a fixed order. Links to folders are
    not followed. Logs may have a hundred thousand files, hence no Path for each."""
    lines, below = [], []
    try:
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)  # so that a file is found by its name alone
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        below.append(entry.name)
                    elif entry.is_file():
                        try:
                            s = entry.stat()
                        except OSError:  # gone in the meantime
                            continue
                        lines.append(f"{prefix}{entry.name}\0{s.st_size}\0{s.st_mtime_ns}\n")
        finally:
            os.close(place)
    except OSError:
        return
    lines.sort()
    yield lines
    for name in sorted(below):
        yield from _listing(f"{folder}/{name}", f"{prefix}{name}/")


def location(out: Path) -> Path:
    """Where the manifest of `out` is: inside a folder; beside a single file, hidden (`.report.html.manifest.json`)."""
    return out.with_name(f".{out.name}.{NAME}") if out.is_file() else out / NAME


def read(out: Path) -> dict[str, Any] | None:
    """The manifest of the finished output `out`, or None where there is none (or a torn one)."""
    try:
        value = json.loads(location(out).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) and isinstance(value.get("outputs"), dict) else None


def require(out: Path, stage: str) -> dict[str, Any]:
    """The manifest of `out`, which must be a finished output of `stage`. Raises EftError otherwise."""
    done = read(out)
    if done is None:
        why = "the folder does not exist" if not out.exists() else "it has no manifest.json, so the stage did not finish"
        raise EftError(f"no finished output of 'eft {stage}'", where=out, why=why, way_out=f"run 'eft {stage}' first")
    return done


def _config_key(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a config that decides the output: not where it is written."""
    return {k: v for k, v in config.items() if k not in ("root", "output")}


def up_to_date(out: Path, stage: str, config: dict[str, Any], inputs: Iterable[Path]) -> bool:
    """True where `out` was made by this stage, version and config, from inputs that have not changed, and is intact."""
    done = read(out)
    if done is None or done.get("stage") != stage or done.get("version") != __version__:
        return False
    if _config_key(done.get("config", {})) != _config_key(json.loads(json.dumps(config, default=str))):
        return False
    base = location(out).parent
    if any(not (base / name).is_file() or (base / name).stat().st_size != o["bytes"] for name, o in done["outputs"].items()):
        return False
    return done.get("inputs") == {str(p): fingerprint(p) for p in inputs}


def write(
    out: Path, stage: str, config: dict[str, Any], inputs: Iterable[Path], outputs: Iterable[Path],
    counts: dict[str, Any], started: float,
) -> dict[str, Any]:  # fmt: skip
    """Write the manifest of `out`, the last act of a stage. `started`: time.time() at its start. Returns the manifest."""
    value = {
        "stage": stage,
        "version": __version__,
        "config": config,
        "inputs": {str(p): fingerprint(p) for p in inputs},
        "outputs": {str(p.relative_to(location(out).parent)): {"bytes": p.stat().st_size, "sha256": file_hash(p)} for p in outputs},
        "counts": counts,
        "started": started,
        "seconds": round(time.time() - started, 3),
    }
    write_json(location(out), value)
    return value


@contextlib.contextmanager
def building(out: Path) -> Iterator[Path]:
    """Build `out` aside and swap it in whole: for stages that are quick enough to be done again after an interruption.

    Yields an empty folder beside `out`; when the block ends well it replaces `out` (an older output included).
    """
    with clear_disk_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
        try:
            yield aside
            os.chmod(aside, 0o755)
            old = None
            if out.exists():
                old = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}.old."))
                os.replace(out, old / "old")
            os.replace(aside, out)
            if old is not None:
                shutil.rmtree(old, ignore_errors=True)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
