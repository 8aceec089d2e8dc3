"""Runs that claim the same task but score it differently: another evaluator, or another scale of the score.

Labels within one search are sound either way; gains, caps and weights by task are not, and neither is a split that takes
the two for one task. The sign is a program that two runs share (their seed, mostly) with scores that no noise explains.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from eft.errors import EftError

TOLERANCE = 0.2  # of the larger score: what evaluators that are not deterministic may differ by


def check_scores(known: dict[str, list], source: Path) -> None:
    """Raises EftError where most of the programs that two runs of one task share have scores further apart than
    TOLERANCE. `known`: columns of `facts`."""
    scores: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for task, run, kind, *ends in zip(known["task"], known["run"], known["score_kind"], known["parent"],
                                      known["parent_score"], known["child"], known["child_score"], strict=True):  # fmt: skip
        for code, score in (ends[:2], ends[2:]):
            if score is not None and kind:
                scores[task][code].setdefault(run, score)
    for task in sorted(scores):
        shared, apart = 0, []
        for by_run in scores[task].values():
            if len(by_run) > 1:
                shared += 1
                low, high = min(by_run, key=by_run.__getitem__), max(by_run, key=by_run.__getitem__)
                if by_run[high] - by_run[low] > TOLERANCE * max(abs(by_run[low]), abs(by_run[high]), 1e-12):
                    apart.append((low, by_run[low], high, by_run[high]))
        if len(apart) * 2 > shared:
            low, a, high, b = min(apart)
            raise EftError(
                f"two sources claim the task '{task}' and score the same program differently", where=source,
                why=f"{a:g} in '{low}', {b:g} in '{high}' ({len(apart)} of {shared} shared programs): another evaluator "
                "or another scale",
                way_out="harvest them as tasks of different names (--task), or accept it with --set "
                        "allow_mixed_scores=true")  # fmt: skip
