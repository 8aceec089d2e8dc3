"""Run a candidate program in this process and put its value, or its error, into bytes. Used inside the sandbox only.

Standard library only, and no import of this package: it runs where neither site-packages nor the package are visible.
"""

from __future__ import annotations

import builtins
import json


def load(code: str, entry: str) -> object:
    """The program's function `entry`. Raises whatever the program raises, NameError where it has no such function."""
    program = {"__name__": "program", "__builtins__": builtins}
    exec(compile(code, "program.py", "exec"), program)
    function = program.get(entry)
    if not callable(function):
        raise NameError(f"the program does not define {entry}()")
    return function


def load_driver(code: str) -> object:
    """The `drive` of a task's driver."""
    harness = {"__name__": "driver", "__builtins__": builtins}
    exec(compile(code, "driver.py", "exec"), harness)
    return harness["drive"]


def run(body: dict) -> bytes:
    """Run the program's entry, or the task's driver around it. Returns the payload; never raises."""
    try:
        function = load(body["code"], body["entry"])
        if body["driver"] is None:
            value = function(*body["args"])
        else:
            value = load_driver(body["driver"])(function, *body["args"])
        return b"V" + json.dumps(value).encode()
    except BaseException as error:
        return failure(error)


def failure(error: BaseException) -> bytes:
    """The payload of an error. Never raises."""
    return b"E" + json.dumps(describe(error)).encode()


def describe(error: BaseException) -> dict:
    """{error, line} of an exception, the line being the candidate's own (0 where it has none). Never raises."""
    try:
        text = str(error)[:400]
    except BaseException:
        text = "(its message cannot be shown)"
    line = 0
    if isinstance(error, SyntaxError):
        line = error.lineno if isinstance(error.lineno, int) else 0
        text = str(error.msg)[:400]
    else:
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == "program.py":
                line = trace.tb_lineno
            trace = trace.tb_next
    return {"error": f"{type(error).__name__}: {text}" if text else type(error).__name__, "line": line}
