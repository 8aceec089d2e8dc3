"""The transitions table: what goes in comes out, whatever text a model produced."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eft import records
from eft.errors import EftError
from eft.records import COLUMNS, Transition, code_hash, read_transitions, to_json, write_transitions

KINDS = {"str": st.text(), "int": st.integers(-1, 10**9), "float | None": st.none() | st.floats(allow_nan=False),
         "int | None": st.none() | st.integers(-1, 10**9)}  # fmt: skip
rows = st.builds(Transition, **{f.name: KINDS[f.type] for f in dataclasses.fields(Transition)})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=30, deadline=None)
@given(st.lists(rows, max_size=5))
def test_round_trip_of_any_text(tmp_path: Path, batch: list[Transition]) -> None:
    file = tmp_path / "transitions.parquet"
    assert write_transitions(file, batch) == len(batch)
    again = list(read_transitions(tmp_path))
    for a, b in zip(batch, again, strict=True):
        for name in COLUMNS:
            x, y = getattr(a, name), getattr(b, name)
            if isinstance(x, str):
                x = x.encode("utf-8", "replace").decode()  # lone surrogates are the one thing that text cannot keep
            assert x == y, name


def test_long_rows_do_not_wait_for_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "BUFFERED", 3000)
    one = Transition(**{f.name: {"str": "x" * 40, "int": 1}.get(f.type) for f in dataclasses.fields(Transition)})
    assert write_transitions(tmp_path / "transitions.parquet", [one] * 9) == 9
    with pq.ParquetFile(tmp_path / "transitions.parquet") as file:
        groups = [file.metadata.row_group(g).num_rows for g in range(file.num_row_groups)]
    assert sum(groups) == 9 and len(groups) > 2


values = st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v))


@given(values)
def test_to_json_is_strict_json_whatever_the_floats(value: object) -> None:
    json.loads(to_json(value), parse_constant=lambda c: pytest.fail(f"{c} is not JSON"))


def test_to_json_keeps_non_finite_numbers_readable() -> None:
    assert json.loads(to_json([math.nan, math.inf, -math.inf])) == ["NaN", "Infinity", "-Infinity"]


def test_code_identity_ignores_line_ends_and_trailing_space() -> None:
    assert code_hash("a = 1  \r\nb = 2\n") == code_hash("a = 1\nb = 2")
    assert code_hash("a = 1") != code_hash("a = 2")


def test_foreign_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "transitions.parquet").write_text("not parquet")
    with pytest.raises(EftError, match="not a Parquet file"):
        list(read_transitions(tmp_path))
    with pytest.raises(EftError, match="no transitions table"):
        list(read_transitions(tmp_path / "absent"))


def test_a_table_with_other_columns_is_named(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"a": [1]}), tmp_path / "transitions.parquet")
    with pytest.raises(EftError, match="missing columns"):
        list(read_transitions(tmp_path))
