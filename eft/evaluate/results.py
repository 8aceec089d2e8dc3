"""What an evaluation writes and everything after it reads: `results.json`, as plain frozen dataclasses.

One file, self-contained: the report of an evaluation needs nothing else (the data's provenance is read beside it where
it is found). Reading is tolerant of missing keys, so that a half-finished evaluation still compares and reports.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from eft.errors import EftError, UsageError

NAME = "results.json"
FORMAT = 2  # 1: without loops, which is what is written where only programs were searched
PROGRAMS = "programs"  # the loop of tasks that name none

# What became of one proposal: exactly one of these or a failure reason, so a search's outcomes add up to its proposals.
IMPROVED, NOT_IMPROVED, REPAIRED, NO_OP = "improved", "not_improved", "repaired", "no_op"
BROKEN = "invalid:syntax"  # it does not compile, or parse
VALID = (IMPROVED, NOT_IMPROVED, REPAIRED)  # parses, applies, changes the syntax tree, evaluates as valid


@dataclass(frozen=True)
class TaskInfo:
    """A held-out task. `start_raw`, `best_known`: the task's own metric `raw_metric`, in its own `direction`."""

    name: str
    domain: str = ""
    direction: str = "max"  # max | min
    raw_metric: str = "combined_score"
    start_raw: float | None = None
    start_score: float | None = None
    best_known: float | None = None
    best_known_source: str = ""
    isolation: str = ""
    has_hidden: bool = False  # are there instances that no candidate sees during a search?
    hidden_start_raw: float | None = None  # on the hidden instances; a search's own measurement goes before it
    hidden_best_known: float | None = None
    fingerprint: str = ""  # of everything that decides a score; tells two versions of a task apart
    loop: str = PROGRAMS  # the loop that it belongs to; loops are compared apart, and no mean is over several
    family: str = ""  # tasks of one family are no independent tasks; "": not recorded


@dataclass(frozen=True)
class MutatorInfo:
    """A contender. `of`: the mutator whose replies `best_of_n` samples, or those that `routed` chooses among. `error`:
    why it could not run at all.

    `edit`: the form of its edits (diff, rewrite), "" for the evaluation's. `trained_on`: domains of its training data,
    empty where its provenance does not say. A `served` control is a format control: a model that was trained on as many
    random valid edits.
    """

    name: str
    kind: str = "served"  # served | ast | best_of_n | replay | routed; method: a loop's control, no mutator at all
    role: str = "tuned"  # baseline | tuned | control | bound
    model: str = ""
    of: str = ""
    lookahead: int = 0
    error: str = ""
    edit: str = ""
    trained_on: tuple[str, ...] = ()


@dataclass(frozen=True)
class Step:
    """One edit on the way from the start program to the best one. `raw`: the search's metric after it."""

    proposal: int  # from 1
    raw: float | None
    diff: str  # unified, parent -> child


@dataclass(frozen=True)
class Search:
    """One search of one mutator on one task with one seed.

    `curve`: the raw metric of the best program so far after 0 (the start program), 1, 2, … proposals; None where it is
    not known. `gain`: sum over proposals of the positive parts of (child - parent), in units of the gap. Tokens are
    None where the server did not bill them. `seconds`: wall time of the search.

    `final_*`: the best program on the task's hidden instances, evaluated once after the search; `start_final_raw`: the
    start program there. `final_raw` None beside a `start_final_raw`: the best program failed on them. All three None:
    results of a release that did not measure it.
    """

    mutator: str
    task: str
    seed: int
    status: str = "done"  # done | failed
    reason: str = ""
    iterations: int = 0
    best_score: float | None = None
    best_raw: float | None = None
    curve: tuple[float | None, ...] = ()
    proposals: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    distinct: int = 0
    evaluations: int = 0
    gain: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    seconds: float = 0.0
    examples: dict[str, str] = field(default_factory=dict)  # failure reason -> one reply (cut short)
    best_diff: str = ""  # start program -> best program, unified
    scaffold: str = ""  # "": the evaluation's
    final_score: float | None = None
    final_raw: float | None = None
    start_final_raw: float | None = None
    sandbox: str = ""  # what the candidates were contained by, in words; "": not recorded
    lineage: tuple[Step, ...] = ()  # the edits that made the best program, oldest first; () where they are not known

    @property
    def valid(self) -> int:
        return sum(self.outcomes.get(o, 0) for o in VALID)


