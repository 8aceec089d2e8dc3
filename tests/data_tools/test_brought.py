"""Tables that somebody brought, caches and folders that a killed run left, requests that cannot be met: one message or
the right rows, and nothing that was there is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError
from tables import labelled, output_of

from data_tools import build, clean, facts, label, lexing, shards
from eft import manifest
from eft.errors import EftError
from eft.records import REQUIRED, TABLE, read_transitions


@pytest.fixture
def table(tmp_path):
    rows = [labelled(i, task=f"t{i % 3}", label=("improved", "regressed")[i % 2]) for i in range(1, 13)]
    return pq.read_table(output_of("label", tmp_path / "l", rows) / TABLE)


def stage(module, rows, folder, **options):
    pq.write_table(rows, folder / "brought.parquet")
    return module.run(module.Config(source=folder / "brought.parquet", output=folder / module.__name__, **options))


def changed(table, name, values):
    return table.set_column(table.schema.get_field_index(name), name, values)


@pytest.mark.parametrize("name", ["parent_code", "parent_metrics", "response", "domain", "label", "task"])
def test_an_empty_place_is_an_empty_text(table, tmp_path, name):
    rows = changed(table, name, pa.array([None] + table[name].to_pylist()[1:], pa.string()))
    for module in (label, clean, build):
        assert manifest.read(stage(module, rows, tmp_path))
    rows = [*pq.read_table(tmp_path / "data_tools.label" / TABLE).to_pylist()]
    assert len(rows) == 12 and rows[0][name] in ("", "no_change", "improved")


def test_an_old_table_and_other_types_of_the_same(table, tmp_path):
    old = table.select(list(REQUIRED))
    assert pq.read_table(stage(label, old, tmp_path) / TABLE).num_rows == 12
    with pytest.raises(EftError, match="no improved row"):
        stage(build, old, tmp_path)
    numbers = changed(table, "task", pa.array([i % 3 for i in range(12)]))
    for module in (label, clean, build):
        stage(module, numbers, tmp_path)
    with pytest.raises(EftError, match="cannot be read"):
        stage(clean, changed(table, "iteration", pa.array(["x"] * 12)), tmp_path)


@pytest.mark.parametrize("text", ["{nope", "[1]", "7", "[" * 100_000])
def test_metrics_that_are_no_object_are_named(table, tmp_path, text):
    with pytest.raises(EftError, match="no JSON object"):
        stage(label, changed(table, "child_metrics", pa.array([text] * 12)), tmp_path)


def test_a_gap_of_nothing_is_refused():
    for direction in ("min", "max"):
        with pytest.raises(ValidationError, match="no better"):
            label.Config(direction=direction, seed_raw=1, best_known=1)


def test_a_request_that_cannot_be_met_costs_no_earlier_output(table, tmp_path, monkeypatch):
    out = stage(clean, table, tmp_path)
    monkeypatch.setattr(shards.importlib.util, "find_spec", lambda name: None)
    for options in ({"tokenizer": str(tmp_path / "none")}, {"suite": "none"}, {"executor": "ray"}):
        with pytest.raises(EftError):
            stage(clean, table, tmp_path, **options)
        assert manifest.read(out)


def test_damaged_facts_are_found_anew_and_leftovers_go(table, tmp_path, monkeypatch):
    out = stage(clean, table, tmp_path)
    before = (out / TABLE).read_bytes()
    for file in (out / "facts").glob("*.arrow"):
        file.write_bytes(file.read_bytes()[:200])
    (out / "facts" / ".facts-0.arrow.abcdefgh").write_bytes(b"x")
    assert manifest.read(stage(clean, table, tmp_path))["counts"]["found_anew"] == ["facts", "leaks"]
    assert (out / TABLE).read_bytes() == before and len(list((out / "facts").iterdir())) == 2
    assert manifest.read(stage(clean, table, tmp_path))["counts"]["found_anew"] == []
    monkeypatch.setattr(facts, "__version__", "another")
    assert manifest.read(stage(clean, table, tmp_path))["counts"]["found_anew"] == ["facts", "leaks"]


def test_comments_that_are_never_closed_take_linear_time():
    started = time.monotonic()
    assert lexing.tokens("a /* b */ c" + " /* d" * 200_000)[:4] == ["a", "c", "/", "*"]
    assert lexing.tokens("x # y */ z\n/* q") == ["x", "/", "*", "q"]
    assert time.monotonic() - started < 30


def test_many_runs_of_one_scale_do_not_outvote_another(tmp_path):
    def row(number, run, program, score):
        return labelled(number, task="t", run=run, parent_code=f"p = {program}\n", child_code=f"c = {program}\n",
                        parent_score=score, child_score=score + 0.1)  # fmt: skip

    same = [row(100 * k + i, run, i, 1.0 + i) for k, run in enumerate("ab") for i in range(10)]
    source = output_of("label", tmp_path / "same", same)
    assert manifest.read(clean.run(clean.Config(source=source, output=tmp_path / "c")))
    source = output_of("label", tmp_path / "other", [*same, row(900, "c", 0, 100.0)])
    with pytest.raises(EftError, match="100 in 'c'"):
        clean.run(clean.Config(source=source, output=tmp_path / "c"))


def test_a_row_that_goes_for_its_length_makes_no_duplicate(tmp_path):
    first = labelled(1, response="word " * 300)
    again = labelled(1, id="again", iteration=2)
    source = output_of("label", tmp_path / "l", [first, again])
    out = clean.run(clean.Config(source=source, output=tmp_path / "c", tokenizer="random:qwen3", near_duplicates=0.9,
                                 max_response_tokens=250))  # fmt: skip
    assert manifest.read(out)["counts"]["reasons"] == {"response_too_long": 1}
    assert [row.id for row in read_transitions(out)] == ["again"]


class TestBuild:
    def test_what_no_build_wrote_is_left_alone(self, table, tmp_path):
        model = tmp_path / "data_tools.build" / "sft" / "checkpoint-5" / "model.safetensors"
        model.parent.mkdir(parents=True)
        model.write_text("weights")
        for options in ({}, {"format": "finch"}):
            with pytest.raises(EftError, match="holds what no build wrote"):
                stage(build, table, tmp_path, **options)
        assert model.read_text() == "weights"

    def test_what_a_training_keeps_beside_the_data_is_no_reason(self, table, tmp_path):
        out = stage(build, table, tmp_path)
        cache = out / "sft" / ".tokens" / "train-0" / "tokens.arrow"
        cache.parent.mkdir(parents=True)
        cache.write_text("ids")
        before = (out / "sft" / "train.parquet").read_bytes()
        (out / "manifest.json").unlink()
        assert (stage(build, table, tmp_path) / "sft" / "train.parquet").read_bytes() == before

    def test_one_format_replaces_the_other(self, table, tmp_path):
        out = stage(build, table, tmp_path, tasks=[1], validation=0)
        assert (out / "tasks_1" / "sft").is_dir() and (out / "README.md").is_file()
        stage(build, table, tmp_path, format="finch")
        assert [str(p.relative_to(out)) for p in sorted(out.rglob("*.*")) if p.is_file()] == [
            "data/train-00000-of-00001.parquet", "manifest.json"]  # fmt: skip
        (out / ".README.md.abcdefgh").write_text("torn")
        stage(build, table, tmp_path)
        assert not list(out.rglob("*-of-*")) and not list(out.rglob(".*")) and not (out / "tasks_1").exists()

    def test_a_subset_without_an_improved_row_is_refused(self, tmp_path):
        rows = [labelled(i, task=f"t{i}", label="improved" if i < 2 else "regressed", parent_code=f"p = {i}\n")
                for i in range(12)]  # fmt: skip
        out = output_of("clean", tmp_path / "c", rows)
        with pytest.raises(EftError, match="no improved row"):
            for seed in range(20):
                build.run(build.Config(source=out, output=tmp_path / "b", tasks=[1], seed=seed, validation=0))

    def test_odd_names_and_changes_are_no_formulas_and_no_numbers(self, tmp_path):
        deltas = (float("nan"), 1.0, 9e307)
        rows = [labelled(i, domain="$\\frac_$", task=f"t{i}", parent_code=f"p = {i}\n", delta=deltas[i % 3])
                for i in range(9)]  # fmt: skip
        out = output_of("clean", tmp_path / "c", rows)
        build.run(build.Config(source=out, output=tmp_path / "b", sft_weights="gain"))
        weights = pq.read_table(tmp_path / "b" / "sft" / "train.parquet")["weight"].to_pylist()
        assert all(0 < weight < 5 for weight in weights)
        card = (tmp_path / "b" / "README.md").read_text()
        assert "not cleaned by eft" in card and "left out" not in card


WAITING = """
import sys
sys.path.insert(0, sys.argv[1])
import waiting_work
from pathlib import Path
from data_tools import shards
if __name__ == "__main__":
    shards.SMALL = 0
    parts = shards.units(Path(sys.argv[2])) * 4
    list(shards.mapped(waiting_work.work, parts, shards.Workers(workers=2)))
"""
WORK = """
import os, pathlib, time
def work(unit):
    (pathlib.Path(__file__).parent / f"{os.getpid()}.pid").touch()
    time.sleep(600)
"""


def test_workers_end_with_a_stage_that_was_killed(table, tmp_path):
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=6)
    (tmp_path / "main.py").write_text(WAITING)
    (tmp_path / "waiting_work.py").write_text(WORK)
    command = [sys.executable, str(tmp_path / "main.py"), str(tmp_path), str(tmp_path / "t.parquet")]
    stage = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    try:
        workers: list[int] = []
        deadline = time.monotonic() + 180
        while len(workers) < 2 and time.monotonic() < deadline and stage.poll() is None:
            time.sleep(0.05)
            workers = [int(file.stem) for file in tmp_path.glob("*.pid")]
        assert len(workers) == 2
    finally:
        stage.send_signal(signal.SIGKILL)
        stage.wait()
    deadline = time.monotonic() + 60
    while any(map(running, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(running, workers))


def running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
