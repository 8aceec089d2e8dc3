"""Host of one foreign evaluation: load evaluator.py, call evaluate(program), send the result as JSON. Run as a script.

Arguments: evaluator, program, memory limit in MB, number of the open descriptor for the result,
and `hidden` for the hidden instances. The result is {metrics, artifacts} or {error}. An evaluator may return a dict or an OpenEvolve EvaluationResult.
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import sys


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


def main() -> None:
    evaluator, program, memory_mb, fd = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    os.set_inheritable(fd, False)
    memory = memory_mb << 20
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 20, 64 << 20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.path.insert(0, os.path.dirname(evaluator))  # as OpenEvolve does, for evaluators with local modules
    try:
        spec = importlib.util.spec_from_file_location("evaluation_module", evaluator)
        module = importlib.util.module_from_spec(spec)
        sys.modules["evaluation_module"] = module
        spec.loader.exec_module(module)
        result = module.evaluate(program, hidden=True) if sys.argv[5:] == ["hidden"] else module.evaluate(program)
        if isinstance(result, dict):
            value = {"metrics": plain(result), "artifacts": {}}
        else:
            value = {"metrics": plain(dict(result.metrics)), "artifacts": plain(dict(result.artifacts))}
    except BaseException as error:  # SystemExit too: the evaluator's failure is data
        value = {"error": f"{type(error).__name__}: {str(error)[:400]}"}
    with os.fdopen(fd, "w", encoding="utf-8", errors="replace") as out:
        json.dump(value, out)
    os._exit(0)  # no thread or atexit hook of the evaluator keeps the process alive


if __name__ == "__main__":
    main()