@dataclass(frozen=True)
class Method:
    """What a loop's own control found on one task with one seed, in as many evaluations as a search has (no mutator).

    Values in the task's raw metric, as a Search has them. `bound`: an upper end (an oracle), shown and not compared
    with.
    """

    name: str
    task: str
    seed: int
    final_raw: float | None = None
    curve: tuple[float | None, ...] = ()
    evaluations: int = 0
    bound: bool = False
    note: str = ""


@dataclass(frozen=True)
class Confirmed:
    """The best program of a mutator's searches on a task, against a `reference`, on rows that neither the searches nor
    their final values have seen. `difference`: positive where the program is better; 95 % interval over `items`."""

    mutator: str
    task: str
    seed: int
    reference: str
    value: float | None = None
    reference_value: float | None = None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    items: int = 0
    what: str = ""
    note: str = ""


@dataclass(frozen=True)
class Results:
    """A whole evaluation. `planned`: how many searches it is to have; fewer in `searches` means it is not finished.

    `planned_of`: the same by loop. `methods`, `confirmed`: of loops that have controls of their own and fresh rows.
    `troubles`: what failed of them, in words, by loop.
    """

    tasks: tuple[TaskInfo, ...]
    mutators: tuple[MutatorInfo, ...]
    searches: tuple[Search, ...]
    planned: int = 0
    seeds: tuple[int, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    command: str = ""
    started: float = 0.0
    seconds: float = 0.0
    planned_of: dict[str, int] = field(default_factory=dict)
    methods: tuple[Method, ...] = ()
    confirmed: tuple[Confirmed, ...] = ()
    troubles: dict[str, str] = field(default_factory=dict)


def to_json(results: Results) -> dict[str, Any]:
    """`results` as a JSON object (non-finite numbers become null: they are not JSON).

    With other loops than programs in a format that releases before loops refuse: they would take them for tasks.
    """
    known = FORMAT if any(t.loop != PROGRAMS for t in results.tasks) else 1
    return {"format": known, **plain(dataclasses.asdict(results))}


def plain(value: Any) -> Any:
    """`value` as JSON has it: lists for tuples, null for numbers that are none."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, list | tuple) else value


def from_json(data: dict[str, Any]) -> Results:
    """The reverse of `to_json`; unknown keys are left out. Raises ValidationError on anything else."""
    return TypeAdapter(Results).validate_python({"tasks": (), "mutators": (), "searches": (), **data})


def _finite(literal: str) -> float:
    """What json.load makes of a number with a point; NaN, infinities and what overflows to them are no results."""
    value = float(literal)
    if not math.isfinite(value):
        raise ValueError(f"{literal[:20]} is not a finite number")
    return value


def load(path: Path) -> Results:
    """The results in `path` (the file, or the folder of an evaluation).

    Raises UsageError where there is no such file, EftError where it holds something else or a newer format.
    """
    file = path / NAME if path.is_dir() else path
    try:
        data = json.loads(file.read_text(encoding="utf-8"), parse_float=_finite, parse_constant=_finite)
    except FileNotFoundError:
        raise UsageError(
            "there are no results", where=file, way_out="run 'eft evaluate' first, or name its output folder"
        ) from None
    except (OSError, ValueError, RecursionError) as e:
        raise EftError(
            "the results cannot be read", where=file, why=str(e), way_out="run 'eft evaluate' again"
        ) from None
    if not isinstance(data, dict) or "searches" not in data:
        raise EftError("this is not the result of an evaluation", where=file, why="it has no 'searches'")
    if data.get("format", FORMAT) not in range(1, FORMAT + 1):
        raise EftError(f"results of format {data['format']}, this release reads up to {FORMAT}", where=file)
    try:
        return from_json(data)
    except ValidationError as e:
        first = e.errors()[0]
        why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise EftError("the results are damaged", where=file, why=why, way_out="run 'eft evaluate' again") from None
