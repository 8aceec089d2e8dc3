"""Hostile candidates: what `eft tasks validate` and tests/attacks throw at a task. The list is in attack_list.py.

Three kinds. An *act* tries something forbidden while the program is loaded; the program then goes on as the seed does,
so that its score must be the seed's own, and whatever it achieved it prints as a breach. All acts fit into one program.
A *value* is handed back instead of an answer: it must be refused, or scored like any other answer, never above the best
known value. An *end* has to be stopped from outside: it must come back in bounded time, without a score or with the
seed's.

What cannot be seen from inside is watched from outside (`Watch`): processes and files that were left, a connection that
reached us, and whether this process still has its environment to itself.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import secrets
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from eft.records import Validity
from eft.tasks import sandbox
from eft.tasks.attack_list import ACTS, CONTAINED, CPP_ACTS, CPP_ENDS, CPP_VALUES, ENDS, PREFACE, VALUES
from eft.tasks.evaluate import Evaluation, evaluate
from eft.tasks.task import SHIPPED, Task

BREACH = "EFT-BREACH:"
WALL_S = 1.2  # what a sleeper is given here, whatever its task allows


@dataclass(frozen=True)
class Failed:
    """An attack that got through, and how."""

    attack: str
    how: str


def functions(code: str) -> list[str]:
    """Names of the functions that a Python program defines at its top."""
    return [n.name for n in ast.parse(code).body if isinstance(n, ast.FunctionDef)]


def act_program(task: Task, watch: Watch, names: list[str] | None = None) -> str:
    """The seed with these acts (all that this task's isolation and the sandbox level forbid) before its functions."""
    boxed = sandbox.level() == "bubblewrap"
    hidden = boxed or "with Landlock" in sandbox.describe()
    facts = {
        "HOMEFILES": home_files(task.folder), "EVALUATOR": str(task.evaluator), "SUITES": str(SHIPPED / "suites"),
        "TASKS": str(SHIPPED), "MARK": watch.mark, "BREACH": BREACH, "CANARY": watch.canary, "CLIENT": os.getpid(),
        "PORT": watch.port, "ABSTRACT": watch.abstract,
    }  # fmt: skip
    if task.language == "cpp":
        chosen = [(n, code) for n, code in CPP_ACTS.items() if names is None or n in names]
        calls = "".join(f'try_act("{name}", [] {{ {code} }});\n' for name, code in chosen)
        text = _filled(PREFACE["cpp"], facts) + _filled(calls, facts) + "return 0; }();\n"
        return task.seed() + "\n" + text
    parts = [_filled(PREFACE["python"], facts)]
    for act in ACTS:
        if names is not None and act.name not in names:
            continue
        if (task.isolation == "contained" and not (act.contained and boxed)) or (act.hides and not hidden):
            continue  # a contained evaluation without bubblewrap may do what this user may: sandbox.py says so
        body = "".join(f"    {line}\n" for line in _filled(act.code, facts).splitlines())
        parts.append(f"def _act():\n{body}_eft_try({act.name!r}, _act)\n")
    return task.seed() + "\n" + "".join(parts)


def home_files(*known: Path) -> list[str]:
    """What lies in this user's home, but for the way to the interpreter and to `known` (which a candidate is shown)."""
    shown = [Path(p).resolve() for p in (sys.base_prefix, sys.prefix, *known)]
    with contextlib.suppress(OSError):
        return [str(f) for f in Path.home().iterdir() if not any(p.is_relative_to(f) for p in shown)][:50]
    return []


def _filled(code: str, facts: dict[str, object]) -> str:
    return re.sub(r"@([A-Z]+)@", lambda m: str(facts[m[1]]), code)


def value_programs(task: Task) -> dict[str, str]:
    """Programs that hand back something else than an answer."""
    if task.language == "cpp":
        return {name: code for name, code in CPP_VALUES.items()}
    if task.language != "python":
        return {}
    names = functions(task.seed())
    found = {}
    for name, code in VALUES.items():
        if task.isolation == "contained" and name not in CONTAINED:
            continue
        *lines, last = code.splitlines()
        head = "".join(f"    {line}\n" for line in lines)
        defined = "".join(f"def {n}(*args, **named):\n{head}    return {last}\n" for n in names)
        found[name] = "import os, sys\n" + defined
    return found


def end_programs(task: Task, watch: Watch) -> dict[str, str]:
    """Programs that have to be stopped."""
    if task.language == "cpp":
        return dict(CPP_ENDS)
    chosen = [name for name in ENDS if task.isolation == "isolated" or name in CONTAINED]
    if sandbox.level() != "bubblewrap" and task.isolation == "contained":
        chosen = [name for name in chosen if not name.startswith("fills")]
    head = f"{task.seed()}\nimport os, sys, time\n"
    return {name: f"{head}{_filled(ENDS[name], {'MARK': watch.mark})}\n" for name in chosen}


# ---- from outside ------------------------------------------------------------------------------------------------


class Watch:
    """What an attack could reach or leave, watched from this process. Use `with watched() as watch`."""

    def __init__(self, *folders: Path) -> None:
        self.folders = {*map(str, folders), tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm", "/usr/lib",
                        os.getcwd(), str(Path.home())}  # fmt: skip
        self.canary = secrets.token_hex(8)
        # in the name of every file, and on the command line of every process, that an attack leaves
        self.mark = f"eft-was-here-{self.canary}"
        self.reached: list[str] = []
        self.abstract = f"eft-{self.canary}"
        self._sockets = [socket.socket(socket.AF_INET), socket.socket(socket.AF_UNIX)]
        self._sockets[0].bind(("127.0.0.1", 0))
        self._sockets[1].bind(f"\0{self.abstract}")
        self.port = self._sockets[0].getsockname()[1]
        for s, name in zip(self._sockets, ("a TCP port", "an abstract socket"), strict=True):
            s.listen()
            threading.Thread(target=self._accept, args=(s, name), daemon=True).start()
        os.environ["EFT_CANARY"] = self.canary

    def _accept(self, listener: socket.socket, name: str) -> None:
        with contextlib.suppress(OSError):
            while True:
                listener.accept()[0].close()
                self.reached.append(name)

    def left(self) -> list[str]:
        """What was left behind or reached, in words. Files are removed, so that each attack answers for itself."""
        found = [f"it reached {name} of this machine" for name in self.reached]
        self.reached.clear()
        for folder in self.folders:
            for file in Path(folder).glob(f"*{self.mark}*"):
                found.append(f"it left {file}")
                with contextlib.suppress(OSError):
                    file.unlink()
        until = time.monotonic() + 3.0
        while (rest := self._processes()) and time.monotonic() < until:
            time.sleep(0.02)
        return found + [f"it left the process {p}" for p in rest]

    def _processes(self) -> list[str]:
        """Marked processes, anywhere on this machine."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            line = " ".join(process.info["cmdline"] or [])
            if self.mark in line:
                found.append(line[:200])
        return found

    def close(self) -> None:
        for s in self._sockets:
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)
            s.close()
        os.environ.pop("EFT_CANARY", None)


@contextlib.contextmanager
def watched(*folders: Path) -> Iterator[Watch]:
    watch = Watch(*folders)
    try:
        yield watch
    finally:
        watch.close()


# ---- a task under attack -----------------------------------------------------------------------------------------


def attack(
    task: Task, seed: Evaluation, *, ends: bool = True, values: Collection[str] | None = None
) -> tuple[int, list[Failed]]:
    """Throw everything at a task: (number of attacks, those that got through). `seed`: the evaluation of its seed.

    `ends`: also those that run into a limit, which take a second or two each. `values`: only these (None: all).
    """
    count, failed = 0, []
    with watched(task.folder) as watch:
        program = act_program(task, watch)
        count += program.count("_eft_try(") - 1 if task.language == "python" else program.count("try_act(") - 1
        failed += judge_act("acts", evaluate(task, program), seed, watch, contained=task.isolation == "contained")
        for name, code in value_programs(task).items():
            if values is not None and name in VALUES and name not in values:
                continue
            count += 1
            failed += judge_value(name, evaluate(task, code), task)
        failed += [Failed("one of the values", how) for how in watch.left()]
        if ends:
            with capped(WALL_S if task.isolation == "isolated" else max(5.0, 3 * seed.seconds)):
                for name, code in end_programs(task, watch).items():
                    count += 1
                    failed += judge_end(name, evaluate(task, code), seed, task, watch)
    return count, failed


def judge_act(name: str, found: Evaluation, seed: Evaluation, watch: Watch, contained: bool = False) -> list[Failed]:
    said = str(found.artifacts.get("stderr", ""))
    failed = [Failed(line.partition(BREACH)[2].strip(), "it says so") for line in said.splitlines() if BREACH in line]
    if not failed and found.score != seed.score and not contained:
        why = found.metrics.get("error", "")
        failed.append(Failed(name, f"the score is {found.score}, not the seed's {seed.score} {why}"))
    return failed + [Failed(name, how) for how in watch.left()]


def judge_value(name: str, found: Evaluation, task: Task) -> list[Failed]:
    failed = []
    if found.validity is not Validity.VALID:
        if "the scorer failed" in str(found.metrics.get("error", "")):
            failed.append(Failed(name, f"the scorer broke: {found.metrics['error']}"))
        return failed
    if task.isolation == "contained" or task.best_known is None or found.raw is None:
        return failed
    beyond = found.raw - task.best_known if task.direction == "max" else task.best_known - found.raw
    if beyond > 1e-6 * max(1.0, abs(task.best_known)):
        failed.append(Failed(name, f"{task.raw_metric} is {found.raw}, better than the best known {task.best_known}"))
    return failed


def judge_end(name: str, found: Evaluation, seed: Evaluation, task: Task, watch: Watch) -> list[Failed]:
    failed = [Failed(name, how) for how in watch.left()]
    if found.validity is Validity.VALID and found.score != seed.score and task.isolation == "isolated":
        failed.append(Failed(name, f"the score is {found.score}, not the seed's {seed.score}"))
    if found.seconds > 30.0:
        failed.append(Failed(name, f"it took {found.seconds:.0f} s"))
    return failed


@contextlib.contextmanager
def capped(wall_s: float) -> Iterator[None]:
    """No evaluation of this process takes longer than this: for attacks that only wait."""
    before, sandbox.wall_cap_s = sandbox.wall_cap_s, wall_s
    try:
        yield
    finally:
        sandbox.wall_cap_s = before
