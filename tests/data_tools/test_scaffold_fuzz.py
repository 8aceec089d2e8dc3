"""Logs of other scaffolds with anything wrong in them: what can be read is read, the rest named, nothing harmed."""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scaffold_logs import (
    SHINKA_COLUMNS,
    checkpoint_bytes,
    codeevolve_program,
    codeevolve_run,
    shinka_db,
    shinka_row,
    sky_checkpoint,
    sky_program,
)
from synthetic_runs import checkpoint, child, program_json

from data_tools import harvest
from data_tools.find import READERS, find
from data_tools.readers import pickles
from data_tools.readers import sqlite as reading_sqlite
from data_tools.readers.files import RECORD, Problems, Unreadable
from data_tools.readers.search import Options, Search
from eft.errors import EftError
from eft.records import Transition, read_transitions, write_transitions

FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
FEWER = settings(FEW, max_examples=6)
PATHS = st.sampled_from(["../../escape", "/etc/passwd", "a/b", "", ".", "\0", "x" * 5000, "…", "\ud800"])
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30) | PATHS | st.just(10**400),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
NUMBERS = st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
CELLS = NUMBERS | st.binary(max_size=40) | WORDS | JUNK.map(json.dumps)
SKY_FIELDS = [k for k in sky_program(1) if k not in ("id", "solution")]
CODEEVOLVE_FIELDS = list(codeevolve_program(1))
FLIPS = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=8)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def read(run: Path) -> tuple[list[Transition], Search]:
    """Found and read by whoever claims it; the rows can be stored, and nothing in the run was touched."""
    before = contents(run)
    with tempfile.TemporaryDirectory() as place:
        name, roots = find([run]).searches[0]
        search = READERS[name].read(roots, Options())
        rows = list(search.rows)
        list(search.refused)
        write_transitions(Path(place) / "t.parquet", rows)
        assert len(list(read_transitions(Path(place) / "t.parquet"))) == len(rows)
    assert contents(run) == before
    return rows, search


def fresh(tmp_path: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=tmp_path)) / "run"


