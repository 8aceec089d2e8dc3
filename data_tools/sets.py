"""Write training sets in any order from a table that does not fit into memory.

The source is read once, row group by row group, in parallel; each chosen row goes to the places in the sets that want
it. Sets larger than memory are sorted outside it: rows are dealt into buckets of neighbouring places on disk, and each
bucket is put in order by itself.
"""

from __future__ import annotations

import functools
import shutil
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_tools import shards
from data_tools.choose import Row
from eft import edits, manifest
from eft.records import Label

BUCKET = 256 << 20  # bytes of rows that are put in order at once
GROUP = 32 << 20  # bytes of a row group that is written
TEXTS = ("id", "task", "domain", "run", "prompt_system", "prompt_user", "response", "reasoning", "delta", "label",
         "prompt_format", "edit_kind", "model", "language")  # fmt: skip


@dataclass
class Plan:
    """One set: its file, its rows in order, whether `label` is a flag (KTO), weights of the loss by row id."""

    file: Path
    rows: list[Row]
    flag: bool
    weights: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Selected(shards.Unit):
    """A row group, and which of its rows go where: (set, row within the group, place in the set)."""

    wanted: tuple[tuple[int, int, int], ...] = ()


def columns(*, flag: bool, weighted: bool = False) -> Any:
    """The Arrow schema of a training set; `flag`: `label` is a bool (KTO), else the label's name."""
    import pyarrow as pa

    turn = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
    return pa.schema([
        ("id", pa.string()), ("task", pa.string()), ("domain", pa.string()), ("run", pa.string()), ("prompt", turn),
        ("completion", turn), ("reasoning", pa.string()), ("delta", pa.float64()),
        ("label", pa.bool_() if flag else pa.string()), ("prompt_format", pa.string()), ("edit_kind", pa.string()),
        ("model", pa.string()), *([("weight", pa.float64())] if weighted else []),
    ])  # fmt: skip


def write(source: Path, plans: list[Plan], response: str, config: shards.Workers, spill: Path) -> None:
    """Write all `plans` in one pass over the table. `response`: see `completion`. `spill`: a folder for buckets,
    removed again. Each file appears whole or not at all."""
    places: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for p, plan in enumerate(plans):
        for position, row in enumerate(plan.rows):
            places[row.number].append((p, position))
    parts, size = [], 0
    for unit in shards.units(source):
        wanted = tuple((p, number - unit.first, position) for number in range(unit.first, unit.first + unit.rows)
                       for p, position in places.get(number, ()))  # fmt: skip
        if wanted:
            parts.append(Selected(unit.file, unit.group, unit.first, unit.rows, wanted))
            size += _bytes(unit)
    rows = sum(p.rows for p in parts)
    per_bucket = max(1, BUCKET * max(1, rows) // max(1, size))  # rows of a bucket
    shutil.rmtree(spill, ignore_errors=True)
    spill.mkdir(parents=True)
    try:
        buckets = _Buckets(spill, per_bucket)
        for found in shards.mapped(functools.partial(_rows, response=response), parts, config):
            for p, block in found.items():
                buckets.add(p, block)
        buckets.close()
        for p, plan in enumerate(plans):
            _in_order(plan, buckets.of(p))
    finally:
        shutil.rmtree(spill, ignore_errors=True)


def _bytes(unit: shards.Unit) -> int:
    import pyarrow.parquet as pq

    with pq.ParquetFile(unit.file) as table:
        return table.metadata.row_group(unit.group).total_byte_size


def _rows(part: Selected, *, response: str) -> dict[int, bytes]:
    """The rows of one row group, by set, as Arrow streams with a column `place`. Runs in a worker."""
    import pyarrow as pa

    needed = [*TEXTS, *(["parent_code", "child_code"] if response == "diff" else [])]
    numbers = sorted({number for _, number, _ in part.wanted})
    rows = dict(zip(numbers, part.read(needed).take(pa.array(numbers, pa.int64())).to_pylist(), strict=True))
    made = {number: _made(row, response) for number, row in rows.items()}
    schema = columns(flag=False).append(pa.field("place", pa.int64()))
    by_set: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for p, number, position in part.wanted:
        by_set[p].append({**made[number], "place": position})
    blocks = {}
    for p, found in by_set.items():
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_table(pa.Table.from_pylist(found, schema=schema))
        blocks[p] = sink.getvalue().to_pybytes()
    return blocks


def _made(row: dict[str, Any], response: str) -> dict[str, Any]:
    system = [{"role": "system", "content": row["prompt_system"]}] if row["prompt_system"] else []
    return {
        **{name: row[name] for name in ("id", "task", "domain", "run", "reasoning", "delta", "label", "prompt_format",
                                        "edit_kind", "model")},
        "prompt": [*system, {"role": "user", "content": row["prompt_user"]}],
        "completion": [{"role": "assistant", "content": completion(row, response)}],
    }  # fmt: skip


def completion(row: dict[str, Any], form: str) -> str:
    """The reply to learn: as logged; or (`form` "diff") the smallest diff that says the same, where a diff was
    asked for and can say it."""
    if form == "diff" and row["edit_kind"] == "diff":
        try:
            return edits.render_diff(row["parent_code"], row["child_code"])
        except ValueError:
            pass
    return row["response"]


class _Buckets:
    """Rows by set and neighbourhood of places, in files."""

    def __init__(self, folder: Path, per_bucket: int) -> None:
        self._folder, self._per_bucket = folder, per_bucket
        self._writers: dict[tuple[int, int], Any] = {}

    def add(self, p: int, block: bytes) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        table = pa.ipc.open_stream(block).read_all()
        numbers = pc.divide(table["place"], self._per_bucket)
        for bucket in numbers.unique().to_pylist():
            if (p, bucket) not in self._writers:
                options = pa.ipc.IpcWriteOptions(compression="lz4")
                self._writers[p, bucket] = pa.ipc.new_stream(str(self._file(p, bucket)), table.schema, options=options)
            self._writers[p, bucket].write_table(table.filter(pc.equal(numbers, bucket)))

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()

    def of(self, p: int) -> Iterator[Any]:
        """The set's rows in order, bucket by bucket."""
        import pyarrow as pa

        for _, bucket in sorted(key for key in self._writers if key[0] == p):
            with pa.ipc.open_stream(str(self._file(p, bucket))) as reader:
                yield reader.read_all().sort_by("place")
            self._file(p, bucket).unlink()

    def _file(self, p: int, bucket: int) -> Path:
        return self._folder / f"{p}-{bucket}.arrows"


def _in_order(plan: Plan, tables: Iterator[Any]) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    schema = columns(flag=plan.flag, weighted=bool(plan.weights))
    with (
        manifest.atomic_file(plan.file) as temporary,
        pq.ParquetWriter(temporary, schema, compression="zstd") as writer,
    ):
        for table in tables:
            values = {name: table[name] for name in table.schema.names if name != "place"}
            if plan.flag:
                values["label"] = pc.equal(table["label"], str(Label.IMPROVED))
            if plan.weights:
                values["weight"] = pa.array([plan.weights[i] for i in table["id"].to_pylist()], pa.float64())
            ordered = pa.table([values[name] for name in schema.names], schema=schema)
            rows = max(1, GROUP * len(ordered) // max(1, ordered.nbytes))
            writer.write_table(ordered, row_group_size=rows)
