"""What one search is asked to do (`SearchSpec`) and what came of it (`SearchResult`): the same for every scaffold.

A spec is a file (`spec.json`) handed to a process of its own; a result is a file (`result.json`) written last and
atomically, so a search is finished exactly when its result can be read. Scores are the scaffold's `combined_score`
(higher is better); *raw* values are the task's own metric, whose direction only reporting uses.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eft.errors import EftError, UsageError, nearest
from eft.manifest import write_json

SPEC, RESULT, RUN, LOG, CACHE = "spec.json", "result.json", "run.json", "search.log", "evaluations.jsonl"
EDITS = ("diff", "rewrite")
# scaffold -> module. A module exports body(spec), which does the search inside a process of its own and writes
# result.json last, and run_search(spec, timeout_s=None) -> SearchResult, which starts that process and waits.
SCAFFOLDS = {
    "openevolve": "eft.search.openevolve",
    "best_of_n": "eft.search.best_of_n",
    "tournament": "eft.search.tournament",
    "shinka": "eft.search.shinka",
}

# What may change between two attempts at the same search without making it another search.
_INCIDENTAL = ("base_url", "request_timeout_s", "api_key_env", "out", "journal")


@dataclass(frozen=True)
class SearchSpec:
    """One search. The defaults are the paper's: 100 candidates, temperature 0.7, top-p 0.95, 30,000 tokens a reply."""

    task: str  # the task's folder
    base_url: str  # OpenAI-compatible; through the gateway: http://127.0.0.1:PORT/s/<search>/<mutator>/v1
    out: str  # this search's own folder
    name: str = ""  # id of the search in journals; default: the folder's name
    mutator: str = ""  # name in results
    model: str = ""  # model name sent with requests; default: the mutator's name
    scaffold: str = "openevolve"
    seed: int = 0
    iterations: int = 100
    edit: str = "diff"
    prompt_format: str = "openevolve@0.4"
    temperature: float = 0.7
    top_p: float = 0.95
    max_tokens: int = 30_000
    request_timeout_s: float = 600.0
    journal: str | None = None  # the gateway's journal file of this search
    domain: str = ""
    role: str = ""
    api_key_env: str = ""  # environment variable that holds a key; not needed behind a gateway

    def __post_init__(self) -> None:
        if self.scaffold not in SCAFFOLDS:
            raise UsageError(f"unknown scaffold '{self.scaffold}'", way_out=nearest(self.scaffold, SCAFFOLDS))
        if self.edit not in EDITS:
            raise UsageError(f"unknown edit form '{self.edit}'", way_out=nearest(self.edit, EDITS))
        if self.iterations < 1:
            raise UsageError("a search needs at least one iteration", why=f"iterations is {self.iterations}")
        # frozen: the two defaults that depend on other fields are filled in here, once
        object.__setattr__(self, "name", self.name or Path(self.out).name)
        object.__setattr__(self, "model", self.model or self.mutator or "mutator")

    @property
    def folder(self) -> Path:
        return Path(self.out)

    def identity(self) -> dict[str, Any]:
        """What makes it this search and no other; a finished result of an equal identity need not be made again."""
        value = dataclasses.asdict(self)
        return {k: v for k, v in value.items() if k not in _INCIDENTAL}

    def replace(self, **changes: Any) -> SearchSpec:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def save(self, path: Path) -> None:
        write_json(path, dataclasses.asdict(self))

    @classmethod
    def load(cls, path: Path) -> SearchSpec:
        """Raises EftError for a file that is missing or not a spec."""
        return _from_json(cls, path, "search spec")


