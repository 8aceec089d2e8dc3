"""Results of several loops: taken apart, compared apart, reported together; old results load, new ones are versioned."""

from __future__ import annotations

import dataclasses
import json

import pytest
from made_up_loops import METHODS, with_loops
from made_up_results import HOSTILE, results
from test_report import Checker

from eft import manifest
from eft.errors import EftError, UsageError
from eft.evaluate import aa, parts, report, sections
from eft.evaluate import results as tables
from eft.evaluate.combine import combine
from eft.evaluate.compare import compare


def written(folder, found):
    folder.mkdir(parents=True, exist_ok=True)
    manifest.write_json(folder / tables.NAME, tables.to_json(found))
    return folder


def test_parts_and_the_headline():
    found = with_loops()
    assert parts.loops(found) == ("programs", "merge", "routing") and parts.headliner(found) == "programs"
    for loop in parts.loops(found):
        own = parts.part(found, loop)
        assert {t.loop for t in own.tasks} == {loop}
        assert {s.task for s in own.searches} == {t.name for t in own.tasks}
    own = parts.part(found, "programs")
    assert own.searches == results(random=5).searches and own.mutators == results(random=5).mutators
    plain = sections.section(results(random=5), "programs")
    assert sections.split(found)[0].comparison == plain.comparison  # other loops never change what programs say
    assert sections.split(found)[0].verdict == plain.verdict


def test_no_mean_is_over_two_loops():
    with pytest.raises(ValueError, match="several loops"):
        compare(with_loops())


def test_controls_are_contenders_and_a_bound_is_not():
    own = sections.section(with_loops(), "routing")
    pairs = {(p.mutator, p.reference) for p in own.comparison.pairs}
    assert {("kto", "logistic"), ("sft", "kNN"), ("ast", "best single")} <= pairs
    assert not any("oracle" in p for p in pairs) and not any(a in METHODS["routing"] for a, _ in pairs)
    rows = {r.mutator.name: r for r in own.comparison.rows}
    assert rows["oracle"].gap.point == pytest.approx(0.9) and rows["oracle"].mutator.role == "bound"
    assert rows["kNN"].behaviour.proposals == 0 and rows["kNN"].behaviour.valid is None
    p = next(p for p in own.comparison.pairs if (p.mutator, p.reference) == ("ast", "logistic"))
    assert p.wins + p.ties + p.losses == 25 and p.unpaired == 0


def test_splits_of_one_table_speak_of_no_other_table():
    found = with_loops()
    apart = tuple(dataclasses.replace(t, family=t.name) if t.loop == "routing" else t for t in found.tasks)
    own = {k: sections.section(dataclasses.replace(found, tasks=t), "routing") for k, t in (("one", found.tasks), ("many", apart))}
    assert all(p.over_tasks is None and p.difference.such is None for p in own["one"].comparison.pairs)
    assert all(p.difference.such is not None for p in own["many"].comparison.pairs)
    for a, b in zip(own["one"].comparison.pairs, own["many"].comparison.pairs, strict=True):
        assert (a.difference.point, a.difference.these, a.over_searches.p) == (b.difference.point, b.difference.these, b.over_searches.p)
    assert "of one kind (splits of bench)" in " ".join(own["one"].comparison.notes) and not own["many"].comparison.notes


def test_a_control_may_have_a_mutators_name():
    found = with_loops()
    found = dataclasses.replace(found, methods=tuple(dataclasses.replace(m, name="ast") for m in found.methods[:5]))
    own = parts.part(found, "merge")
    assert [m.name for m in own.mutators][-1] == "ast (control)"


def test_a_task_without_a_best_known_value_is_scaled_by_the_best_found():
    found = with_loops()
    bare = tuple(dataclasses.replace(t, best_known=None, hidden_best_known=None) if t.loop == "merge" else t
                 for t in found.tasks)  # fmt: skip
    scaled, known = (sections.section(dataclasses.replace(found, tasks=t), "merge") for t in (bare, found.tasks))
    assert scaled.results.tasks[0].best_known_source == "best of these results"
    assert max(r.gap.these.high for r in scaled.comparison.rows if r.gap) <= 1.0 + 1e-9
    for a, b in zip(scaled.comparison.pairs, known.comparison.pairs, strict=True):
        assert (a.wins, a.ties, a.losses) == (b.wins, b.ties, b.losses)
        assert a.over_searches.p == b.over_searches.p  # a unit, and nothing else


def test_formats(tmp_path):
    old = tables.to_json(results())
    assert old["format"] == 1  # releases before loops read it
    for key in ("planned_of", "methods", "confirmed", "troubles"):
        del old[key]
    for t in old["tasks"]:
        del t["loop"]
    (tmp_path / tables.NAME).write_text(json.dumps(old))
    loaded = tables.load(tmp_path)
    assert parts.loops(loaded) == ("programs",) and compare(parts.part(loaded, "programs")) == compare(results())
    new = tables.to_json(with_loops())
    assert new["format"] == 2
    assert tables.load(written(tmp_path / "new", with_loops())) == with_loops()
    (tmp_path / tables.NAME).write_text(json.dumps({**new, "format": 3}))
    with pytest.raises(EftError, match="reads up to 2"):
        tables.load(tmp_path)


