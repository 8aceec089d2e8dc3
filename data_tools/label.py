"""Label: what each transition did — improved, no change, regressed; repair, breakage, unrecoverable.

    eft label IN -o OUT [--eps 0.0] [--eps-relative 0.0] [--score-key NAME] [--noise K]

Validity first, then the change of the score: a label of progress needs a score at both ends. `delta` is child minus
parent, None unless both ends are valid; `improved` is delta > noise, `regressed` delta < -noise, where `noise` is the
largest of `eps`, `eps_relative` times the parent's score, and the task's own noise floor. `--noise K` measures that
floor: the task's evaluator runs again, in the sandbox, on K programs of every task (data_tools/noise.py).

Beside the label: `relative_delta`, the child's `rank` among the children of its run and task, and `gap_closed`, how far
its raw metric has come from the seed program's to the best known one; the task says which metric that is and which way
it goes, for shipped tasks, else --raw-metric, --direction, --seed-raw and --best-known.

A row whose parent's metrics were never logged keeps an empty label, and so does one whose child's were not (`clean`
drops them). Where a search has no `combined_score` and no --score-key is given, the scaffold's own average of the
metrics stands in, marked `averaged` and warned about; `build` leaves such rows out unless told otherwise. A boolean is
never a score.
"""

from __future__ import annotations

import bisect
import functools
import json
import sys
import time
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from data_tools import noise, shards
from data_tools.scores import COMBINED, DEFAULT_FEATURES, FLAGS, MARKERS, Verdict, counts_booleans, judge, score
from data_tools.source import check, start
from eft import manifest
from eft.errors import EftError
from eft.records import (
    TABLE,
    Label,
    ScoreKind,
    Transition,
    Validity,
    schema,
)

NOISE = "noise.json"
# What a label does not depend on stays in Arrow's hands; what it fills in.
TEXTS = ("parent_code", "child_code", "prompt_system", "prompt_user", "response", "reasoning", "parent_artifacts",
         "child_artifacts")  # fmt: skip
EMPTY = dict.fromkeys(TEXTS, "")
FILLED = ("parent_score", "child_score", "score_kind", "parent_validity", "child_validity", "delta", "label",
          "relative_delta", "rank", "gap_closed", "noise")  # fmt: skip


class Config(shards.Workers):
    positional: ClassVar[str] = "source"

    source: Path = Field(Path("harvest"), description="Output folder of 'eft harvest'.")
    eps: float = Field(0.0, ge=0, allow_inf_nan=False, description="Changes of the score up to this are no change.")
    eps_relative: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="The same as a share of the parent's score; the larger one counts."
    )
    noise: int = Field(0, ge=0, description="Measure each task's noise floor on so many of its programs; 0: do not.")
    noise_repeats: int = Field(3, ge=2, description="Evaluations of each of them.")
    tasks: dict[str, Path] = Field(
        default_factory=dict, description="Folders with the evaluators of tasks that eft does not ship, by task name."
    )
    sandbox: Literal["auto", "bubblewrap", "rlimits", "none"] = Field(
        "auto", description="How programs are confined while the noise is measured."
    )
    score_key: str | None = Field(
        None, description="The metric that the search maximised, where it is not combined_score."
    )
    features: list[str] = Field(
        list(DEFAULT_FEATURES), description="Metrics that are map axes: left out of the scaffold's average."
    )
    raw_metric: str | None = Field(None, description="The metric that reports show, for tasks that eft does not ship.")
    direction: Literal["max", "min"] = Field("max", description="Which way the raw metric is better.")
    seed_raw: float | None = Field(None, allow_inf_nan=False, description="Raw metric of the seed program.")
    best_known: float | None = Field(None, allow_inf_nan=False, description="Best known raw metric.")

    @model_validator(mode="after")
    def _gap(self) -> Config:
        given = (self.seed_raw, self.best_known)
        if None not in given and not (self.best_known - self.seed_raw) * (1 if self.direction == "max" else -1) > 0:
            raise ValueError(f"best_known {self.best_known} is no better than seed_raw {self.seed_raw} in direction "
                             f"'{self.direction}'")  # fmt: skip
        return self


