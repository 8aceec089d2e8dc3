"""A foreign evaluator and its candidate, together in one sandboxed process tree. Outside: `run`; inside: `main`, as a
script.

OpenEvolve's evaluators load the candidate into their own process, so nothing can stop it from patching its scorer or
writing the result by itself: a contained score is a claim. What is stopped is harm: no network, no sight of home or of
other tasks, nothing written but a private /tmp, bounded time, memory, processes and output, nothing left behind.

Inside, the arguments are the limits (see launch.py), evaluator, program, number of the open descriptor for the result,
and `hidden` for the hidden instances. The result is {metrics, artifacts} or {error}. An evaluator may return a dict or
an OpenEvolve EvaluationResult.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path

ARTIFACT = 1 << 16  # characters kept of one: they go into caches, journals and prompts


def run(evaluator: Path, code: str, *, suffix: str, timeout_s: float, level: str, memory_mb: int = 16384,
        hidden: bool = False):  # fmt: skip
    """The sandbox.Outcome of `evaluate(program_path)` with `code`; its value is {metrics, artifacts}.

    Never raises for anything that evaluator or candidate do.
    """
    from eft.records import Validity
    from eft.tasks import oneshot, sandbox
    from eft.tasks.sandbox import Outcome

    timeout_s = min(timeout_s, sandbox.wall_cap_s or timeout_s)

    name = f"program{suffix}"
    more = ["hidden"] if hidden else []
    ended = oneshot.run(
        "contained.py",
        lambda work, result: [str(evaluator), f"{work}/{name}", result, *more],
        oneshot.Bounds(timeout_s, memory_mb),
        level=level,
        python=sys.executable,
        files={name: code.encode("utf-8", "surrogatepass")},
        readable=(evaluator.parent,),
    )

    def failed(validity: Validity, why: str) -> Outcome:
        return Outcome(None, validity, why, ended.printed, ended.seconds)

    if ended.why == "timeout":
        return failed(Validity.TIMEOUT, f"not finished after {timeout_s:g} s")
    try:
        value = json.loads(ended.result)
        if not isinstance(value, dict) or not ("error" in value or {"metrics", "artifacts"} <= set(value)):
            raise ValueError
    except (ValueError, RecursionError):
        ended_early = f"the evaluation was ended: {ended.why}" if ended.why else ""
        return failed(Validity.ERROR, ended_early or "the evaluator's process ended without a result")
    if "error" in value:
        return failed(Validity.ERROR, str(value["error"])[:500])
    if not isinstance(value["metrics"], dict) or not isinstance(value["artifacts"], dict):
        return failed(Validity.ERROR, "the evaluator's metrics or artifacts are no mapping")
    artifacts = {k: v[:ARTIFACT] if isinstance(v, str) else v for k, v in value["artifacts"].items()}
    return Outcome({**value, "artifacts": artifacts}, Validity.VALID, "", ended.printed, ended.seconds)


# ---- inside ------------------------------------------------------------------------------------------------------


def plain(value: object) -> object:
    """JSON data of what evaluators put into metrics and artifacts: numpy scalars as numbers, bytes and others as
    text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return str(value)


def evaluate(evaluator: str, program: str, hidden: bool) -> dict:
    """What the evaluator says, as JSON data. Never raises: SystemExit too is the evaluator's failure, and data."""
    try:
        spec = importlib.util.spec_from_file_location("evaluation_module", evaluator)
        module = importlib.util.module_from_spec(spec)
        sys.modules["evaluation_module"] = module
        spec.loader.exec_module(module)
        if not callable(getattr(module, "evaluate", None)):
            return {"error": "the evaluator has no evaluate(program_path)"}
        result = module.evaluate(program, hidden=True) if hidden else module.evaluate(program)
        if isinstance(result, dict):
            return {"metrics": plain(result), "artifacts": {}}
        if not isinstance(getattr(result, "metrics", None), dict):
            return {"error": f"the evaluator returned {type(result).__name__}, not a dict of metrics"}
        return {"metrics": plain(result.metrics), "artifacts": plain(dict(getattr(result, "artifacts", None) or {}))}
    except BaseException as error:
        return {"error": f"{type(error).__name__}: {str(error)[:400]}"}


def main() -> None:
    import launch  # beside this file, at the head of sys.path while this is a script

    evaluator, program, fd = sys.argv[6], sys.argv[7], int(sys.argv[8])
    os.set_inheritable(fd, False)
    launch.confine(sys.argv[1:6])
    sys.path[0] = os.path.dirname(evaluator)  # as OpenEvolve does, for evaluators with local modules
    value = evaluate(evaluator, program, sys.argv[9:] == ["hidden"])
    with os.fdopen(fd, "w", encoding="utf-8", errors="replace") as out:
        json.dump(value, out)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # no thread or atexit hook of the evaluator keeps the process alive


if __name__ == "__main__":
    main()
