"""What a program's metrics are worth: is there a score at all, and which number is it?

Rules (FORMATS G3, and what the scaffolds do): a timeout, an evaluator's error, a non-finite score and a failed validity
flag are *states*, never numbers, so a crash can never be better than a bad score, whatever sign the task's scores have.
The score is the declared key, else `combined_score`, else the scaffold's own average of the metrics, marked `averaged`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from eft.records import ScoreKind, Validity

COMBINED = "combined_score"
FLAGS = ("validity", "valid", "is_valid", "correct")  # at or below zero, or false: the program's answer is wrong
MARKERS = ("error", "timeout", "timeout_duration")  # what failures are marked with; never part of a score
DEFAULT_FEATURES = ("complexity", "diversity")  # OpenEvolve's default map axes; its average leaves them out


@dataclass(frozen=True)
class Verdict:
    """`score` is None unless `validity` is VALID."""

    validity: Validity
    score: float | None = None
    kind: ScoreKind = ScoreKind.NONE


def judge(
    metrics: Mapping[str, Any], *, key: str | None = None, allow_average: bool = True, booleans: bool = False,
    features: Collection[str] = DEFAULT_FEATURES,
) -> Verdict:  # fmt: skip
    """The verdict on one program's metrics.

    `key`: the declared score key; without it, `combined_score`. `allow_average`: False where other programs of the same
    search do have that key (a cascade that stopped early must not be compared with whole scores). `booleans`: the
    average counts them, as OpenEvolve did before 0.3.2.
    """
    if _truthy(metrics.get("timeout")):
        return Verdict(Validity.TIMEOUT)
    error = metrics.get("error")
    if error is True or (isinstance(error, str) and error.strip() and number(error) is None):
        return Verdict(Validity.ERROR)  # a message; a number called "error" may well be a metric
    name = key or COMBINED
    value = score(metrics.get(name))
    if value is None:
        if error is not None:
            return Verdict(Validity.ERROR)
        average = None if key or not allow_average else averaged(metrics, booleans=booleans, features=features)
        if average is None:
            return Verdict(Validity.NO_SCORE)
        value, kind = average, ScoreKind.AVERAGED
    else:
        kind = ScoreKind.KEY if key else ScoreKind.COMBINED
    if not math.isfinite(value):
        return Verdict(Validity.NON_FINITE)
    if value == 0 and number(error):  # an evaluator's way to say "failed": score 0 and error 1
        return Verdict(Validity.ERROR)
    if any(f in metrics and f != name and _refused(metrics[f]) for f in FLAGS):
        return Verdict(Validity.INCORRECT)
    return Verdict(Validity.VALID, value, kind)


def averaged(
    metrics: Mapping[str, Any], *, booleans: bool, features: Collection[str] = DEFAULT_FEATURES
) -> float | None:
    """The scaffold's own average: every number that is not NaN, map axes left out; None where there is no number.

    Booleans count only where `booleans` says so (before 0.3.2: {"error": 0.0, "timeout": true} was worth 0.5).
    """
    for names in ([k for k in metrics if k not in features], list(metrics)):
        values = [_plain(metrics[k], booleans) for k in names]
        values = [v for v in values if v is not None and not math.isnan(v)]
        if values:
            total = sum(values)
            if math.isfinite(total) or not all(map(math.isfinite, values)):
                return total / len(values)
            scale = max(map(abs, values))  # a finite average of numbers too large to add up, rounded as it does
            return sum(v / scale for v in values) / len(values) * scale
    return None


def counts_booleans(release: str) -> bool:
    """Did this release of OpenEvolve count booleans in its average? Unknown releases: no, as the newest ones."""
    numbers = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", release)
    return bool(numbers) and tuple(int(n or 0) for n in numbers.groups()) < (0, 3, 2)


def number(value: Any) -> float | None:
    """`value` as the scaffold reads a score: numbers, booleans, and text that is a number ('NaN' in our tables too)."""
    try:
        return float(value) if isinstance(value, int | float | str) else None
    except (ValueError, OverflowError):
        return None


def score(value: Any) -> float | None:
    """`value` as a score, None where it is none. A boolean is a flag (did it pass?), whatever it is called."""
    return None if isinstance(value, bool) else number(value)


def _plain(value: Any, booleans: bool) -> float | None:
    """A number of the average. Infinities and NaN stand as text in our tables."""
    if isinstance(value, bool) and not booleans:
        return None
    if isinstance(value, str):
        return number(value) if value in ("NaN", "Infinity", "-Infinity") else None
    return number(value) if isinstance(value, int | float) else None


def _truthy(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().lower() in ("true", "1", "1.0", "yes")
    return bool(value) if isinstance(value, int | float) else False


def _refused(value: Any) -> bool:
    """A validity flag that says no. Text other than a number, and null, say nothing."""
    if isinstance(value, str) and value.strip().lower() in ("false", "no"):
        return True
    flag = number(value)
    return flag is not None and not flag > 0