@pytest.mark.parametrize("hostile", [False, True])
def test_one_report(tmp_path, hostile):
    report.run(report.Config(root=tmp_path, results=[written(tmp_path / "evaluate", with_loops(hostile=hostile))]))
    html = (tmp_path / "report.html").read_text()
    checker = Checker()
    checker.feed(html)
    assert not checker.problems and not checker.stack
    shown = "".join(checker.text)
    for part in ("Loop: merge", "Loop: routing", "Confirmed on fresh rows", "CMA-ES", "oracle", "480",
                 "transitions of the gate role"):  # fmt: skip
        assert part in shown, part
    assert "<script" not in html and ("Not complete: " in shown) == hostile
    markdown = (tmp_path / "report.md").read_text()
    assert "## Loop: merge" in markdown and "### Confirmed on fresh rows" in markdown and "<script" not in markdown
    data = json.loads((tmp_path / "report.json").read_text())
    alone = tmp_path / "alone"
    report.run(report.Config(root=alone, results=[written(alone / "evaluate", results(hostile=hostile, random=5))]))
    without = json.loads((alone / "report.json").read_text())
    assert data["verdict"] == without["verdict"] and data["rows"] == without["rows"]
    assert set(data["loops"]) == {"merge", "routing"} and data["loops"]["merge"]["confirmed"][0]["items"] == 480
    assert {r["mutator"]["name"] for r in data["loops"]["merge"]["rows"]} >= set(METHODS["merge"])


def test_without_programs_the_first_loop_is_the_headline(tmp_path):
    found = with_loops()
    keep = [t for t in found.tasks if t.loop == "merge"]
    only = dataclasses.replace(found, tasks=tuple(keep), planned=25,
                               searches=tuple(s for s in found.searches if s.task == keep[0].name))  # fmt: skip
    report.run(report.Config(root=tmp_path, results=[written(tmp_path / "evaluate", only)]))
    data = json.loads((tmp_path / "report.json").read_text())
    assert data["loop"] == "merge" and data["loops"] == {} and "CMA-ES" in data["verdict"]["headline"]


def test_a_half_finished_loop_says_so(tmp_path):
    found = with_loops()
    half = dataclasses.replace(found, methods=(), confirmed=(), searches=tuple(
        s for s in found.searches if not s.task.startswith("merge") or s.seed < 2))  # fmt: skip
    report.run(report.Config(root=tmp_path, results=[written(tmp_path / "evaluate", half)]))
    assert "partial: 10 of 25 searches" in (tmp_path / "report.html").read_text()


def test_combined(tmp_path):
    found = with_loops()
    first = dataclasses.replace(found, searches=tuple(s for s in found.searches if s.mutator != "kto"))
    second = dataclasses.replace(found, searches=tuple(s for s in found.searches if s.mutator == "kto"))
    both = combine([(tmp_path / "a", first), (tmp_path / "b", second)])
    gaps = [{r.mutator.name: r.gap for r in sections.section(x, "merge").comparison.rows} for x in (both, found)]
    assert gaps[0] == gaps[1]
    assert len(both.methods) == len(found.methods)
    longer = dataclasses.replace(second, config={**second.config, "loops": {"merge": {"iterations": 99}}})
    with pytest.raises(UsageError, match="numbers of proposals a search \\(merge\\)"):
        combine([(tmp_path / "a", first), (tmp_path / "b", longer)])


@pytest.mark.parametrize("loop", ["merge", "routing"])
def test_a_mutator_against_itself_in_a_loop(tmp_path, loop):
    found = with_loops(seeds=30, effect=False)
    written(tmp_path / "evaluate", found)
    options = {"root": tmp_path, "loop": loop, "runs": 60, "draws": 100}
    counts = aa.run(aa.Config(**options, mutator="ast"))
    assert counts["loop"] == loop and counts["tasks"] == (1 if loop == "merge" else 5)
    assert counts["verdict"] <= 0.15 * counts["runs"]
    assert aa.run(aa.Config(**options))["mutator"] not in METHODS[loop]  # controls only where they are named
    control = "CMA-ES" if loop == "merge" else "kNN"
    assert aa.run(aa.Config(**options, mutator=control))["mutator"] == control
    with pytest.raises(UsageError, match="no loop 'merg'"):
        aa.run(aa.Config(root=tmp_path, loop="merg"))


def test_hostile_names_in_terminal(capsys, tmp_path):
    report.run(report.Config(root=tmp_path, results=[written(tmp_path / "evaluate", with_loops(hostile=True))]))
    assert "\u202e" not in capsys.readouterr().err and "\u202e" in HOSTILE
