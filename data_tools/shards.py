"""Work on a table row group by row group: on this machine's cores, or on a cluster's through Ray Data.

A stage hands in a function of one row group; the results come back in the table's order, whatever finished first, so
that the same rows go in the same order to the same place for every number of workers and either executor. Only a few
row groups are in flight at once: memory does not grow with the table.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from eft.config import StageConfig
from eft.errors import EftError
from eft.records import COLUMNS, TABLE, Transition, opened, schema

_DEFAULTS = {f.name: f.default for f in dataclasses.fields(Transition)}
FEW = 4  # row groups (of 32 MiB of text, mostly) that are not worth starting processes for


class Workers(StageConfig):
    """Options of every stage that works in shards."""

    executor: Literal["local", "ray"] = Field(
        "local", description="Where the work is done: this machine's processes, or a Ray cluster (extra 'ray')."
    )
    workers: int = Field(0, ge=0, description="Processes; 0: one for every core that this process may use.")


@dataclass(frozen=True)
class Unit:
    """One row group of a Parquet file. `first`: the number of its first row in the table."""

    file: str
    group: int
    first: int
    rows: int

    def read(self, columns: Sequence[str]) -> Any:
        """Its rows as an Arrow table with `columns` of a transition, in that order and of their types. A column that an
        older table has not, and an empty place in a text or a whole number (a table that somebody brought), get their
        default.

        Raises EftError for a damaged file, and for a column of another kind.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        every = schema()
        wanted = pa.schema([every.field(name) for name in columns])
        try:
            with pq.ParquetFile(self.file) as table:
                there = set(table.schema_arrow.names)
                found = table.read_row_group(
                    self.group, columns=[name for name in columns if name in there], use_threads=False
                )
            arrays = [_column(found[c.name] if c.name in there else None, c, self.rows) for c in wanted]
            return pa.table(arrays, schema=wanted)
        except (pa.ArrowException, OSError) as e:
            raise EftError("rows of this table cannot be read", where=self.file, why=str(e).split("\n")[0][:300],
                           way_out="make the table again with 'eft harvest'") from None  # fmt: skip

    def transitions(self) -> Any:
        """Its rows with all columns of a transition."""
        return self.read(COLUMNS)


def _column(found: Any, column: Any, rows: int) -> Any:
    """`found` as values of `column` (an Arrow field), or its defaults where a table has no such column."""
    import pyarrow as pa
    import pyarrow.compute as pc

    default = _DEFAULTS[column.name]
    if found is None:
        return pa.array([default] * rows, column.type)
    found = found.cast(column.type)
    if default is None or not found.null_count:
        return found
    if default is dataclasses.MISSING:
        default = "" if column.type == pa.string() else -1
    return pc.fill_null(found, default)


def light_rows(source: Path, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Some columns of a transitions table, row by row: what a first look needs, without the prompts."""
    for unit in units(source):
        yield from unit.read(columns).to_pylist()


def units(source: Path) -> list[Unit]:
    """The row groups of a transitions table (`source`: the file, or a stage's output folder).

    Raises EftError for a missing file, something that is not Parquet, or a table without the expected columns.
    """
    file = source / TABLE if source.is_dir() else source
    with opened(source) as table:
        sizes = [table.metadata.row_group(i).num_rows for i in range(table.metadata.num_row_groups)]
    found, first = [], 0
    for i, rows in enumerate(sizes):
        found.append(Unit(str(file), i, first, rows))
        first += rows
    return found


def mapped(work: Callable[[Unit], Any], parts: list[Unit], config: Workers) -> Iterator[Any]:
    """`work` of every part, in the order of `parts`. `work` and its results must be picklable (a module's function, or
    a functools.partial of one).

    Raises what `work` raises, and EftError where a worker dies (memory) or Ray is asked for and not installed.
    """
    check_executor(config)
    if config.executor == "ray":
        yield from _by_ray(work, parts)
        return
    cores = config.workers or len(os.sched_getaffinity(0))
    if cores == 1 or len(parts) < FEW:
        yield from map(work, parts)
        return
    context = multiprocessing.get_context("forkserver")  # a fork of a process with Arrow's threads may hang
    context.set_forkserver_preload(["data_tools.shards", "pyarrow.parquet"])
    with ProcessPoolExecutor(min(cores, len(parts)), mp_context=context, initializer=_end_with_parent) as pool:
        waiting: deque = deque()
        left = iter(parts)
        try:
            for part in left:
                waiting.append(pool.submit(work, part))
                if len(waiting) > 2 * cores:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise EftError("a worker process died", where=parts[0].file, why="it was killed, most likely for memory",
                           way_out="run again with fewer --workers") from None  # fmt: skip
        finally:
            for future in waiting:
                future.cancel()


def _end_with_parent() -> None:
    """In a worker: end when the stage is killed. A worker that waits for work would wait for ever, since it holds the
    other end of its queue itself."""
    import threading

    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def check_executor(config: Workers) -> None:
    """Raises EftError where Ray is asked for and not installed. Stages ask before they touch an earlier output."""
    if config.executor == "ray" and importlib.util.find_spec("ray") is None:
        raise EftError("Ray is not installed", where="--executor ray",
                       way_out="pip install 'evolution-finetuning[ray]', or leave --executor away")  # fmt: skip


def _by_ray(work: Callable[[Unit], Any], parts: list[Unit]) -> Iterator[Any]:
    """The same through Ray Data. The files must be readable under the same path on every node."""
    import ray
    import ray.data

    if not ray.is_initialized():
        ray.init(log_to_driver=False, logging_level="error", include_dashboard=False)
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    found = ray.data.from_items([{"n": n} for n in range(len(parts))], override_num_blocks=len(parts))

    def one(row: dict[str, int]) -> dict[str, Any]:
        import pickle

        return {"n": row["n"], "value": pickle.dumps(work(parts[row["n"]]))}

    import pickle

    for row in found.map(one).iter_rows():
        yield pickle.loads(row["value"])  # written by our own worker, above
