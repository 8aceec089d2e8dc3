"""Numbers as a reader wants them: the same in the report, in the verdict and in the terminal."""

from __future__ import annotations

from eft.evaluate.stats import Interval, Rate

DASH = "–"  # stands for "does not exist"; the report lists why


def _minus(text: str) -> str:
    return text.replace("-", "−")


def number(value: float | None) -> str:
    """Five significant digits, without an exponent where that can be read."""
    if value is None:
        return DASH
    return _minus(f"{value:.5g}" if value == 0 or 1e-4 <= abs(value) < 1e7 else f"{value:.3e}")


def percent(share: float | None, digits: int | None = None) -> str:
    """A share as a percentage; small ones keep a decimal."""
    if share is None:
        return DASH
    value = 100 * share
    if digits is None:
        digits = 1 if 0 < abs(value) < 9.95 else 0
    text = f"{value:.{digits}f}"
    return _minus(text if float(text) else text.lstrip("-")) + "%"


def signed(share: float | None) -> str:
    """A relative change as a signed percentage."""
    if share is None:
        return DASH
    return ("+" if share > 0 else "") + percent(share)


def points(share: float | None) -> str:
    """A difference of two shares, in signed percentage points."""
    return DASH if share is None else signed(share).rstrip("%")


def p_value(p: float | None) -> str:
    """A p value as one reads it: `= 0.031`, `< 0.001`."""
    if p is None:
        return DASH
    return "< 0.001" if p < 0.001 else f"= {p:.2g}" if p < 0.0995 else f"= {p:.2f}"


def count(value: int | None) -> str:
    """A count with thin thousands separators, or in thousands and millions where it is large."""
    if value is None:
        return DASH
    for limit, unit in ((10_000_000, "M"), (100_000, "k")):
        if abs(value) >= limit:
            return f"{value / (limit / 10 if unit == 'M' else 1000):.{1 if unit == 'M' else 0}f}{unit}"
    return f"{value:,}".replace(",", "\u202f")


def duration(seconds: float | None) -> str:
    """Seconds in the two largest units that matter."""
    if seconds is None:
        return DASH
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def interval_percent(i: Interval | Rate | None) -> str:
    """The bounds of a share."""
    return DASH if i is None else f"{percent(i.low)} to {percent(i.high)}"


def interval_points(i: Interval | None) -> str:
    """The bounds of a difference, in signed points."""
    return DASH if i is None else f"{points(i.low)} to {points(i.high)}"


def plural(n: int, noun: str) -> str:
    """`3 tasks`, `1 task`, `4 searches`."""
    return f"{count(n)} {noun}{'' if n == 1 else 'es' if noun.endswith('ch') else 's'}"


# What became of a proposal, in a word or two. `invalid` comes with the evaluator's reason: `invalid:timeout`.
OUTCOMES = {
    "improved": "improves",
    "not_improved": "valid, no better",
    "repaired": "repairs its parent",
    "no_op": "no-op",
    "invalid": "invalid",
    "invalid:syntax": "does not compile",
    "invalid:evaluator_error": "run-time error",
    "invalid:timeout": "timeout",
    "invalid:non_finite": "score not finite",
    "invalid:incorrect": "incorrect result",
    "invalid:no_score": "no score",
    "too_long": "program too long",
    "malformed": "malformed edit",
    "unmatched": "search text not found",
    "no_edit": "no edit in the reply",
    "cut_off": "cut off at the token cap",
    "empty": "empty",
    "request_error": "no reply",
    "lost": "not recorded",
}


def outcome(name: str) -> str:
    """The label of an outcome; an unknown one (another release's) is shown by its name."""
    return OUTCOMES.get(name, name.replace("_", " "))
