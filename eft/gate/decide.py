"""COMMIT, REJECT or UNDECIDED: one paired sample, one rule, one decision. Pure: the same numbers, the same bits.

    tau         mean > margin, else reject. No error rate: it cuts harm and keeps most of what is useful
    hoeffding, bernstein, bootstrap, mcnemar, midp     certified: at most `alpha` of all harmful candidates get through
    betting     anytime-valid: look after every item, stop early, still `alpha`
    gsprt       sequential ratio test, [margin, margin + effect]: fewest items, errors about `alpha` and `beta`

Only COMMIT inherits; UNDECIDED keeps the root, as REJECT does, but says that more items might have told. Where the
evidence has been looked at before to choose one of K branches, `branches=K` divides alpha by K (the union bound);
evidence that is fresh for the one frozen candidate pays nothing (`branches=1`).
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass
from typing import Any

import numpy as np

from eft.errors import UsageError, nearest
from eft.gate import bounds, sequential

FIXED = ("tau", "hoeffding", "bernstein", "bootstrap", "mcnemar", "midp")
SEQUENTIAL = ("betting", "gsprt")
METHODS = FIXED + SEQUENTIAL


class Verdict(enum.StrEnum):
    """The answer of a gate. The values are the words of the command line and of JSON."""

    COMMIT = "COMMIT"
    REJECT = "REJECT"
    UNDECIDED = "UNDECIDED"


@dataclass(frozen=True)
class Rule:
    """How to decide. Raises UsageError for what cannot be."""

    method: str = "tau"
    alpha: float = 0.05  # chance to commit a candidate that is not better than root + margin; tau ignores it
    beta: float = 0.05  # chance to reject one that is better by `effect` (sequential), better at all (betting)
    margin: float = 0.0  # advantage that a candidate must exceed, in units of q; negative tolerates a small loss
    effect: float = 0.05  # advantage beyond the margin that the GSPRT is built to find
    undecided: str = "keep"  # sequential, budget spent: keep the root, or "tau": go by the mean, without an error rate
    branches: int = 1  # candidates that this very evidence was used to choose from
    seed: int = 0  # of the bootstrap

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UsageError(f"there is no method '{self.method}'", way_out=nearest(self.method, METHODS))
        bounds.check_level(self.alpha)
        bounds.check_level(self.beta)
        if not -1 < self.margin < 1 or not 0 < self.effect < 1:
            raise UsageError("margin lies in (-1, 1) and effect in (0, 1)", why=f"{self.margin} and {self.effect}")
        if self.method in ("mcnemar", "midp") and self.margin:
            raise UsageError("McNemar's test has no margin", way_out="use another method, or margin 0")
        if self.undecided not in ("keep", "tau") or (self.undecided == "tau" and not self.sequential):
            raise UsageError("`undecided` is keep, or, for betting and gsprt, tau", why=self.undecided)
        if self.branches < 1:
            raise UsageError(f"a decision is about at least one branch, not {self.branches}")
        if self.branches > 1 and self.method == "tau":
            raise UsageError("tau has no error rate to share among branches", way_out="confirm on a fresh pool")

    @property
    def level(self) -> float:
        """alpha after the union bound."""
        return self.alpha / self.branches

    @property
    def sequential(self) -> bool:
        return self.method in SEQUENTIAL


@dataclass(frozen=True)
class Decision:
    """What was decided, by what, on how much. `used`: items until it stopped; `numbers`: what the method computed."""

    verdict: Verdict
    rule: Rule
    items: int
    used: int
    mean: float
    numbers: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def words(self) -> str:
        """One line for people."""
        shown = ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in self.numbers.items())
        share = f" (alpha {self.rule.alpha:g} over {self.rule.branches} branches)" if self.rule.branches > 1 else ""
        return (
            f"{self.verdict}: mean advantage {100 * self.mean:+.2f} points on {self.used} items by "
            f"{self.rule.method}{share}; {shown}"
        )


def decide(d: Any, rule: Rule, *, last: bool = True) -> Decision:
    """Decide on paired differences `d` (n,), in the order in which they came. Raises EftError for bad numbers.

    `last`: no more items will come (`undecided: tau` decides only then). No items at all are UNDECIDED: an untested
    candidate is not inherited, whatever the method.
    """
    d = bounds.check_differences(np.asarray(d, float))
    n = len(d)
    if n == 0:
        return Decision(Verdict.UNDECIDED, rule, 0, 0, 0.0, {})
    verdict, used, numbers = _sequential(d, rule, last) if rule.sequential else _fixed(d, rule)
    numbers |= {"wins": int((d[:used] > 0).sum()), "losses": int((d[:used] < 0).sum())}
    return Decision(verdict, rule, n, used, float(np.mean(d[:used])), numbers)


def _fixed(d: np.ndarray, rule: Rule) -> tuple[Verdict, int, dict[str, Any]]:
    mean, level, n = float(np.mean(d)), rule.level, len(d)
    if rule.method == "tau":
        return Verdict.COMMIT if mean > rule.margin else Verdict.REJECT, n, {}
    if rule.method in ("hoeffding", "bernstein"):
        up = bounds.hoeffding(n, level) if rule.method == "hoeffding" else bounds.bernstein(d, level)
        down = bounds.hoeffding(n, rule.beta) if rule.method == "hoeffding" else bounds.bernstein(d, rule.beta)
        low, high = max(-1.0, mean - up), min(1.0, mean + down)
        return _of(low > rule.margin, high <= rule.margin), n, {"low": low, "high": high}
    if rule.method == "bootstrap":
        better, worse = bounds.sign_flips(d, rule.margin, seed=rule.seed)
    else:
        b, c = bounds.wins_and_losses(d)
        better, worse = (bounds.mcnemar(x, y, mid=rule.method == "midp") for x, y in ((b, c), (c, b)))
    return _of(better <= level, worse <= rule.beta), n, {"p": better, "p_worse": worse}


def _of(commit: bool, reject: bool) -> Verdict:
    return Verdict.COMMIT if commit else Verdict.REJECT if reject else Verdict.UNDECIDED


def _sequential(d: np.ndarray, rule: Rule, last: bool) -> tuple[Verdict, int, dict[str, Any]]:
    if rule.method == "betting":
        commit, reject = (int(x) for x in sequential.betting_stops(d, rule.level, rule.beta, rule.margin))
        path, name = sequential.wealth(d, rule.margin), "log_e"
    else:
        commit, reject = (int(x) for x in sequential.gsprt_stops(d, rule.level, rule.beta, rule.margin, rule.effect))
        path, name = sequential.llr(d, rule.margin, rule.effect), "llr"
    if commit and (not reject or commit <= reject):
        verdict, used = Verdict.COMMIT, commit
    elif reject:
        verdict, used = Verdict.REJECT, reject
    else:
        verdict, used = Verdict.UNDECIDED, len(d)
        if last and rule.undecided == "tau":
            middle = rule.margin + (rule.effect / 2 if rule.method == "gsprt" else 0.0)
            verdict = Verdict.COMMIT if float(np.mean(d)) > middle else Verdict.REJECT
    return verdict, used, {name: float(path[used - 1])}
