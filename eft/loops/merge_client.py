"""Asking a merge's worker, and keeping it alive.

`keeping(work)` starts the worker and starts it again when it was killed; DEATHS deaths without a score in between are one
clear error, told to everybody who asks. Whoever asks outside of that (`eft tasks run` on the folder) starts a worker of
his own, which ends with his process. Nothing waits for ever: a worker that gives no sign for SILENT_S is given up.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eft import manifest
from eft.errors import EftError
from eft.loops.merge_recipe import Recipe, RecipeError, parse
from eft.loops.merge_score import Results, read_plan
from eft.loops.merge_worker import SOCKETS, STATE
from eft.records import Validity
from eft.resources import PACKAGE
from eft.tasks import scoring

SILENT_S, START_S = 60.0, 600.0
DEATHS = 6  # without a score in between: one recipe may cost two
LOG = "worker.log"
BEST_KNOWN_FIRST = 12  # tasks that an artifact names


class Died(Exception):
    """The worker ended before it answered."""


# ---- the process -------------------------------------------------------------------------------------------------


def _start(work: Path) -> subprocess.Popen:
    env = dict(os.environ)
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(PACKAGE.parent), env.get("PYTHONPATH"))))
    with open(work / LOG, "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "eft.loops.merge_worker", str(work), str(os.getpid())],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, start_new_session=True,
        )  # fmt: skip


def _ready(work: Path, process: subprocess.Popen) -> None:
    """Wait for a started worker. Raises EftError where it ends, or takes longer than START_S."""
    deadline = time.monotonic() + START_S
    while (_state(work) or {}).get("pid") != process.pid:
        if process.poll() is not None:
            raise EftError("the merge cannot be evaluated", where=work / LOG, why=_reason(work, process.returncode))
        if time.monotonic() > deadline:
            _end(process)
            raise EftError("the merge's worker did not start", where=work / LOG, why=f"within {START_S:.0f} s")
        time.sleep(0.05)


def _end(process: subprocess.Popen) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(3)
            return


def _reason(work: Path, code: int) -> str:
    from eft.search.process import last_error

    if code < 0:
        return f"its worker was ended by signal {-code}" + (" (out of memory?)" if code == -signal.SIGKILL else "")
    return last_error(work / LOG)


def _state(work: Path) -> dict[str, Any] | None:
    """What worker.json says, where the process that keeps the worker is alive."""
    try:
        state = json.loads((work / STATE).read_text(encoding="utf-8"))
        os.kill(int(state["keeper"]), 0)
        return state
    except PermissionError:
        return state
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _sweep(work: Path) -> None:
    """Remove the socket that a killed worker has left, with its folder."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        folder = Path(json.loads((work / STATE).read_text(encoding="utf-8"))["socket"]).parent
        if folder.name.startswith(SOCKETS):
            shutil.rmtree(folder, ignore_errors=True)


class Keeper:
    """Keeps one worker running until it is closed."""

    def __init__(self, work: Path) -> None:
        """Raises EftError where it cannot start: what was wrong, in one message."""
        self.work, self._closing, self._deaths, self._owner = work, threading.Event(), 0, os.getpid()
        _sweep(work)
        with contextlib.suppress(FileNotFoundError):
            (work / STATE).unlink()
        self.process = _start(work)
        try:
            _ready(work, self.process)
        except BaseException:
            _end(self.process)
            raise
        self._size = self._scores()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _scores(self) -> int:
        try:
            return Results(self.work).file.stat().st_size
        except OSError:
            return 0

    def _watch(self) -> None:
        while not self._closing.wait(0.2):
            code = self.process.poll()
            if code is None:
                continue
            self._deaths = 1 if self._scores() > self._size else self._deaths + 1
            self._size = self._scores()
            reason = _reason(self.work, code)
            try:
                if self._deaths >= DEATHS:
                    raise EftError("the merge's worker died again and again", where=self.work / LOG, why=reason)
                print(f"merge: {reason}; starting it again", file=sys.stderr, flush=True)
                _sweep(self.work)
                self.process = _start(self.work)
                _ready(self.work, self.process)
            except (EftError, OSError) as e:
                manifest.write_json(self.work / STATE, {"keeper": os.getpid(), "error": str(e)})
                return

    def close(self) -> None:
        if os.getpid() != self._owner:
            return  # a fork: the worker is its parent's
        self._closing.set()
        _end(self.process)
        self._thread.join(5)
        _end(self.process)  # one that was started in the meantime
        with contextlib.suppress(FileNotFoundError):
            (self.work / STATE).unlink()


@contextlib.contextmanager
def keeping(work: Path) -> Iterator[None]:
    """A worker for everybody on this machine who asks, restarted where it is killed. Raises EftError where it cannot
    start, or somebody else keeps one here."""
    from eft.gate.evidence import locked

    with locked(work / ".lock", "is evaluating this merge"):
        keeper = Keeper(work)
        try:
            yield
        finally:
            keeper.close()


_own: dict[Path, Keeper] = {}
_own_lock = threading.Lock()
_results: dict[Path, Results] = {}


