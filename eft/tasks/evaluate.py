"""Evaluate one program of a task, out of process, with a cache by code hash.

Isolated tasks: the evaluator is our code and pure, so it is loaded once into this process; only the candidate runs
outside, in the warm sandbox (eft/tasks/sandbox.py). That costs a fork per evaluation. Contained tasks: evaluator and
candidate run together in a fresh sandboxed process per evaluation, killed as a whole at the task's timeout.

Deterministic programs give the same Evaluation again; the cache is what makes a search replayable, and cheap, where a
foreign evaluator is not deterministic.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cache as memo
from pathlib import Path
from typing import Any

from eft.errors import EftError
from eft.manifest import clear_disk_errors
from eft.records import Validity, code_hash, to_json
from eft.tasks import contained, sandbox, scoring
from eft.tasks.task import Task


@dataclass(frozen=True)
class Evaluation:
    """`score`: what the search maximises; `raw`: the task's reported metric; both None unless `validity` is VALID."""

    metrics: dict[str, Any]
    validity: Validity
    score: float | None
    raw: float | None
    artifacts: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


def evaluate(task: Task, code: str, cache: Path | None = None, hidden: bool = False) -> Evaluation:
    """Score `code`. `cache`: a JSONL file, appended to, that answers for programs it has seen.

    `hidden`: on the task's hidden instances, for a final score; never during a search. Never raises for anything that
    the program does; raises EftError where the evaluator itself cannot be used, or has no hidden instances.
    """
    if hidden and not task.has_hidden:
        raise EftError("this task has no hidden instances", where=task.evaluator,
                       why="its evaluate() takes no `hidden`", way_out="ask task.has_hidden first")  # fmt: skip
    key = f"{task.name}\0{'hidden:' if hidden else ''}{code_hash(code)}"
    if cache is not None and (known := _lookup(cache, key)) is not None:
        return known
    started = time.monotonic()
    metrics, artifacts = (_isolated if task.isolation == "isolated" else _contained)(task, code, hidden)
    result = _judge(task, metrics, artifacts, round(time.monotonic() - started, 6))
    if cache is not None:
        _append(cache, key, result)
    return result


def check_seed(task: Task) -> Evaluation:
    """The evaluation of a task's seed program. Raises EftError where it is not valid: nothing there to improve."""
    found = evaluate(task, task.seed())
    if found.score is None:
        raise EftError("the initial program of this task does not evaluate", where=task.folder,
                       why=f"{found.validity}: {found.metrics.get('error', '')}")  # fmt: skip
    return found


def _judge(task: Task, metrics: dict[str, Any], artifacts: dict[str, Any], seconds: float) -> Evaluation:
    """Decide whether the metrics are a score at all."""

    def real(value: Any) -> float | None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        try:
            return float(value)
        except OverflowError:  # an int beyond any float
            return math.inf

    def invalid(validity: Validity) -> Evaluation:
        return Evaluation(metrics, validity, None, None, artifacts, seconds)

    error = metrics.get("error")
    if isinstance(error, str) and error:
        reason = error.partition(":")[0]
        return invalid(Validity(reason) if reason in set(Validity) - {Validity.VALID} else Validity.ERROR)
    if metrics.get("timeout") is True:
        return invalid(Validity.TIMEOUT)
    score = real(metrics.get(task.score_key))
    if score is None:
        return invalid(Validity.NO_SCORE)
    if not math.isfinite(score):
        return invalid(Validity.NON_FINITE)
    if metrics.get("validity") in (0, False):  # also 0.0
        return invalid(Validity.INCORRECT)
    raw = real(metrics.get(task.raw_metric))
    return Evaluation(
        metrics, Validity.VALID, score, raw if raw is None or math.isfinite(raw) else None, artifacts, seconds
    )


@memo
def _evaluator(file: Path) -> Callable[..., dict]:
    """The `evaluate` of an isolated task's evaluator."""
    spec = importlib.util.spec_from_file_location(f"eft_evaluator_{file.parent.name}", file)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as e:
        raise EftError("the evaluator cannot be loaded", where=file, why=f"{type(e).__name__}: {e}") from e
    if not callable(getattr(module, "evaluate", None)):
        raise EftError("the evaluator has no evaluate(program_path)", where=file)
    return module.evaluate


def _isolated(task: Task, code: str, hidden: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    descriptor = os.memfd_create("program")  # a file that no kill leaves behind
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as f:
            f.write(code.encode("utf-8", "surrogatepass"))
        try:
            result = _evaluator(task.evaluator)(f"/proc/self/fd/{descriptor}", **({"hidden": True} if hidden else {}))
        except EftError:
            raise
        except Exception as e:  # a scorer that a candidate's data can break is a bug, but no reason to end a search
            result = scoring.failed(Validity.ERROR, f"the scorer failed: {type(e).__name__}: {e}")
    finally:
        os.close(descriptor)
    if not isinstance(result, dict):
        raise EftError(
            "the evaluator did not return a dict", where=task.evaluator, why=f"it returned {type(result).__name__}"
        )
    return dict(result), result.artifacts if isinstance(result, scoring.Scored) else {}


def _contained(task: Task, code: str, hidden: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    suffix = task.initial_program.suffix
    outcome = contained.run(task.evaluator, code, suffix=suffix, timeout_s=task.timeout_s, level=sandbox.level(),
                            hidden=hidden)  # fmt: skip
    if outcome.validity is not Validity.VALID:
        failed = scoring.failed(outcome.validity, outcome.error, outcome.stderr)
        return dict(failed), failed.artifacts
    artifacts = dict(outcome.value["artifacts"])
    if outcome.stderr:
        artifacts.setdefault("stderr", outcome.stderr)
    return outcome.value["metrics"], artifacts


# ---- cache -------------------------------------------------------------------------------------------------------

_caches: dict[Path, tuple[int, dict[str, Evaluation]]] = {}  # file -> (bytes read so far, what they held)


def _lookup(file: Path, key: str) -> Evaluation | None:
    """The cached evaluation. Reads what other processes have appended since the last look; a torn line waits or is
    skipped."""
    read, known = _caches.get(file, (0, {}))
    try:
        size = file.stat().st_size
    except OSError:
        size = 0
    if size < read:  # the file was replaced
        read, known = 0, {}
    if size > read:
        with open(file, "rb") as f:
            f.seek(read)
            data = f.read(size - read)
        whole = data.rfind(b"\n") + 1
        for line in data[:whole].splitlines():
            try:
                row = json.loads(line)
                name = row.pop("key")
                known[name] = Evaluation(**{**row, "validity": Validity(row["validity"])})
            except (ValueError, TypeError, KeyError, AttributeError):
                continue
        read += whole
    _caches[file] = (read, known)
    return known.get(key)


def _append(file: Path, key: str, result: Evaluation) -> None:
    """One line, written whole: several searches may share a cache. A killed writer's torn line is ended first."""
    line = to_json({"key": key, **asdict(result)}) + "\n"
    with clear_disk_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(file, "a+b") as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            end = f.seek(0, os.SEEK_END)
            if end and os.pread(f.fileno(), 1, end - 1) != b"\n":
                f.write(b"\n")
            f.write(line.encode("utf-8", "replace"))
