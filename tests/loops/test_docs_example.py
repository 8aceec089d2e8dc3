"""docs/loops.md shows a whole loop: it is taken from there, named in LOOPS, and evaluated for real."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest
import yaml

from data_tools import harvest, label
from eft import loops
from eft.errors import UsageError
from eft.evaluate import aa, report, run
from eft.evaluate import results as tables
from eft.records import TABLE, read_transitions

DOCS = Path(__file__).parents[2] / "docs" / "loops.md"


@pytest.fixture
def cooling(tmp_path, monkeypatch):
    """The example as a module of that name, in LOOPS."""
    (code,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)[:1]
    file = tmp_path / "cooling_of_the_docs.py"
    file.write_text(code)
    spec = importlib.util.spec_from_file_location("cooling_of_the_docs", file)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    monkeypatch.setitem(loops.LOOPS, "cooling", spec.name)  # the one line
    return module


def options(tmp_path, **change):
    return run.Config(**{
        "root": tmp_path, "iterations": 6, "seeds": 4, "workers": 2, "prompt_format": "eft@1",
        "loops": {"cooling": {"cities": 16}}, "mutators": {"ast": {"kind": "ast"}}, **change,
    })  # fmt: skip


@pytest.mark.integration
def test_the_example_is_a_loop(cooling, tmp_path):
    out = run.run(options(tmp_path))
    found = tables.load(out)
    (task,) = found.tasks
    assert (task.loop, task.name, task.direction, task.has_hidden) == ("cooling", "cooling/tours", "min", True)
    assert [s.status for s in found.searches] == ["done"] * 4
    assert all(s.curve[-1] <= s.curve[0] and s.start_final_raw is not None for s in found.searches)
    assert any(s.outcomes.get("improved") for s in found.searches)
    assert {(m.name, m.seed) for m in found.methods} == {("random search", k) for k in range(4)}
    assert all(len(m.curve) == 7 and m.evaluations == 6 for m in found.methods)
    spec = json.loads((out / "ast" / "cooling-tours" / "seed0" / "spec.json").read_text())
    assert Path(spec["task"]) == (out / "loops" / "cooling" / "tours").resolve() and spec["role"] == "heldout"

    written = {p: p.stat().st_mtime_ns for p in (out / "loops").rglob("*") if p.is_file()}
    module_controls, cooling.controls = cooling.controls, None
    del cooling.controls
    cooling.controls = lambda *a, **k: pytest.fail("what stands is not computed again")
    run.run(options(tmp_path))  # nothing to do
    assert {p: p.stat().st_mtime_ns for p in written} == written
    cooling.controls = module_controls

    report.run(report.Config(root=tmp_path, results=[out]))
    assert "random search" in (tmp_path / "report.html").read_text()
    counts = aa.run(aa.Config(root=tmp_path, results=out, loop="cooling", runs=40, draws=100))
    assert counts["mutator"] == "ast" and counts["verdict"] <= 4


@pytest.mark.integration
def test_yaml_genomes_in_the_stock_prompt_and_as_rewrites(cooling, tmp_path):
    """Under OpenEvolve's own prompt and under tournament, as diffs and as rewrites; the logs are harvested as they are."""
    del cooling.controls
    change = {"prompt_format": "openevolve@0.4", "scaffold": ["openevolve", "tournament"], "seeds": 1, "iterations": 3}
    mutators = {"diffs": {"kind": "ast"}, "rewrites": {"kind": "ast", "edit": "rewrite"}}
    out = run.run(options(tmp_path, mutators=mutators, **change))
    found = tables.load(out)
    assert len(found.searches) == 4 and all(sum(s.outcomes.values()) == 3 and s.valid for s in found.searches)
    settings = yaml.safe_load((out / "diffs" / "cooling-tours" / "seed0" / "config.yaml").read_text())
    assert (settings["language"], settings["file_suffix"]) == ("yaml", ".yaml")
    replies = [json.loads(line) for f in (out / "journal").glob("*.jsonl") for line in f.open()]
    assert all("```yaml\n" in r["messages"][-1]["content"] for r in replies if r["kind"] == "reply")
    assert all(r["content"].startswith("```yaml\n") for r in replies if r["kind"] == "reply" and r["mutator"] == "rewrites")
    harvest.run(harvest.Config(root=tmp_path, runs=[out / "diffs", out / "rewrites"], output="harvest"))
    label.run(label.Config(root=tmp_path, source="harvest", output="label"))
    rows = list(read_transitions(tmp_path / "label" / TABLE))
    assert len(rows) == 6 and {r.language for r in rows} == {"yaml"} and {r.replay for r in rows} == {"match"}
    assert {r.edit_kind for r in rows} == {"diff", "rewrite"} and all(r.label for r in rows)


def test_options_of_a_loop(cooling, tmp_path):
    def refused(match, **change):
        with pytest.raises(UsageError, match=match):
            run.plans.make(options(tmp_path, **change))

    refused("there is no loop 'coolin'", loops={"coolin": {}})
    refused("unknown key 'citie'", loops={"cooling": {"citie": 3}})
    refused("there is no role 'training'", loops={"cooling": {"role": "training"}})
    refused("whole number of proposals", loops={"cooling": {"iterations": 0}})
    plan = run.plans.make(options(tmp_path, loops={
        "programs": {"tasks": ["control/pid"]}, "cooling": {"role": "train", "iterations": 3},
    }))  # fmt: skip
    assert {(s.iterations, s.role) for s in plan.specs if "cooling" in s.task} == {(3, "train")}
    assert {(s.iterations, s.role) for s in plan.specs if "pid" in s.task} == {(6, "heldout")}
    assert plan.loop_of("cooling/tours").name == "cooling"
    again = run.plans.make(options(tmp_path, loops={"programs": {}, "cooling": {}}, tasks=["control/pid"]))
    assert set(again.tasks) == {"control/pid", "cooling/tours"}


def test_a_changed_section_makes_searches_stale(cooling, tmp_path):
    names = [{s.name for s in run.plans.make(options(tmp_path, loops={"cooling": {"cities": n}})).specs} for n in (16, 17)]
    assert not names[0] & names[1]


def test_a_loop_that_needs_this_machine_is_refused_on_others(cooling, tmp_path):
    cooling.running = lambda *a, **k: pytest.fail("nothing is started")
    with pytest.raises(UsageError, match="runs on one machine"):
        run.run(options(tmp_path, executor="ray"))