@dataclass(frozen=True)
class Candidate:
    """One reply of the mutator, and what became of it.

    `status`: ok; duplicate (valid, but this child was made before in this search); invalid (evaluated, not valid);
    no_op (the child is the parent); no_edit, unmatched, malformed, empty, too_long (nothing to evaluate);
    request_error (no reply); lost (the scaffold recorded nothing for this iteration).
    """

    index: int  # order, from 0
    iteration: int  # the scaffold's number, from 1
    status: str
    detail: str = ""
    applied: bool = False
    changes_syntax: bool = False
    valid: bool = False
    score: float | None = None
    raw: float | None = None
    parent_score: float | None = None
    parent_hash: str = ""
    code_hash: str = ""
    prompt_tokens: int = -1  # -1: not told by the server
    completion_tokens: int = -1
    seconds: float | None = None  # the request alone
    finish_reason: str = ""

    @property
    def valid_edit(self) -> bool:
        """Parses, applies, changes the syntax tree and evaluates as valid."""
        return self.applied and self.changes_syntax and self.valid


@dataclass(frozen=True)
class SearchResult:
    """What came of one search. `replies` is the denominator of every rate: one for every iteration that was done.

    `final_score`, `final_raw`: the best program on the task's hidden instances, evaluated once, after the search;
    `seed_final_raw`: the seed program there. Where the task has no hidden form they equal best_score, best_raw and
    seed_raw. `final_raw` None beside a `seed_final_raw`: the best program failed on the hidden instances.
    """

    name: str
    task: str
    domain: str
    role: str
    mutator: str
    model: str
    seed: int
    scaffold: str
    scaffold_release: str
    prompt_format: str
    edit: str
    iterations: int  # asked for
    iterations_done: int
    seed_score: float | None
    seed_raw: float | None
    best_score: float | None
    best_raw: float | None
    best_code: str
    best_curve: tuple[float | None, ...]  # best score so far, the seed included, after each iteration
    raw_curve: tuple[float | None, ...]  # raw metric of that best program
    candidates: tuple[Candidate, ...]
    replies: int
    valid_edits: int
    distinct_valid_edits: int  # the distinct children among them; the seed program is not one
    failures: dict[str, int] = field(default_factory=dict)  # status -> count, the good ones left out
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    note: str = ""  # what a reader of the numbers must know, such as "no reply could be used: the result is the seed"
    spec: dict[str, Any] = field(default_factory=dict)  # SearchSpec.identity()
    final_score: float | None = None
    final_raw: float | None = None
    seed_final_raw: float | None = None
    sandbox: str = ""  # what the candidates ran in, in words
    isolation: str = ""  # the task's: isolated (candidate and scorer apart) or contained (together in the sandbox)

    @property
    def valid_edit_rate(self) -> float | None:
        return self.valid_edits / self.replies if self.replies else None

    def save(self, path: Path) -> None:
        write_json(path, {**dataclasses.asdict(self), "valid_edit_rate": self.valid_edit_rate})

    @classmethod
    def load(cls, path: Path) -> SearchResult:
        """Raises EftError for a file that is missing or not a result."""
        result = _from_json(cls, path, "search result")
        return dataclasses.replace(
            result,
            candidates=tuple(Candidate(**c) for c in result.candidates),
            best_curve=tuple(result.best_curve),
            raw_curve=tuple(result.raw_curve),
        )


def _from_json(cls: type, path: Path, what: str) -> Any:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise EftError(f"there is no {what}", where=path) from None
    except (OSError, ValueError) as e:
        raise EftError(f"this is not a {what}", where=path, why=str(e)) from None
    names = {f.name for f in dataclasses.fields(cls)}
    try:
        return cls(**{k: v for k, v in data.items() if k in names})
    except (TypeError, AttributeError) as e:
        raise EftError(f"this is not a {what}", where=path, why=str(e)) from None


def finished(spec: SearchSpec) -> SearchResult | None:
    """The result of exactly this search where it is already there, else None."""
    try:
        result = SearchResult.load(spec.folder / RESULT)
    except EftError:
        return None
    return result if result.spec == spec.identity() else None


def finite(value: Any) -> float | None:
    """`value` as a finite float, or None: results are strict JSON, which has no NaN and no infinity."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # an int beyond any float
        return None
    return number if math.isfinite(number) else None