class TestShinka:
    @FEW
    @given(changes=st.dictionaries(st.sampled_from([c for c in SHINKA_COLUMNS if c != "id"]), CELLS, max_size=6))
    def test_cells_of_any_type(self, tmp_path, changes):
        run = fresh(tmp_path)
        schema = f"CREATE TABLE programs ({', '.join(SHINKA_COLUMNS)})"  # no types: SQLite keeps what it is given
        shinka_db(run / "programs.sqlite", [shinka_row(0, None), shinka_row(1) | changes, shinka_row(2)], schema=schema)
        rows, search = read(run)
        assert "p2" in {r.child_id for r in rows} and search.counts["programs"] == 3

    @FEW
    @given(meta=JUNK, said=JUNK, parent=PATHS | st.just("p1"))
    def test_metadata_of_any_shape_and_ids_that_are_paths(self, tmp_path, meta, said, parent):
        run = fresh(tmp_path)
        odd = shinka_row(1) | {"metadata": json.dumps({"llm_result": said, "patch_type": meta, "stdout_log": meta,
                                                       "_original_program_id": meta, "node_kind": meta})}  # fmt: skip
        parent = parent.encode("utf-8", "replace").decode()
        shinka_db(run / "programs.sqlite", [shinka_row(0, None), odd, shinka_row(2) | {"parent_id": parent}])
        rows, _ = read(run)
        assert all(r.parent_id == parent for r in rows if r.child_id == "p2")

    @FEW
    @given(cut=st.integers(0, 100), flips=FLIPS)
    def test_files_cut_off_and_with_bytes_changed(self, tmp_path, cut, flips):
        run = fresh(tmp_path)
        path = shinka_db(run / "programs.sqlite", [shinka_row(0, None)] + [shinka_row(n) for n in range(1, 30)])
        data = bytearray(path.read_bytes())
        for at, value in flips:
            data[20 + at % (len(data) - 20)] = value
        path.write_bytes(bytes(data[: max(len(data) * (100 - cut) // 100, 20)]))
        try:
            rows, _ = read(run)
        except (EftError, IndexError):  # nothing in it looks like a log any more
            return
        assert len(rows) <= 29

    def test_a_damaged_page_costs_its_rows_only(self, tmp_path):
        run = tmp_path / "run"
        path = shinka_db(run / "programs.sqlite", [shinka_row(0, None)] + [shinka_row(n) for n in range(1, 200)])
        data = bytearray(path.read_bytes())
        middle = len(data) // 2 // 4096 * 4096
        data[middle : middle + 4096] = os.urandom(4096)
        path.write_bytes(data)
        rows, search = read(run)
        assert 150 < len(rows) < 199 and len(search.problems) > 0

    def test_a_huge_cell_is_named_and_the_rest_is_read(self, tmp_path):
        run = tmp_path / "run"
        rows = [shinka_row(0, None), shinka_row(1) | {"metadata": "x" * (RECORD + 1)}, shinka_row(2)]
        shinka_db(run / "programs.sqlite", rows)
        del rows
        tracemalloc.start()
        found, search = read(run)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert [r.child_id for r in found] == ["p2"] and len(search.problems) == 1 and peak < 3 * RECORD

    @pytest.mark.parametrize("schema", [
        "CREATE VIEW programs AS WITH RECURSIVE r(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM r) "
        "SELECT id, '' AS code, 'p' AS parent_id, 1 AS generation, 1 AS combined_score, '{}' AS metadata FROM r",
        "CREATE TABLE programs (id, code AS (zeroblob(1 << 26)), parent_id, generation, combined_score, metadata)",
    ], ids=["endless view", "computed column"])  # fmt: skip
    def test_a_schema_that_computes(self, tmp_path, schema):
        (tmp_path / "run").mkdir()
        with sqlite3.connect(tmp_path / "run" / "programs.sqlite") as db:
            db.execute(schema)
            if "TABLE" in schema:
                db.execute("INSERT INTO programs (id, parent_id, generation) VALUES ('a', 'b', 1)")
        db.close()
        with pytest.raises(EftError, match="no transition|no search logs"):
            harvest.run(harvest.Config(runs=[tmp_path / "run"], output=tmp_path / "out"))

    def test_a_statement_without_end_is_ended(self, tmp_path, monkeypatch):
        monkeypatch.setattr(reading_sqlite, "STEPS", 2)
        path = shinka_db(tmp_path / "programs.sqlite", [shinka_row(0, None)])
        problems = Problems()
        with reading_sqlite.reading(path, problems) as db:
            assert db._all("WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT max(n) FROM r") == []
        assert len(problems) == 1

    def test_links_out_of_the_folder_are_not_followed(self, tmp_path):
        secret = shinka_db(tmp_path / "elsewhere" / "programs.sqlite", [shinka_row(0, None), shinka_row(1)])
        run = tmp_path / "run"
        shinka_db(run / "programs.sqlite", [shinka_row(0, None), shinka_row(2)])
        (run / "other.sqlite").symlink_to(secret)
        (run / "gen_1").symlink_to(secret.parent)
        assert {r.child_id for r in read(run)[0]} == {"p2"}


class TestSkyDiscover:
    @FEW
    @given(changes=st.dictionaries(st.sampled_from(SKY_FIELDS), JUNK, max_size=6))
    def test_fields_of_any_type(self, tmp_path, changes):
        run = fresh(tmp_path)
        folder = sky_checkpoint(run, 3, [sky_program(0, None), sky_program(1), sky_program(2)])
        text = json.dumps(sky_program(1) | changes)
        (folder / "programs" / "s1.json").write_text(text.encode("utf-8", "surrogatepass").decode("utf-8", "replace"))
        assert "s2" in {r.child_id for r in read(run)[0]}

    @FEW
    @given(cut=st.integers(0, 1000), noise=st.binary(max_size=30), order=st.permutations(range(1, 5)))
    def test_cut_off_shuffled_and_doubled_programs(self, tmp_path, cut, noise, order):
        run = fresh(tmp_path)
        for number, n in enumerate(order, 1):
            folder = sky_checkpoint(run, number, [sky_program(0, None), sky_program(n, n - 1), sky_program(order[0])])
        torn = folder / "programs" / "s9.json"
        torn.write_bytes(json.dumps(sky_program(9)).encode()[:cut] + noise)
        rows, _ = read(run)
        assert {r.child_id for r in rows} - {"s9"} == {f"s{n}" for n in order}

    def test_a_foreign_file_does_not_make_a_run_another_scaffolds(self, tmp_path):
        run = tmp_path / "run"
        folder = checkpoint(run, 10, [program_json(child(n)) for n in (1, 2, 3)]) / "programs"
        (folder / "0.json").write_text(json.dumps(sky_program(9)))
        (folder / "00.json").write_text(json.dumps(sky_program(9))[:60])
        assert find([run]).searches[0][0] == "openevolve"

    def test_parents_in_circles_and_links_out(self, tmp_path):
        run, secret = tmp_path / "run", tmp_path / "secret.json"
        secret.write_text(json.dumps(sky_program(7)))
        folder = sky_checkpoint(run, 3, [sky_program(1, 2), sky_program(2, 1), sky_program(3, 3)])
        (folder / "programs" / "s7.json").symlink_to(secret)
        os.mkfifo(folder / "programs" / "s8.json")
        rows, search = read(run)
        assert {r.child_id for r in rows} == {"s1", "s2", "s3"} and len(search.problems) == 2


class TestCodeEvolve:
    @FEWER
    @given(programs=st.lists(st.dictionaries(st.sampled_from(CODEEVOLVE_FIELDS), JUNK, max_size=8), max_size=4),
           errors=st.lists(JUNK, max_size=3))  # fmt: skip
    def test_fields_of_any_type(self, tmp_path, programs, errors):
        run = fresh(tmp_path)
        odd = [codeevolve_program(n, 0) | {"id": f"odd{n}"} | p for n, p in enumerate(programs)]
        whole = [codeevolve_program(0, None), codeevolve_program(1), *odd]
        codeevolve_run(run, 3, checkpoint_bytes(whole, errors=errors, usage=errors))
        assert "c1" in {r.child_id for r in read(run)[0]}

    @settings(FEW, max_examples=200)
    @given(cut=st.integers(0, 10**6))
    def test_cut_anywhere_it_is_unreadable(self, cut):
        data = checkpoint_bytes([codeevolve_program(0, None), codeevolve_program(1)])
        with pytest.raises(Unreadable):
            pickles.load(data[: cut % len(data)])

    @FEWER
    @given(cut=st.integers(1, 10**6), flips=FLIPS)
    def test_damaged_checkpoints_cost_no_more_than_themselves(self, tmp_path, cut, flips):
        run = fresh(tmp_path)
        data = bytearray(checkpoint_bytes([codeevolve_program(0, None), codeevolve_program(1)]))
        codeevolve_run(run, 1, bytes(data))
        for at, value in flips:
            data[at % len(data)] = value
        codeevolve_run(run, 2, bytes(data[: len(data) - cut % len(data)]))
        rows, search = read(run)
        assert "c1" in {r.child_id for r in rows}


def test_huge_values_are_named_and_the_rest_is_read(tmp_path: Path) -> None:
    huge = "x" * (RECORD + 1)
    folder = sky_checkpoint(tmp_path / "sky" / "run", 1, [sky_program(0, None), sky_program(1)])
    (folder / "programs" / "s2.json").write_text(json.dumps(sky_program(2) | {"artifacts": {"stdout": huge}}))
    programs = [codeevolve_program(0, None), codeevolve_program(1), codeevolve_program(2) | {"error": huge}]
    codeevolve_run(tmp_path / "codeevolve" / "run", 1, checkpoint_bytes(programs))
    for scaffold, name in (("sky", "s1"), ("codeevolve", "c1")):
        rows, search = read(tmp_path / scaffold / "run")
        assert [r.child_id for r in rows] == [name] and len(search.problems) == 1, search.problems.found


def test_a_whole_harvest_over_all_of_it(tmp_path: Path) -> None:
    """A folder with good and broken runs of each scaffold: the good ones are whole."""
    everything = tmp_path / "all"
    shinka_db(everything / "a" / "programs.sqlite", [shinka_row(0, None), shinka_row(1)])
    (everything / "b").mkdir()
    (everything / "b" / "programs.sqlite").write_bytes(b"SQLite format 3\0" + os.urandom(4096))
    sky_checkpoint(everything / "c", 1, [sky_program(0, None), sky_program(1)])
    codeevolve_run(everything / "d", 1, checkpoint_bytes([codeevolve_program(0, None), codeevolve_program(1)]))
    codeevolve_run(everything / "e", 1, os.urandom(500))
    before = contents(everything)
    out = harvest.run(harvest.Config(runs=[everything], output=tmp_path / "out"))
    rows = list(read_transitions(out))
    assert {(r.scaffold, r.child_id, r.replay) for r in rows} == {
        ("shinka", "p1", "match"), ("skydiscover", "s1", "match"), ("codeevolve", "c1", "match")}  # fmt: skip
    assert contents(everything) == before and {p.name for p in tmp_path.iterdir()} == {"all", "out"}
    report: list[dict[str, Any]] = json.loads((out / "searches.json").read_text())
    assert sum(len(s["bad_files"]) for s in report) >= 1