def _ensure(work: Path) -> dict[str, Any]:
    """The state of a worker that can be asked, one of our own where nobody keeps one. Raises EftError."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        state = _state(work)
        if state and "error" in state:
            raise EftError("the merge cannot be evaluated", where=work / LOG, why=state["error"])
        if state and "socket" in state:
            return state
        with _own_lock:
            if state is None and work not in _own:
                _start_own(work)
                continue
        time.sleep(0.1)
    raise EftError("the merge's worker does not come back", where=work / LOG)


def _start_own(work: Path) -> None:
    """A worker for this process, unless somebody else is about to have one here. Raises EftError."""
    from eft.gate.evidence import locked

    stack = contextlib.ExitStack()
    try:
        stack.enter_context(locked(work / ".lock", "is evaluating this merge"))
    except EftError:
        time.sleep(0.2)
        return
    try:
        _own[work] = Keeper(work)
    except BaseException:
        stack.close()
        raise
    stack.callback(_own[work].close)
    atexit.register(stack.close)


# ---- one question ------------------------------------------------------------------------------------------------


def ask(work: Path, text: str, split: str) -> dict[str, Any]:
    """The score of a recipe (its text) on a set of rows: {fitness, …}, or {error} where the recipe is a failed one.

    Raises EftError where the worker cannot be had.
    """
    for _ in range(2):
        state = _ensure(work)
        try:
            told = _exchange(state["socket"], {"recipe": text, "rows": split})
        except Died:
            _gone(work, state["pid"])
            continue
        if "broken" in told:
            raise EftError("the merge cannot be evaluated", where=work / LOG, why=told["broken"])
        if "failed" in told:
            return {"error": told["why"], "failed": told["failed"]}
        return told["result"]
    return {"error": "its evaluation ended the worker twice, perhaps for lack of memory", "failed": "memory"}


def _exchange(address: str, request: dict[str, Any]) -> dict[str, Any]:
    data = b""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
            s.settimeout(SILENT_S)
            s.connect(address)
            s.sendall(json.dumps(request).encode() + b"\n")
            while part := s.recv(1 << 16):
                data += part
        return json.loads(data)
    except (OSError, ValueError):
        raise Died from None


def _gone(work: Path, pid: int) -> None:
    """Wait until worker `pid` has given way to another, or to an error; end it where it only hangs."""
    deadline = time.monotonic() + 5
    while (state := _state(work)) is not None and state.get("pid") == pid:
        if time.monotonic() > deadline:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            deadline = time.monotonic() + SILENT_S
        time.sleep(0.1)


# ---- what an evaluator says --------------------------------------------------------------------------------------


def evaluate(folder: Path, program: str | Path, hidden: bool = False) -> scoring.Scored:
    """The evaluation of a recipe in the task folder `folder`. Never raises for anything that is in the recipe."""
    about = json.loads((folder / "merge.json").read_text(encoding="utf-8"))
    work = folder.parent / about["work"]
    try:
        text = Path(program).read_bytes().decode("utf-8")
        recipe = parse(text, about["experts"], layers=about["layers"], full=about["full"], methods=about["methods"])
    except UnicodeDecodeError:
        return scoring.failed(Validity.ERROR, "it is not UTF-8 text")
    except RecipeError as e:
        return scoring.failed(Validity.INCORRECT, str(e))
    return scored(score(work, recipe, text, "hidden" if hidden else "search"), hidden)


def score(work: Path, recipe: Recipe, text: str, split: str) -> dict[str, Any]:
    """A finished score, from the disk where it is there."""
    with _own_lock:
        known = _results.setdefault(work, Results(work)).get(recipe, split)
    return known if known is not None else ask(work, text, split)


def scored(result: dict[str, Any], hidden: bool = False) -> scoring.Scored:
    """Metrics and logs of a score. The log of the search rows says how each task did; of hidden rows nothing is said."""
    if "error" in result:
        kind = Validity.TIMEOUT if result.get("failed") == "timeout" else Validity.INCORRECT
        return scoring.failed(kind, result["error"])
    numbers = {k: result[k] for k in ("fitness", "auc", "likelihood", "nll") if k in result}
    logs = {}
    if not hidden and result.get("by_task"):
        rows = list(result["by_task"].items())[:BEST_KNOWN_FIRST]
        logs["by task"] = "\n".join(f"{task}: auc {r['auc']:.4f}, nll {r['nll']:.4f}" for task, r in rows)
    return scoring.Scored({**numbers, "combined_score": positive(result["fitness"]), "validity": 1.0}, logs)


def positive(fitness: float) -> float:
    """A score above 0 in the fitness's order: itself where it is in (0, 1], which the shipped fitness always is."""
    if 1e-9 < fitness <= 1:
        return fitness
    return 1 + fitness if fitness > 1 else 1e-9 / (1 + 1e-9 - fitness)


def plan_of(task_folder: Path) -> tuple[Path, dict[str, Any]]:
    """(work folder, plan) of a merge's task folder. Raises EftError where it is none."""
    file = task_folder / "merge.json"
    try:
        work = task_folder.parent / json.loads(file.read_text(encoding="utf-8"))["work"]
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise EftError("this is no task folder of a merge", where=file, why=str(e), way_out="give OUT/loops/merge/KEY") from None
    return work, read_plan(work)
