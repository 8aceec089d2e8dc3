"""Runs that claim the same task but score it differently: another evaluator, or another scale of the score.

Labels within one search are sound either way; gains, caps and weights by task are not, and neither is a split that
takes the two for one task. The sign is a program that two runs share (their seed, mostly) with scores that no noise
explains.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

from eft.errors import EftError

TOLERANCE = 0.2  # of the larger score: what evaluators that are not deterministic may differ by


def check_scores(known: dict[str, list], source: Path) -> None:
    """Raises EftError where most of the programs that a run shares with others of its task have a score in it that is
    further than TOLERANCE from theirs (from the middle one, so that many runs of one source do not outvote another, and
    one odd run does not make the others odd). `known`: columns of `facts`."""
    scores: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for task, run, kind, *ends in zip(
        known["task"], known["run"], known["score_kind"], known["parent"], known["parent_score"], known["child"],
        known["child_score"], strict=True,
    ):  # fmt: skip
        for code, score in (ends[:2], ends[2:]):
            if score is not None and kind:
                scores[task][code].setdefault(run, score)
    for task in sorted(scores):
        shared: Counter[str] = Counter()
        apart: dict[str, list[tuple[str, float, float]]] = defaultdict(list)
        for by_run in scores[task].values():
            if len(by_run) < 2:
                continue
            order = sorted(by_run, key=lambda r: (by_run[r], r))
            middle = (len(order) - 2) // 2
            for i, run in enumerate(order):
                shared[run] += 1
                other = order[middle if middle < i else middle + 1]  # the middle one of all but this
                ours, theirs = by_run[run], by_run[other]
                if abs(ours - theirs) > TOLERANCE * max(abs(ours), abs(theirs), 1e-12):
                    apart[run].append((other, ours, theirs))
        odd = [run for run, found in apart.items() if 2 * len(found) > shared[run]]
        if odd:
            run = min(odd)
            other, ours, theirs = min(apart[run])
            raise EftError(
                f"two sources claim the task '{task}' and score the same program differently", where=source,
                why=f"{ours:g} in '{run}', {theirs:g} in '{other}', so {len(apart[run])} of {shared[run]} programs: "
                "another evaluator or another scale",
                way_out="harvest them as tasks of different names (--task), or accept it with --set "
                        "allow_mixed_scores=true")  # fmt: skip
