"""What the evaluators of isolated tasks share: run the candidate in the sandbox, check its data, score it out here.

An evaluator passes a `score` function that turns the candidate's JSON data into metrics, recomputing everything; it
calls `numbers`, `points` or `order` on whatever came back and raises `Invalid` where that is no solution. A failed
candidate gets combined_score 0 (every valid program scores above 0), validity 0 and `error: "<reason>: <what>"`,
where <reason> is a word of eft.records.Validity.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eft.records import Validity
from eft.tasks import sandbox

BIGGEST = 1e9  # candidates' numbers beyond this are refused: they only serve to overflow a scorer


class Invalid(Exception):
    """The candidate's data is no solution; the message tells the mutator why."""

    def __init__(self, message: str, validity: Validity = Validity.INCORRECT) -> None:
        super().__init__(message)
        self.validity = validity


class Scored(dict):
    """The metrics of one evaluation, a plain dict to OpenEvolve, with the logs beside it in `artifacts`."""

    artifacts: dict[str, str]

    def __init__(self, metrics: dict[str, Any], artifacts: dict[str, str] | None = None) -> None:
        super().__init__(metrics)
        self.artifacts = artifacts or {}


def evaluate(
    program_path: str | Path, *, score: Callable[[Any], dict[str, float]], entry: str = "run", args: tuple = (),
    driver: str | None = None, limits: sandbox.Limits = sandbox.Limits(),  # noqa: B008
) -> Scored:  # fmt: skip
    """Run the program's `entry(*args)` (or `driver` around it) in the sandbox and score what came back.

    Never raises for anything that the program does. `score` returns the raw metric and combined_score.
    """
    try:
        code = Path(program_path).read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        return failed(Validity.ERROR, "the program is not UTF-8 text")
    outcome = sandbox.call(code, entry, *args, driver=driver, limits=limits)
    if outcome.validity is not Validity.VALID:
        return failed(outcome.validity, outcome.error, outcome.stderr)
    try:
        metrics = score(outcome.value)
    except Invalid as e:
        return failed(e.validity, str(e), outcome.stderr)
    except OverflowError:
        return failed(Validity.NON_FINITE, "the numbers overflow when they are scored", outcome.stderr)
    bad = [name for name, value in metrics.items() if not math.isfinite(value)]
    if bad:
        return failed(Validity.NON_FINITE, f"{', '.join(bad)} is not finite", outcome.stderr)
    artifacts = {"stderr": outcome.stderr} if outcome.stderr else {}
    return Scored({**metrics, "validity": 1.0}, artifacts)


def failed(validity: Validity, why: str, stderr: str = "") -> Scored:
    """The metrics of a program without a score."""
    error = f"{validity.value}: {why}"
    artifacts = {"error": why}
    if stderr:
        artifacts["stderr"] = stderr
    return Scored({"combined_score": 0.0, "validity": 0.0, "error": error}, artifacts)


# ---- checking what a candidate handed back -----------------------------------------------------------------------


def number(value: Any, what: str, low: float = -BIGGEST, high: float = BIGGEST) -> float:
    """`value` as a finite float within [low, high]; Invalid for anything else (booleans and text included)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Invalid(f"{what} must be a number, not {type(value).__name__}")
    try:
        value = float(value)
    except OverflowError:
        raise Invalid(f"{what} is too large") from None
    if not math.isfinite(value):
        raise Invalid(f"{what} is {value}", Validity.NON_FINITE)
    if not low <= value <= high:
        raise Invalid(f"{what} is {value:.6g}, outside [{low:g}, {high:g}]")
    return value


def numbers(value: Any, count: int, what: str, low: float = -BIGGEST, high: float = BIGGEST) -> list[float]:
    """A list of exactly `count` finite floats within [low, high]."""
    if not isinstance(value, list):
        raise Invalid(f"{what} must be a list, not {type(value).__name__}")
    if len(value) != count:
        raise Invalid(f"{what} must hold {count} numbers, not {len(value)}")
    return [number(v, f"{what}[{i}]", low, high) for i, v in enumerate(value)]


def points(
    value: Any, count: int, dimension: int, what: str, low: float = -BIGGEST, high: float = BIGGEST
) -> list[list[float]]:
    """A list of `count` points, each a list of `dimension` finite floats within [low, high]."""
    if not isinstance(value, list):
        raise Invalid(f"{what} must be a list, not {type(value).__name__}")
    if len(value) != count:
        raise Invalid(f"{what} must hold {count} points, not {len(value)}")
    return [numbers(v, dimension, f"{what}[{i}]", low, high) for i, v in enumerate(value)]


def order(value: Any, count: int, what: str) -> list[int]:
    """A permutation of 0 … count-1."""
    if not isinstance(value, list) or any(isinstance(v, bool) or not isinstance(v, int) for v in value):
        raise Invalid(f"{what} must be a list of integers")
    if len(value) != count or sorted(value) != list(range(count)):
        raise Invalid(f"{what} must hold each of 0 … {count - 1} once")
    return value


# ---- scores ------------------------------------------------------------------------------------------------------


def digits(error: float) -> float:
    """A score of an error >= 0 that never saturates: about the number of correct decimal digits, above 0 for any
    error."""
    return math.log10(1.0 + 1.0 / max(error, 1e-15))


def stream(seed: int) -> Callable[[], float]:
    """Uniform numbers in [0, 1), the same on every machine and Python release (a 64-bit linear congruential
    generator)."""
    state = seed * 6364136223846793005 + 1442695040888963407 & (1 << 64) - 1

    def draw() -> float:
        nonlocal state
        state = state * 6364136223846793005 + 1442695040888963407 & (1 << 64) - 1
        return (state >> 11) / (1 << 53)

    for _ in range(4):  # nearby seeds start with nearby numbers
        draw()
    return draw