def inputs(config: Config) -> list[Path]:
    return [config.path(config.source), *(config.path(folder) for folder in config.tasks.values())]


def run(config: Config) -> Path:
    started, source, out = time.time(), config.path(config.source), config.out()
    check(source, out, "harvest")
    shards.check_executor(config)
    has_key, names = _survey(source, config.score_key or COMBINED)
    if config.score_key and not any(has_key.values()):
        known = ", ".join(sorted(set().union(*names.values()))) or "(there are none)"
        what = f"no program has a metric called '{config.score_key}'"
        raise EftError(what, where=source, way_out=f"give one of: {known}")
    seen = _second_look(config, source, has_key)
    floors = _floors(config, seen)

    start(out)
    with manifest.clear_disk_errors(out):
        total, counts, averaged, best = _write(config, source, out, Known(dict(has_key), floors, seen.scores))
    report = {"transitions": total, **{str(k): counts[k] for k in Label}, "unlabelled": counts["unlabelled"],
              "averaged": sum(averaged.values()), "noise_floor": floors, "best": best}  # fmt: skip
    _say(report, averaged, names)
    files = [out / TABLE]
    if seen.measured:
        manifest.write_json(out / NOISE, [asdict(f) for f in seen.measured])
        files.append(out / NOISE)
    manifest.write(out, "label", config.model_dump(mode="json"), inputs(config), files, report, started)
    return out


@dataclass(frozen=True)
class Known:
    """What a row's label needs of all other rows: is there a score under the key, by run and task; the noise floor, by
    task; the scores of a run's and task's children, sorted."""

    has_key: dict[tuple[str, str], bool]
    floors: dict[str, float]
    scores: dict[tuple[str, str], array]

    def rank(self, row: Transition) -> int | None:
        """1 plus the children of its run and task that score higher; None without a score."""
        if row.child_score is None:
            return None
        scores = self.scores[row.run, row.task]
        return len(scores) - bisect.bisect_right(scores, row.child_score) + 1

    def of(self, places: set[tuple[str, str]]) -> Known:
        """The part that concerns some runs and tasks."""
        return Known({p: self.has_key[p] for p in places}, self.floors,
                     {p: self.scores[p] for p in places if p in self.scores})  # fmt: skip


@dataclass(frozen=True)
class Part(shards.Unit):
    """A row group, and what is known of its runs and tasks."""

    known: Known | None = None


