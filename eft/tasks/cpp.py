"""C++ candidates: compile in a sandbox of its own (once per source), run in the warm sandbox (once per input).

    g++ -O2 -std=c++17, in bubblewrap with nothing but the compiler's own folders to include from

The compiler is a program that reads what it is told to and can be made to run for hours, so it has its limits too, and
what it says goes to the mutator. Binaries are kept in memory only: the last few, by the hash of their source.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from eft.errors import EftError
from eft.records import Validity
from eft.tasks import oneshot, sandbox

FLAGS = ("-O2", "-std=c++17", "-x", "c++")
BOUNDS = oneshot.Bounds(wall_s=30.0, memory_mb=2048, processes=32, disk_mb=64, result_kb=8192)
KEPT = 16
TEXT = 1500  # characters of the compiler's text that are handed on: its first errors say most


@dataclass(frozen=True)
class Compiled:
    """`binary` is empty where it did not compile; then `text` is what the compiler said."""

    binary: bytes
    text: str
    validity: Validity = Validity.VALID


_lock = threading.Lock()
_kept: OrderedDict[str, Compiled] = OrderedDict()


def compiler() -> Path:
    """The C++ compiler: $CXX, else g++. Raises EftError where there is none."""
    name = os.environ.get("CXX") or "g++"
    found = shutil.which(name)
    if found is None:
        way_out = "install g++ (apt-get install g++, dnf install gcc-c++), or name one in $CXX"
        raise EftError("there is no C++ compiler", where=name, why="this task's programs are C++", way_out=way_out)
    return Path(found)


def compile_program(source: bytes) -> Compiled:
    """The program, or the compiler's complaint. Raises EftError where there is no compiler."""
    key = hashlib.sha256(source).hexdigest()
    with _lock:
        if key in _kept:
            _kept.move_to_end(key)
            return _kept[key]
    compiled = _compile(source)
    with _lock:
        _kept[key] = compiled
        while len(_kept) > KEPT:
            _kept.popitem(last=False)
    return compiled


def _compile(source: bytes) -> Compiled:
    program = compiler()
    home = program.resolve().parent.parent  # a compiler outside the system folders brings its own
    readable = () if str(home).startswith(("/usr", "/bin")) or home == Path("/") else (home,)
    # The shell hands the binary over the result descriptor, so that it never lies where anything else could find it.
    script = 'compiler=$1; result=/proc/self/fd/$2; shift 2; "$compiler" "$@" program.cpp -o program'
    script += ' && cat program >"$result"'
    ended = oneshot.run(
        "launch.py",
        lambda work, result: ["/bin/sh", "-c", script, "sh", str(program), result, *FLAGS],
        BOUNDS,
        level=sandbox.level(),
        files={"program.cpp": source},
        readable=readable,
        tail=64 << 10,
    )
    if ended.why == "timeout":
        return Compiled(b"", f"not compiled after {BOUNDS.wall_s:g} s", Validity.TIMEOUT)
    if ended.why:
        return Compiled(b"", f"the compiler was ended: {ended.why}", Validity.ERROR)
    if ended.exit_code != 0 or not ended.result:
        text = ended.printed.strip()[:TEXT] or f"the compiler ended with exit status {ended.exit_code}"
        return Compiled(b"", text, Validity.ERROR)
    return Compiled(ended.result, ended.printed[:TEXT])
