"""Formulas that a candidate makes out of symbols, recorded operation by operation: tasks that count operations.

The driver of such a task begins with `SYMBOL`. A recorded formula is {"steps": [...], "result": operand}; a step is
[name of a given symbol] or [operator, operand, operand], an operand the index of an earlier step or [number]. What a
formula is worth is worked out here, from the record: the candidate's own numbers are never taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from eft.tasks import scoring

SYMBOL = """
class Symbol:
    steps = []
    def __init__(self, step):
        self.index = len(Symbol.steps)
        Symbol.steps.append(step)
    def _with(self, op, a, b):
        return Symbol([op, *[v.index if isinstance(v, Symbol) else [float(v)] for v in (a, b)]])
    def __add__(self, other): return self._with("+", self, other)
    def __radd__(self, other): return self._with("+", other, self)
    def __sub__(self, other): return self._with("-", self, other)
    def __rsub__(self, other): return self._with("-", other, self)
    def __mul__(self, other): return self._with("*", self, other)
    def __rmul__(self, other): return self._with("*", other, self)
    def __truediv__(self, other): return self._with("/", self, other)
    def __rtruediv__(self, other): return self._with("/", other, self)
    def __neg__(self): return self._with("*", -1.0, self)
    def __pos__(self): return self
    def __pow__(self, power):
        if power not in (2, 3):
            raise TypeError("only powers 2 and 3 are supported")
        return self * self if power == 2 else self * self * self
"""
BROKEN = "the recorded formula is broken"
_ACTS: dict[str, Callable[[float, float], float]] = {
    "+": lambda u, v: u + v, "-": lambda u, v: u - v, "*": lambda u, v: u * v, "/": lambda u, v: u / v,
}  # fmt: skip


def steps_of(value: Any, given: int, most: int) -> list[Any]:
    """The operations of a recorded formula, without its `given` symbols. Raises Invalid for a broken record and for more
    than `most` operations."""
    if not isinstance(value, dict) or not isinstance(value.get("steps"), list) or len(value["steps"]) < given:
        raise scoring.Invalid(BROKEN)
    steps = value["steps"][given:]
    if len(steps) > most:
        raise scoring.Invalid(f"{len(steps)} operations, at most {most} are allowed")
    return steps


def apply(steps: Sequence[Any], result: Any, given: Sequence[list[float]]) -> list[float]:
    """The formula's values for the values of its symbols (lists of equal length). Raises Invalid for a broken record
    and for a division by zero."""
    done = list(given)
    for step in steps:
        if not isinstance(step, list) or len(step) != 3 or step[0] not in ("+", "-", "*", "/"):
            raise scoring.Invalid(BROKEN)
        a, b = _operand(step[1], done), _operand(step[2], done)
        if step[0] == "/" and 0.0 in b:
            raise scoring.Invalid("division by zero")
        done.append([_ACTS[step[0]](u, v) for u, v in zip(a, b, strict=True)])
    return _operand(result, done)


def _operand(value: Any, done: list[list[float]]) -> list[float]:
    if isinstance(value, list) and len(value) == 1:
        return [scoring.number(value[0], "a constant")] * len(done[0])
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < len(done):
        raise scoring.Invalid(BROKEN)
    return done[value]