def _write(config: Config, source: Path, out: Path, known: Known) -> tuple[int, Counter, Counter, dict[str, dict]]:
    """Label row group by row group, in parallel. Returns the number of rows; labels; averaged scores by run; the best
    child of each task."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    counts, averaged, best, total = Counter(), Counter(), {}, 0
    parts = []
    for unit in shards.units(source):
        light = unit.read(["run", "task"])
        places = set(zip(light["run"].to_pylist(), light["task"].to_pylist(), strict=True))
        parts.append(Part(unit.file, unit.group, unit.first, unit.rows, known.of(places)))
    with manifest.atomic_file(out / TABLE) as file, pq.ParquetWriter(file, schema(), compression="zstd") as writer:
        for block, labels, by_run, tops in shards.mapped(functools.partial(_labelled, config=config), parts, config):
            table = pa.ipc.open_stream(block).read_all()
            writer.write_table(table)
            total += len(table)
            counts.update(labels)
            averaged.update(by_run)
            for task, top in tops.items():
                if top["score"] > best.get(task, {"score": -float("inf")})["score"]:
                    best[task] = top
    return total, counts, averaged, best


def _labelled(part: Part, *, config: Config) -> tuple[bytes, Counter, Counter, dict[str, dict[str, Any]]]:
    """The rows of one row group with their labels, as an Arrow stream. Runs in a worker. The texts are not touched."""
    import pyarrow as pa

    table, known = part.transitions(), part.known
    light = table.select([name for name in table.schema.names if name not in TEXTS])
    counts, averaged, best, rows = Counter(), Counter(), {}, []
    for values in light.to_pylist():
        row = Transition(**values, **EMPTY)
        row = label(row, eps=config.eps, relative=config.eps_relative, floor=known.floors.get(row.task, 0.0),
                    key=config.score_key, allow_average=not known.has_key[row.run, row.task],
                    features=config.features)  # fmt: skip
        raw = _raw(config, row)
        row = row.replace(rank=known.rank(row), gap_closed=_gap_closed(config, row, raw))
        counts[row.label or "unlabelled"] += 1
        averaged[row.run] += row.score_kind == ScoreKind.AVERAGED
        _keep_best(config, best, row, raw)
        rows.append(row)
    for name in FILLED:
        i, column = table.schema.get_field_index(name), table.schema.field(name)
        table = table.set_column(i, column, pa.array([getattr(r, name) for r in rows], column.type))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes(), counts, averaged, best


def label(
    row: Transition, *, eps: float = 0.0, relative: float = 0.0, floor: float = 0.0, key: str | None = None,
    allow_average: bool = True, features: list[str] | tuple[str, ...] = DEFAULT_FEATURES,
) -> Transition:  # fmt: skip
    """The row with scores, validity, delta and label filled in. See `data_tools.scores.judge` for the options.

    `eps`, `floor`: of the score, `relative`: of the parent's score; a change up to the largest of them is no change.
    """
    parent, child = (
        _judged(metrics, row.scaffold_release, key, allow_average, features)
        for metrics in (row.parent_metrics, row.child_metrics)
    )
    delta = threshold = share = None
    if parent and child and parent.score is not None and child.score is not None and parent.kind == child.kind:
        delta = child.score - parent.score
        threshold = max(eps, floor, relative * abs(parent.score))
        share = delta / abs(parent.score) if parent.score else None
        share = share if share is None or abs(share) < float("inf") else None  # a parent next to zero
    kinds = [v.kind for v in (child, parent) if v and v.kind]
    return row.replace(
        parent_score=parent.score if parent else None, child_score=child.score if child else None,
        score_kind=str(kinds[0]) if kinds else "", parent_validity=str(parent.validity) if parent else "",
        child_validity=str(child.validity) if child else "", delta=delta, relative_delta=share, noise=threshold,
        label=_name(parent, child, delta, threshold or 0.0),
    )  # fmt: skip


def _judged(
    metrics: str, release: str, key: str | None, allow_average: bool, features: list[str] | tuple[str, ...]
) -> Verdict | None:
    """The verdict on metrics as the table holds them; None where they were not logged."""
    if metrics == "":
        return None
    return judge(json.loads(metrics), key=key, allow_average=allow_average, booleans=counts_booleans(release),
                 features=features)  # fmt: skip


def _name(parent: Verdict | None, child: Verdict | None, delta: float | None, eps: float) -> str:
    if parent is None or child is None:
        return ""  # not logged is not the same as failed
    ends = parent.validity == Validity.VALID, child.validity == Validity.VALID
    if ends == (True, True):
        if delta is None:
            return ""
        return str(Label.IMPROVED if delta > eps else Label.REGRESSED if delta < -eps else Label.NO_CHANGE)
    return str({(False, True): Label.REPAIR, (True, False): Label.BREAKAGE, (False, False): Label.UNRECOVERABLE}[ends])


def _metrics(text: str, row: dict[str, Any], source: Path) -> dict[str, Any]:
    """Metrics as an object, {} where they were not logged. Raises EftError for a text that is none: a harvest writes
    objects, a table that somebody brought may hold anything."""
    try:
        value = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise EftError("the metrics of a row are no JSON object", where=f"{source}, row {row['id'][:80]}",
                       why=ascii(text[:80]), way_out="make the table with 'eft harvest', or mend it")  # fmt: skip
    return value


def _survey(source: Path, key: str) -> tuple[dict[tuple[str, str], bool], dict[str, set[str]]]:
    """Per run and task (a published collection is one run of many tasks): does any program have a score under `key`;
    and per run the names of all metrics. Raises EftError for metrics that are no object."""
    has_key: dict[tuple[str, str], bool] = defaultdict(bool)
    names: dict[str, set[str]] = defaultdict(set)
    for row in shards.light_rows(source, ["id", "run", "task", "parent_metrics", "child_metrics"]):
        for text in (row["parent_metrics"], row["child_metrics"]):
            metrics = _metrics(text, row, source)
            has_key[row["run"], row["task"]] |= score(metrics.get(key)) is not None
            names[row["run"]] |= set(metrics)
    return has_key, names


@dataclass
class Seen:
    """What a look at all rows tells: the scores of every run and task, and samples for measuring noise."""

    scores: dict[tuple[str, str], array] = field(default_factory=lambda: defaultdict(lambda: array("d")))
    samples: dict[str, noise.Sample] = field(default_factory=dict)
    measured: list[noise.Floor] = field(default_factory=list)


def _second_look(config: Config, source: Path, has_key: dict[tuple[str, str], bool]) -> Seen:
    """Judge every child once, before any is labelled."""
    seen = Seen()
    columns = ["run", "task", "scaffold_release", "child_metrics"] + ["child_code", "language"] * bool(config.noise)

    def scored() -> Iterator[tuple[str, str, str, float | None]]:
        for row in shards.light_rows(source, columns):
            place = row["run"], row["task"]
            verdict = _judged(row["child_metrics"], row["scaffold_release"], config.score_key, not has_key[place],
                              config.features)  # fmt: skip
            if verdict and verdict.score is not None:
                seen.scores[place].append(verdict.score)
                yield row["task"], row.get("child_code", ""), row.get("language", ""), verdict.score

    seen.samples = noise.sample(scored(), config.noise or 1)
    for place, scores in seen.scores.items():
        seen.scores[place] = array("d", sorted(scores))
    return seen


def _floors(config: Config, seen: Seen) -> dict[str, float]:
    """The noise floor of every task, where it is to be measured."""
    if not config.noise:
        return {}
    from eft.tasks import sandbox

    folders = {name: config.path(folder) for name, folder in config.tasks.items()}
    for task in seen.samples:
        noise.task_of(task, folders)  # a task without an evaluator is told before hours of measuring
    sandbox.choose(config.sandbox)
    for task, sample in sorted(seen.samples.items()):
        seen.measured.append(noise.measure(task, sample.programs(), folders, key=config.score_key,
                                           repeats=config.noise_repeats))  # fmt: skip
    noise.say(seen.measured)
    return {f.task: f.floor for f in seen.measured}


# ------------------------------------------------------------------------------------------------------ raw metrics


@functools.cache
def _shipped(name: str) -> Any:
    """The shipped task of this name, or None. Never a folder that a log names."""
    from eft.tasks.task import find_task, shipped

    return find_task(name) if name in shipped() else None


def _raw(config: Config, row: Transition) -> float | None:
    """The child's raw metric, None where the child is not valid or nothing says which metric that is."""
    task = _shipped(row.task)
    name = task.raw_metric if task else config.raw_metric
    if name is None or row.child_validity != Validity.VALID:
        return None
    value = score(json.loads(row.child_metrics).get(name))
    return value if value is not None and abs(value) < float("inf") else None


def _gap_closed(config: Config, row: Transition, raw: float | None) -> float | None:
    from eft.tasks.task import gap_closed

    if task := _shipped(row.task):
        return gap_closed(task, raw)
    if None in (raw, config.seed_raw, config.best_known):
        return None
    return (raw - config.seed_raw) / (config.best_known - config.seed_raw)


def _keep_best(config: Config, best: dict[str, dict[str, Any]], row: Transition, raw: float | None) -> None:
    """The best child of each task, by score, for the report."""
    if row.child_score is not None and row.child_score > best.get(row.task, {"score": -float("inf")})["score"]:
        task = _shipped(row.task)
        best[row.task] = {"score": row.child_score, "raw": raw, "gap_closed": row.gap_closed,
                          "direction": task.direction if task else config.direction}  # fmt: skip


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
