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
    driver: str | None = None, apart: bool = False, limits: sandbox.Limits = sandbox.Limits(),  # noqa: B008
) -> Scored:  # fmt: skip
    """Run the program's `entry(*args)` (or `driver` around it) in the sandbox and score what came back.

    A driver with `apart` runs in a process of its own, and the program sees only what each call asks it: for whatever
    must not be foreseen (requests, demands, noise). See apart.py for `function.many`, and what a call costs.
    Never raises for anything that the program does. `score` returns the raw metric and combined_score.
    """
    try:
        code = Path(program_path).read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        return failed(Validity.ERROR, "the program is not UTF-8 text")
    outcome = sandbox.call(code, entry, *args, driver=driver, apart=apart, limits=limits)
    if outcome.validity is not Validity.VALID:
        return failed(outcome.validity, outcome.error, outcome.stderr)
    return _scored(score, outcome.value, outcome.stderr)


def evaluate_cpp(
    program_path: str | Path, *, inputs: list[str], score: Callable[[list[str]], dict[str, float]],
    limits: sandbox.Limits = sandbox.Limits(),  # noqa: B008
) -> Scored:  # fmt: skip
    """Compile a C++ program, run it once per input text on its standard input, and score the list of its outputs.

    `limits` hold for each run, not for all; the first run that fails ends the evaluation. What the compiler says of a
    program that does not compile goes to the artifacts. Never raises for anything that the program does; raises
    EftError where there is no compiler.
    """
    from eft.tasks import cpp  # here: it is needed by few tasks

    compiled = cpp.compile_program(Path(program_path).read_bytes())
    if not compiled.binary:
        found = failed(compiled.validity, f"it does not compile: {_first_error(compiled.text)}")
        found.artifacts["compiler"] = compiled.text
        return found
    outputs, stderr = [], ""
    for i, text in enumerate(inputs):
        outcome = sandbox.call_binary(compiled.binary, text, limits)
        stderr = outcome.stderr or stderr
        if outcome.validity is not Validity.VALID:
            return failed(outcome.validity, f"{outcome.error} (input {i + 1} of {len(inputs)})", stderr)
        outputs.append(outcome.value)
    return _scored(score, outputs, stderr)


def _first_error(text: str) -> str:
    """The line of a compiler's text that says most in one line."""
    lines = [line for line in text.splitlines() if "error" in line] or text.splitlines()
    return lines[0][:300] if lines else "the compiler said nothing"


def _scored(score: Callable[[Any], dict[str, float]], value: Any, stderr: str) -> Scored:
    """The metrics of what a candidate handed back."""
    try:
        metrics = score(value)
    except Invalid as e:
        return failed(e.validity, str(e), stderr)
    except OverflowError:
        return failed(Validity.NON_FINITE, "the numbers overflow when they are scored", stderr)
    bad = [name for name, number in metrics.items() if not math.isfinite(number)]
    if bad:
        return failed(Validity.NON_FINITE, f"{', '.join(bad)} is not finite", stderr)
    artifacts = {"stderr": stderr} if stderr else {}
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


def integers(text: str, count: int, what: str, low: int, high: int) -> list[int]:
    """The whole numbers that a program printed: exactly `count` within [low, high], with white space between."""
    words = text.split(maxsplit=count)
    if len(words) != count:
        raise Invalid(f"{what} must be {count} whole numbers, not {'more' if len(words) > count else len(words)}")
    for i, word in enumerate(words):
        digits = word.removeprefix("-")
        if not (digits.isascii() and digits.isdigit()) or len(digits) > 18:
            raise Invalid(f"{what}: {word[:20]!r} is no whole number")
        if not low <= int(word) <= high:
            raise Invalid(f"{what}[{i}] is {word}, outside [{low}, {high}]")
    return [int(word) for word in words]


# ---- scores ------------------------------------------------------------------------------------------------------


def relative_error(predicted: list[float], measured: list[float]) -> float:
    """Root of the squared error over the squared spread of what was measured: 1 for predicting the mean."""
    mean = sum(measured) / len(measured)
    spread = sum((y - mean) ** 2 for y in measured)
    return math.sqrt(sum((a - b) ** 2 for a, b in zip(predicted, measured, strict=True)) / spread)


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
