"""`eft evaluate` over programs, merge and routing at once: killed in the middle, continued, reported, harvested."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import merging
import pytest
import routing_tables
import yaml

sys.path.insert(0, str(Path(__file__).parents[1] / "evaluate"))

from endpoint import Endpoint  # noqa: E402

from eft.evaluate import report  # noqa: E402
from eft.evaluate import results as tables  # noqa: E402

POLICY = """def route(state):
    return state["mutators"][state["step"] % 2] if "mutators" in state and "step" in state else "ast"
"""
COMMAND = [sys.executable, "-m", "eft.cli"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """(root, output, the endpoint) of an evaluation that was killed once and run again."""
    root, endpoint = tmp_path_factory.mktemp("loops"), Endpoint(seconds=0.1)
    try:
        merge = {**merging.root(root), "iterations": 3, "role": "train", "controls": ["best_parent", "uniform", "random"]}
        routing_tables.write(root / "table.csv")
        (root / "policy.py").write_text(POLICY)
        (root / "evaluate.yaml").write_text(yaml.safe_dump({
            "root": str(root), "iterations": 4, "seeds": 1, "workers": 2, "prompt_format": "eft@1",
            "mutators": {
                "base": {"model": "toy", "base_url": endpoint.base_url}, "ast": {"kind": "ast"},
                "routed": {"kind": "routed", "policy": "policy.py", "among": ["ast", "base"]},
            },
            "loops": {
                "programs": {"tasks": ["control/pid"]}, "merge": merge,
                "routing": {"table": "table.csv", "splits": 1, "routers": []},
            },
        }))  # fmt: skip
        command = [*COMMAND, "evaluate", "--config", str(root / "evaluate.yaml")]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
        deadline = time.time() + 600
        while endpoint.asked < 5 and time.time() < deadline and process.poll() is None:
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)  # that process alone: what it started must see to itself
        process.wait()
        out = root / "evaluate"
        assert endpoint.asked >= 5 and not (out / "manifest.json").exists()
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        yield root, out, endpoint
    finally:
        endpoint.close()


@pytest.mark.integration
def test_three_loops_in_one_evaluation(finished):
    root, out, endpoint = finished
    found = tables.load(out)
    loops = {t.loop: t for t in found.tasks}
    assert list(loops) == ["programs", "merge", "routing"]
    assert {s.status for s in found.searches} == {"done"} and len(found.searches) == found.planned == 9
    assert found.planned_of == {"programs": 3, "merge": 3, "routing": 3} and not found.troubles
    assert all(s.proposals == (3 if s.task == loops["merge"].name else 4) for s in found.searches)
    assert {m.name for m in found.methods if m.task == loops["merge"].name} >= {"uniform average", "random recipes"}
    assert any(m.bound for m in found.methods) and {m.task for m in found.methods} == {loops[n].name for n in ("merge", "routing")}
    # Of `base` 11 replies, and what was asked for and lost when it was killed (two searches in flight). Beside them those
    # that the policy asked it for.
    own = [s for s in found.searches if s.mutator == "base"]
    asked = sum(1 for f in (out / "arms").glob("*.jsonl") for r in map(json.loads, f.open()) if r["kind"] == "reply")
    assert sum(s.proposals for s in own) == 11 and 0 < asked <= 11
    assert 0 <= endpoint.asked - 11 - asked <= 3


@pytest.mark.integration
def test_a_second_run_starts_nothing(finished):
    root, out, endpoint = finished
    before, endpoint.broken = tables.load(out), 500
    done = subprocess.run([*COMMAND, "evaluate", "--config", str(root / "evaluate.yaml")], capture_output=True, text=True)
    endpoint.broken = 0
    assert done.returncode == 0, done.stderr[-2000:]
    after = tables.load(out)
    assert (after.searches, after.methods, after.confirmed) == (before.searches, before.methods, before.confirmed)


@pytest.mark.integration
def test_one_report(finished):
    root, out, _ = finished
    report.run(report.Config(root=root, results=[out]))
    data = json.loads((root / "report.json").read_text())
    assert data["loop"] == "programs" and set(data["loops"]) == {"merge", "routing"}
    html = (root / "report.html").read_text()
    assert "Loop: merge" in html and "Loop: routing" in html and "uniform average" in html


@pytest.mark.integration
def test_searches_of_a_merge_are_training_data(finished):
    """Their logs and journals are harvested and labelled like any other's."""
    root, out, _ = finished
    from eft.records import TABLE, Label, read_transitions

    for verb, *given in (("harvest", str(out / "ast"), str(out / "base"), str(out / "journal"), "-o", str(root / "harvest")),
                         ("label", str(root / "harvest"), "-o", str(root / "label"))):  # fmt: skip
        done = subprocess.run([*COMMAND, verb, *given], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
    rows = [r for r in read_transitions(root / "label" / TABLE) if r.task == "merge/experts"]
    assert rows and {r.language for r in rows} == {"yaml"} and {r.suite_role for r in rows} == {"train"}
    assert {r.label for r in rows} & {Label.IMPROVED, Label.REGRESSED, Label.NO_CHANGE}
    assert all("merge_method" in r.parent_code and r.prompt_format == "eft@1" for r in rows)
    assert {r.replay for r in rows} == {"match"}
