"""The shared vocabulary: Program, Transition, Label, Validity, and the one table that stages exchange.

A transition is (instruction I, parent x[t-1], history H[t-1], logs F[t-1]) -> child x[t] (EFT, arXiv 2606.29082). Every
stage of the data side reads and writes `transitions.parquet` with the columns of `Transition`, in order; a later stage
fills columns that an earlier one left empty and never invents a value.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import hashlib
import itertools
import json
import math
import operator
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eft.errors import EftError

TABLE = "transitions.parquet"
BUFFERED = 32 << 20  # characters of rows that wait to be written together


class Validity(enum.StrEnum):
    """Is a program's score a score at all? Everything but VALID is a reason why not."""

    VALID = "valid"
    ERROR = "evaluator_error"
    TIMEOUT = "timeout"
    NON_FINITE = "non_finite"
    INCORRECT = "incorrect"
    NO_SCORE = "no_score"


class Label(enum.StrEnum):
    """What a transition did. The first three need a valid parent and a valid child."""

    IMPROVED = "improved"
    NO_CHANGE = "no_change"
    REGRESSED = "regressed"
    REPAIR = "repair"  # invalid -> valid
    BREAKAGE = "breakage"  # valid -> invalid
    UNRECOVERABLE = "unrecoverable"  # invalid -> invalid


class ScoreKind(enum.StrEnum):
    """Where a score came from: the declared key, `combined_score`, or the scaffold's own average of the metrics."""

    KEY = "key"
    COMBINED = "combined_score"
    AVERAGED = "averaged"
    NONE = ""


@dataclass(frozen=True)
class Program:
    """One candidate solution. `metrics` as logged (raw); `artifacts`: its execution logs by name."""

    id: str
    code: str
    language: str = "python"
    metrics: dict[str, Any] = field(default_factory=dict)
    artifacts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Transition:
    """One row of `transitions.parquet`. JSON columns hold objects as text (NaN and infinity as strings)."""

    id: str  # transition_id(): stable over re-harvests
    run: str  # name of the search that it came from
    scaffold: str  # "openevolve", "gateway", ...
    scaffold_release: str  # as far as the log tells, "" where it does not
    task: str
    domain: str  # "" where unknown
    suite_role: str  # train, validation, gate, heldout, or "" for logs that no suite names
    iteration: int
    island: int  # -1 where unknown; advisory
    generation: int
    parent_id: str
    child_id: str
    language: str
    parent_code: str
    child_code: str
    parent_metrics: str  # JSON
    child_metrics: str  # JSON
    parent_artifacts: str  # JSON
    child_artifacts: str  # JSON
    prompt_system: str
    prompt_user: str
    prompt_format: str  # e.g. openevolve@0.4, eft@1; "" where no prompt was logged
    response: str
    reasoning: str
    edit_kind: str  # diff, rewrite, or "" where unknown
    replay: str  # match: child == apply(parent, response); mismatch; unknown: no response logged
    model: str  # who answered, "" where not logged
    prompt_tokens: int  # as billed by the server, -1 where not logged
    response_tokens: int
    sources: str  # JSON list: the files that this row was put together from
    # later columns have defaults: tables of an older release lack them
    prompt_source: str = ""  # logged; rebuilt (data_tools/rebuild.py); "" where there is no prompt
    origin_id: str = ""  # the parent, or, where that is a migrant, the program that it is a copy of; "": not resolved
    inspirations: str = "[]"  # JSON list: ids of the programs that the prompt showed beside the parent, where logged
    # filled by `eft label`
    parent_score: float | None = None
    child_score: float | None = None
    score_kind: str = ""
    parent_validity: str = ""
    child_validity: str = ""
    delta: float | None = None  # child_score - parent_score, None unless both ends are valid
    label: str = ""
    relative_delta: float | None = None  # delta / |parent_score|, None where that is 0
    rank: int | None = None  # of the child's score among all programs of this run and task, 1 is the best
    gap_closed: float | None = None  # of the child: 0 is the seed program, 1 the best known; None: not declared
    noise: float | None = None  # the change of the score that counts as none in this row

    def replace(self, **changes: Any) -> Transition:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)


COLUMNS = tuple(f.name for f in dataclasses.fields(Transition))
REQUIRED = tuple(f.name for f in dataclasses.fields(Transition) if f.default is dataclasses.MISSING)


def transition_id(run: str, parent_id: str, child_id: str) -> str:
    """A stable id: 24 hex digits of the SHA-256 over run, parent and child."""
    return hashlib.sha256(f"{run}\0{parent_id}\0{child_id}".encode()).hexdigest()[:24]


def code_hash(code: str) -> str:
    """Identity of a program's text: 24 hex digits of SHA-256, line ends and trailing white space normalised."""
    normal = "\n".join(line.rstrip() for line in code.replace("\r\n", "\n").split("\n")).strip()
    return hashlib.sha256(normal.encode("utf-8", "surrogatepass")).hexdigest()[:24]


_ENCODER = json.JSONEncoder(ensure_ascii=False, default=str, separators=(",", ":"))


def to_json(value: Any) -> str:
    """Compact JSON; NaN and infinities become the strings 'NaN', 'Infinity', '-Infinity': any reader can load it."""

    def clean(v: Any) -> Any:
        if isinstance(v, float) and not math.isfinite(v):
            return "NaN" if math.isnan(v) else ("Infinity" if v > 0 else "-Infinity")
        if isinstance(v, dict):
            return {str(k): clean(x) for k, x in v.items()}
        if isinstance(v, list | tuple):
            return [clean(x) for x in v]
        return v

    if type(value) is dict and all(type(k) is str and type(v) in (str, int, bool) for k, v in value.items()):
        return _ENCODER.encode(value)  # most of them: nothing to clean
    return _ENCODER.encode(clean(value))


