"""Label: what each transition did — improved, no change, regressed; repair, breakage, unrecoverable.

    eft label IN -o OUT [--eps 0.0] [--score-key NAME]

Validity first, then the change of the score: a label of progress needs a score at both ends. `delta` is child minus
parent, None unless both ends are valid; `improved` is delta > eps, `regressed` delta < -eps. A row whose parent's
metrics were never logged keeps an empty label, and so does one whose child's were not (`clean` drops them).

Where a search has no `combined_score` and no --score-key is given, the scaffold's own average of the metrics stands in,
marked `averaged` and warned about; `build` leaves such rows out unless told otherwise.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from data_tools.scores import COMBINED, DEFAULT_FEATURES, FLAGS, MARKERS, Verdict, counts_booleans, judge, number
from data_tools.source import check, start
from eft import manifest
from eft.config import StageConfig
from eft.errors import EftError
from eft.records import TABLE, Label, ScoreKind, Transition, Validity, read_transitions, write_transitions


class Config(StageConfig):
    positional: ClassVar[str] = "source"

    source: Path = Field(Path("harvest"), description="Output folder of 'eft harvest'.")
    eps: float = Field(0.0, ge=0, allow_inf_nan=False, description="Changes of the score up to this are no change.")
    score_key: str | None = Field(
        None, description="The metric that the search maximised, where it is not combined_score."
    )
    features: list[str] = Field(
        list(DEFAULT_FEATURES), description="Metrics that are map axes: left out of the scaffold's average."
    )


def inputs(config: Config) -> list[Path]:
    return [config.path(config.source)]


def run(config: Config) -> Path:
    started, source, out = time.time(), config.path(config.source), config.out()
    check(source, out, "harvest")
    has_key, names = _survey(source, config.score_key or COMBINED)
    if config.score_key and not any(has_key.values()):
        known = ", ".join(sorted(set().union(*names.values()))) or "(there are none)"
        what = f"no program has a metric called '{config.score_key}'"
        raise EftError(what, where=source, way_out=f"give one of: {known}")

    start(out)
    counts: Counter[str] = Counter()
    averaged: Counter[str] = Counter()

    def labelled() -> Iterator[Transition]:
        for row in read_transitions(source):
            keyed = has_key[row.run, row.task]
            row = label(row, eps=config.eps, key=config.score_key, allow_average=not keyed, features=config.features)
            counts[row.label or "unlabelled"] += 1
            averaged[row.run] += row.score_kind == ScoreKind.AVERAGED
            yield row

    total = write_transitions(out / TABLE, labelled())
    report = {"transitions": total, **{str(k): counts[k] for k in Label}, "unlabelled": counts["unlabelled"],
              "averaged": sum(averaged.values())}  # fmt: skip
    _say(report, averaged, names)
    manifest.write(out, "label", config.model_dump(mode="json"), inputs(config), [out / TABLE], report, started)
    return out


def label(
    row: Transition, *, eps: float = 0.0, key: str | None = None, allow_average: bool = True,
    features: list[str] | tuple[str, ...] = DEFAULT_FEATURES,
) -> Transition:  # fmt: skip
    """The row with scores, validity, delta and label filled in. See `data_tools.scores.judge` for the options."""
    booleans = counts_booleans(row.scaffold_release)
    parent, child = (
        None if metrics == "" else judge(
            json.loads(metrics), key=key, allow_average=allow_average, booleans=booleans, features=features)
        for metrics in (row.parent_metrics, row.child_metrics)
    )  # fmt: skip
    delta = None
    if parent and child and parent.score is not None and child.score is not None and parent.kind == child.kind:
        delta = child.score - parent.score
    kinds = [v.kind for v in (child, parent) if v and v.kind]
    return row.replace(
        parent_score=parent.score if parent else None, child_score=child.score if child else None,
        score_kind=str(kinds[0]) if kinds else "", parent_validity=str(parent.validity) if parent else "",
        child_validity=str(child.validity) if child else "", delta=delta, label=_name(parent, child, delta, eps),
    )  # fmt: skip


def _name(parent: Verdict | None, child: Verdict | None, delta: float | None, eps: float) -> str:
    if parent is None or child is None:
        return ""  # not logged is not the same as failed
    ends = parent.validity == Validity.VALID, child.validity == Validity.VALID
    if ends == (True, True):
        if delta is None:
            return ""
        return str(Label.IMPROVED if delta > eps else Label.REGRESSED if delta < -eps else Label.NO_CHANGE)
    return str({(False, True): Label.REPAIR, (True, False): Label.BREAKAGE, (False, False): Label.UNRECOVERABLE}[ends])


def _survey(source: Path, key: str) -> tuple[dict[tuple[str, str], bool], dict[str, set[str]]]:
    """Per run and task (a published collection is one run of many tasks): does any program have a score under `key`;
    and per run the names of all metrics."""
    has_key: dict[tuple[str, str], bool] = defaultdict(bool)
    names: dict[str, set[str]] = defaultdict(set)
    for row in read_transitions(source):
        for text in (row.parent_metrics, row.child_metrics):
            metrics = json.loads(text) if text else {}
            has_key[row.run, row.task] |= number(metrics.get(key)) is not None
            names[row.run] |= set(metrics)
    return has_key, names


def _say(report: dict[str, Any], averaged: Counter[str], names: dict[str, set[str]]) -> None:
    found = ", ".join(f"{report[k]} {k}" for k in (*map(str, Label), "unlabelled") if report[k])
    print(f"label: {report['transitions']} transitions: {found}", file=sys.stderr)
    groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for run, number_of_rows in averaged.items():
        if number_of_rows:
            groups[tuple(sorted(names[run]))].append(run)
    for metrics, runs in groups.items():
        likely = [m for m in metrics if m not in (*FLAGS, *MARKERS, *DEFAULT_FEATURES) and "time" not in m]
        few = ", ".join(runs[:3]) + (f" and {len(runs) - 3} more" if len(runs) > 3 else "")
        print(f"warning: no combined_score in {few}: the scaffold's average of the metrics stands in "
              f"(marked 'averaged', left out by build)\n  metrics: {', '.join(metrics)}\n"
              "  way out: name the one that was maximised, e.g. "
              f"--score-key {likely[0] if likely else 'NAME'}", file=sys.stderr)  # fmt: skip
