"""Pickles of unknown origin, read without running anything in them.

A pickle is a program: it may name any importable object and have it called. Here every name gives an inert `Opaque`,
whatever it is; calling one, or building on one, only remembers what it was given. So nothing is imported, nothing is
called, and what comes out are plain containers, text and numbers, with `Opaque` objects in between.

The work is done in a process of its own with limits on memory (`MEMORY`), processor time and written files (none): a
pickle can also ask for a list of 2^40 places, and that must cost no more than this process. It answers in JSON lines.

    python -m data_tools.readers.pickles FILE        what `programs` reads
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import resource
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data_tools.readers.files import RECORD, Problems, Unreadable, opened, parse
from data_tools.readers.scaffold_rows import plain

MEMORY = 1 << 30  # bytes of address space for the reading process
SECONDS = 120  # of its processor time
LARGEST = 256 << 20  # bytes of a pickle
FIELDS = ("id", "code", "language", "returncode", "output", "error", "warning", "eval_metrics", "fitness", "parent_id",
          "iteration_found", "generation", "island_found", "prompt_id", "inspiration_ids", "model_id",
          "model_msg")  # fmt: skip


class Opaque:
    """Stands for any object that a pickle names. `state`: what was set on it; `given`: what it was made with."""

    name = ""

    def __new__(cls, *given: Any, **named: Any) -> Opaque:
        made = object.__new__(cls)
        made.given, made.state = given, {}
        return made

    def __init__(self, *given: Any, **named: Any) -> None:
        pass

    def __call__(self, *given: Any, **named: Any) -> Opaque:
        return Opaque(*given)

    def __setstate__(self, state: Any) -> None:
        # A dataclass has a dict; an object with slots a pair (dict or None, dict).
        for part in state if isinstance(state, tuple) and len(state) == 2 else (state,):
            if isinstance(part, dict):
                self.state.update((k, v) for k, v in part.items() if isinstance(k, str))

    def append(self, value: Any) -> None:
        """What a list subclass is given."""

    def extend(self, values: Any) -> None:
        """The same, in bulk."""

    def add(self, value: Any) -> None:
        """What a set subclass is given."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """What a dict subclass is given (a defaultdict, an OrderedDict)."""
        if isinstance(key, str):
            self.state[key] = value

    def __hash__(self) -> int:
        return id(self)


class _Scalar(Opaque):
    """numpy's way to pickle a number: scalar(dtype, eight bytes)."""


class _Type(Opaque):
    """numpy.dtype("f8", …)."""


_KNOWN = {"scalar": _Scalar, "dtype": _Type}


class _Inert(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type:
        base = _KNOWN.get(name, Opaque) if module.startswith("numpy") else Opaque
        return type("Opaque", (base,), {"name": f"{module}.{name}"[:200]})

    def persistent_load(self, pid: Any) -> Any:
        return None


def load(data: bytes) -> Any:
    """What a pickle holds. Raises Unreadable. Bounded in what it runs (nothing), not in memory: see `programs`."""
    try:
        return _Inert(io.BytesIO(data)).load()
    except RecursionError:
        raise Unreadable("nested too deeply") from None
    except MemoryError:
        raise Unreadable("asks for more memory than it may have") from None
    except Exception as e:  # an unpickler meets operations in any order: it fails in any way
        raise Unreadable(f"not a pickle, or cut off: {type(e).__name__}: {str(e)[:200]}") from None


def value(found: Any) -> Any:
    """A value from a pickle as plain data: numpy numbers become numbers, other objects None."""
    return plain(found, other=_number)


_FORMATS = {"f8": "d", "f4": "f", "f2": "e", "i8": "q", "i4": "i", "i2": "h", "i1": "b", "u8": "Q", "u4": "I",
            "u2": "H", "u1": "B", "b1": "?"}  # fmt: skip


def _number(found: Any) -> Any:
    if not isinstance(found, _Scalar):
        return None
    kind, raw = (*found.given, None, None)[:2]
    code = kind.given[0] if isinstance(kind, _Type) and kind.given else None
    if not isinstance(code, str) or not isinstance(raw, bytes | str):
        return None
    raw = raw.encode("latin-1", "replace") if isinstance(raw, str) else raw
    with contextlib.suppress(struct.error, KeyError):
        return struct.unpack("<" + _FORMATS[code.lstrip("<>|=")], raw)[0]
    return None


# -------------------------------------------------------------------------------------------- in a process of its own


def _answer(path: Path) -> None:
    """Write a checkpoint's programs, prompts and errors as JSON lines."""
    for kind, record in _records(path):
        line = json.dumps({"kind": kind, **record}, ensure_ascii=True)
        if len(line) < RECORD:
            print(line)
        else:
            print(json.dumps({"kind": "problem", "why": f"a record of more than {RECORD >> 20} MiB: not read"}))


def _records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        with opened(path) as f:
            data = f.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise Unreadable(f"larger than {LARGEST >> 20} MiB: not read")
        found = load(data)
        del data
    except (OSError, Unreadable) as e:
        yield "problem", {"why": getattr(e, "strerror", None) or str(e)}
        return
    if not isinstance(found, dict) or not isinstance(found.get("sol_db"), Opaque):
        yield "problem", {"why": "no 'sol_db' in it: not a checkpoint of CodeEvolve"}
        return
    for kind, name in (("program", "sol_db"), ("prompt", "prompt_db")):
        state = getattr(found.get(name), "state", {})
        programs, alive = state.get("programs"), state.get("is_alive")
        island = value(state.get("id"))
        for key, program in (programs.items() if isinstance(programs, dict) else ()):
            if isinstance(program, Opaque):
                living = alive.get(key) if isinstance(alive, dict) and isinstance(key, str) else None
                said = {k: value(program.state.get(k)) for k in FIELDS if k in program.state}
                yield kind, {"island": island if isinstance(island, int) else -1, "fields": said,
                             "alive": living if isinstance(living, bool) else None}  # fmt: skip
            else:
                yield "problem", {"why": "a program that is no object"}
    state = found.get("evolve_state")
    for kind in ("errors", "tok_usage"):
        entries = state.get(kind) if isinstance(state, dict) else None
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict):
                yield kind, {"fields": value(entry)}


def _limit() -> None:
    """Little memory, little time, no files written: for this process, before it opens the file."""
    for limit, most in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_CPU, SECONDS), (resource.RLIMIT_FSIZE, 0),
                        (resource.RLIMIT_CORE, 0)):  # fmt: skip
        resource.setrlimit(limit, (most, most))


def programs(path: Path, problems: Problems) -> Iterator[dict[str, Any]]:
    """The records of a CodeEvolve checkpoint, one by one. What cannot be read is named in `problems`."""
    package = Path(__file__).resolve().parent.parent.parent
    env = {"PYTHONPATH": str(package), "PATH": os.environ.get("PATH", ""), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-s", "-P", "-m", "data_tools.readers.pickles", str(path.absolute())]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env,
                          cwd=package) as child:  # fmt: skip
        for raw in child.stdout:
            try:
                record = parse(raw)
            except Unreadable as e:
                problems.add(path, e)
                continue
            if isinstance(record, dict) and record.get("kind") == "problem":
                problems.add(path, record.get("why"))
            elif isinstance(record, dict):
                yield record
        said = child.stderr.read(4000).decode("utf-8", "replace").strip()
    if child.returncode != 0:
        why = said.rpartition("\n")[2][:200] or f"signal {-child.returncode}"
        problems.add(path, f"reading it took more than it may ({why})")


if __name__ == "__main__":
    _limit()
    _answer(Path(sys.argv[1]))
