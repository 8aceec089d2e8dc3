"""Approximate the Bessel function J0 on [0, 5] with at most 12 arithmetic operations. The raw metric is the number
of correct digits, log10(1 + 1 / root mean square error).

The candidate's function is called once, on a symbol that records + - * / and negation; the recorded expression comes
back as data and is evaluated here. So a candidate can neither call a library nor branch on x, and operations are
counted, not claimed.
"""

import math

from eft.tasks import scoring

OPERATIONS = 12
GRID = [k / 8 for k in range(41)]

DRIVER = """
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

def drive(approximate):
    y = approximate(Symbol(["x"]))
    return {"steps": Symbol.steps, "result": y.index if isinstance(y, Symbol) else [float(y)]}
"""


def j0(x):
    """J0 by its power series (fast and exact enough for x <= 5)."""
    total, term = 0.0, 1.0
    for k in range(1, 40):
        total += term
        term *= -(x * x / 4) / (k * k)
    return total


EXACT = [j0(x) for x in GRID]


def operand(value, done):
    """An operand: [number], or the index of an earlier step. Returns its values on the grid."""
    if isinstance(value, list) and len(value) == 1:
        return [scoring.number(value[0], "a constant")] * len(GRID)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < len(done):
        raise scoring.Invalid("the recorded expression is broken")
    return done[value]


def score(value):
    if not isinstance(value, dict) or not isinstance(value.get("steps"), list) or not value["steps"]:
        raise scoring.Invalid("the recorded expression is broken")
    steps = value["steps"][1:]
    if len(steps) > OPERATIONS:
        raise scoring.Invalid(f"{len(steps)} operations, at most {OPERATIONS} are allowed")
    done = [GRID]
    for step in steps:
        if not isinstance(step, list) or len(step) != 3 or step[0] not in ("+", "-", "*", "/"):
            raise scoring.Invalid("the recorded expression is broken")
        a, b = operand(step[1], done), operand(step[2], done)
        if step[0] == "/" and 0.0 in b:
            raise scoring.Invalid("division by zero")
        act = {"+": lambda u, v: u + v, "-": lambda u, v: u - v, "*": lambda u, v: u * v, "/": lambda u, v: u / v}[
            step[0]
        ]
        done.append([act(u, v) for u, v in zip(a, b, strict=True)])
    result = operand(value.get("result"), done)
    error = math.sqrt(sum((u - v) ** 2 for u, v in zip(result, EXACT, strict=True)) / len(GRID))
    digits = scoring.digits(error)
    return {"combined_score": digits, "digits": digits}


def evaluate(program_path):
    return scoring.evaluate(program_path, entry="approximate", driver=DRIVER, score=score)