def schema(**extra: str) -> Any:
    """The Arrow schema of a transitions table, with more columns behind it (name -> "str", "int", "float | None"…)."""
    import pyarrow as pa

    types = {"int": pa.int64(), "int | None": pa.int64(), "str": pa.string(), "float | None": pa.float64()}
    columns = [(f.name, f.type) for f in dataclasses.fields(Transition)] + list(extra.items())
    return pa.schema([(name, types[kind]) for name, kind in columns])


# Columns of long texts, no two alike: a dictionary of their values and the smallest and largest of them cost time only.
LONG = {"parent_code", "child_code", "parent_artifacts", "child_artifacts", "prompt_user", "response", "reasoning"}


def storable(text: str) -> str:
    """Lone surrogates (broken model output) cannot be stored as UTF-8: they become U+FFFD."""
    return text.encode("utf-8", "replace").decode("utf-8") if not text.isascii() else text


class Table:
    """A Parquet file being written, see `writing`. `count`: rows added so far."""

    def __init__(self, writer: Any, columns: Any, batch: int) -> None:
        self.count, self._writer, self._columns, self._batch = 0, writer, columns, batch
        self._start()

    def add(self, row: Transition | dict[str, Any], **extra: Any) -> None:
        """Add a row: a dict with the schema's columns, or a Transition; more columns as keywords."""
        values = _values(row) if isinstance(row, Transition) else row
        values = {**values, **extra} if extra else values
        self.count += 1
        for name, column in self._buffer.items():
            value = values.get(name)
            if type(value) is str:
                self._characters += len(value)
                if not value.isascii():
                    value = storable(value)
            column.append(value)
        self._rows += 1
        if self._rows >= self._batch or self._characters >= BUFFERED:
            self.flush()

    def flush(self) -> None:
        import pyarrow as pa

        if self._rows:
            arrays = [_column(self._buffer[f.name], f.type) for f in self._columns]
            self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._columns))
            self._start()

    def _start(self) -> None:
        self._buffer: dict[str, list[Any]] = {name: [] for name in self._columns.names}
        self._rows = self._characters = 0


_values = operator.attrgetter("__dict__")  # of a Transition: its columns


def _column(values: list[Any], kind: Any) -> Any:
    """The values as an Arrow array. Plain columns are put together by hand: `pa.array` would load pandas first, which
    takes longer than writing a search of a thousand rows."""
    import pyarrow as pa

    try:
        if kind == pa.string():
            encoded = [v.encode("utf-8") for v in values]
            offsets = array("i", itertools.accumulate(map(len, encoded), initial=0))
            return pa.StringArray.from_buffers(len(values), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded)))
        if kind in (pa.int64(), pa.float64()):
            if not any(v is not None for v in values):
                return pa.nulls(len(values), kind)
            numbers = array("q" if kind == pa.int64() else "d", values)
            return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(numbers)])
    except (AttributeError, TypeError, OverflowError, ValueError):
        pass  # missing values among others, or something that does not belong here: pyarrow knows, or says so
    return pa.array(values, kind)


@contextlib.contextmanager
def writing(path: Path, columns: Any, batch: int = 2048) -> Iterator[Table]:
    """Write one Parquet file with the schema `columns`, streaming (zstd), atomically: it exists if all went well."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from eft.manifest import atomic_file

    short = [f.name for f in columns if f.name not in LONG and f.type in (pa.string(), pa.int64(), pa.float64())]
    settings = {"compression": "zstd", "use_dictionary": short or False, "write_statistics": short or False}
    with atomic_file(path) as temporary, pq.ParquetWriter(temporary, columns, **settings) as writer:
        table = Table(writer, columns, batch)
        yield table
        table.flush()


def write_transitions(path: Path, rows: Iterable[Transition]) -> int:
    """Write rows to one Parquet file (streaming, zstd, atomic). Returns how many."""
    with writing(path, schema()) as table:
        for row in rows:
            table.add(row)
    return table.count


def read_transitions(path: Path) -> Iterator[Transition]:
    """Rows of a transitions table (`path`: the file, or a stage's output folder), streaming.

    Raises EftError for a missing file, something that is not Parquet, or a table without the expected columns.
    """
    with opened(path) as table:
        there = set(table.schema_arrow.names)
        for group in table.iter_batches(batch_size=1024, columns=[c for c in COLUMNS if c in there]):
            for values in group.to_pylist():
                yield Transition(**values)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Any]:
    """A transitions table (`path`: the file, or a stage's output folder) as an open pyarrow ParquetFile.

    Raises EftError for a missing file, something that is not Parquet, or a table without the expected columns.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = path / TABLE if path.is_dir() else path
    try:
        table = pq.ParquetFile(file)
    except FileNotFoundError:
        raise EftError("there is no transitions table", where=file, way_out="run 'eft harvest' first") from None
    except (pa.ArrowInvalid, OSError) as e:
        raise EftError("this is not a Parquet file", where=file, why=str(e)) from None
    with table:
        missing = set(REQUIRED) - set(table.schema_arrow.names)
        if missing:
            raise EftError("this table is not a transitions table", where=file,
                           why=f"missing columns: {', '.join(sorted(missing))}")  # fmt: skip
        yield table
