"""Several results as one: only where they are two sides of one comparison."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from made_up_results import MAX, MIN, evaluation, results, rich

from eft import manifest
from eft.errors import UsageError
from eft.evaluate import report
from eft.evaluate.combine import combine
from eft.evaluate.compare import compare
from eft.evaluate.results import to_json

HERE, THERE = Path("a/results.json"), Path("b/results.json")


def both(a, b):
    return combine([(HERE, a), (THERE, b)])


def made(tasks=(MAX,), **mutators):
    r = evaluation({m: {t.name: v for t in tasks} for m, v in mutators.items()}, tasks)
    config = {"suite": "embedded", "prompt_format": "eft@1", "iterations": 20, "scaffold": "openevolve", "edit": "diff"}
    return dataclasses.replace(r, config=config)


def with_config(r, **change):
    return dataclasses.replace(r, config={**r.config, **change})


def test_one_result_stays_as_it_is():
    r = results(seeds=2)
    assert combine([(HERE, r)]) is r


def test_mutators_of_two_evaluations_are_paired():
    a, b = made(base=[0.2, 0.3], ast=[0.5, 0.6]), made(sft=[0.4, 0.4], ast=[0.5, 0.6])
    c = compare(both(a, b), draws=50)
    assert {(p.mutator, p.reference) for p in c.pairs} == {("sft", "base"), ("sft", "ast")}
    assert both(a, b).planned == 6  # the searches of ast stand in both and count once


def test_more_seeds_of_the_same_mutators():
    a, b = made(base=[0.2], sft=[0.4]), made(base=[0.3], sft=[0.5])
    b = dataclasses.replace(b, searches=tuple(dataclasses.replace(s, seed=7) for s in b.searches), seeds=(7,))
    (p,) = compare(both(a, b), draws=50).pairs
    assert p.wins == 2


REFUSED = {
    "prompt formats": {"prompt_format": "openevolve@0.4"},
    "suites": {"suite": "standard"},
    "numbers of proposals a search": {"iterations": 100},
    "temperatures": {"temperature": 1.0},
}


@pytest.mark.parametrize("what", REFUSED)
def test_other_settings_are_refused_with_the_reason(what):
    a, b = (with_config(made(**{m: [0.2]}), temperature=0.7) for m in ("base", "sft"))
    with pytest.raises(UsageError, match=f"different {what}") as e:
        both(a, with_config(b, **REFUSED[what]))
    value = next(iter(REFUSED[what].values()))
    assert str(value) in str(e.value) and str(THERE) in str(e.value)


def test_other_sandboxes_tasks_and_versions_of_a_task_are_refused():
    a, b = made(base=[0.2]), made(sft=[0.2])

    def inside(r, sandbox):
        return dataclasses.replace(r, searches=tuple(dataclasses.replace(s, sandbox=sandbox) for s in r.searches))

    with pytest.raises(UsageError, match="different sandbox levels"):
        both(inside(a, "bubblewrap"), inside(b, "resource limits alone"))
    both(inside(a, "bubblewrap"), b)  # an older result does not say: nothing to refuse
    with pytest.raises(UsageError, match="different tasks") as e:
        both(a, made(tasks=(MIN,), sft=[6.0]))
    assert "hits, tour" in str(e.value)
    for change, why in (({"best_known": 0.9}, "best_known is 0.9"), ({"start_raw": 0.1}, "start_raw is 0.1")):
        other = dataclasses.replace(b, tasks=(dataclasses.replace(MAX, **change),))
        with pytest.raises(UsageError, match="not the same") as e:
            both(a, other)
        assert why in str(e.value)
    marked = [dataclasses.replace(r, tasks=(dataclasses.replace(MAX, fingerprint=f),)) for r, f in ((a, "1"), (b, "2"))]
    with pytest.raises(UsageError, match="fingerprint"):
        both(*marked)


def test_two_mutators_of_one_name_and_searches_that_differ_are_refused():
    a, b = made(sft=[0.2]), made(sft=[0.2])
    renamed = dataclasses.replace(b, mutators=(dataclasses.replace(b.mutators[0], model="other"),))
    with pytest.raises(UsageError, match="two different mutators"):
        both(a, renamed)
    with pytest.raises(UsageError, match="in both results, and differs"):
        both(a, made(sft=[0.3]))


def test_messages_are_deaf_to_hostile_names():
    a, b = (made(**{"\x1b[31mred\u202e": [v]}) for v in (0.2, 0.3))
    with pytest.raises(UsageError, match="in both results") as e:
        both(a, b)
    assert "\x1b" not in str(e.value) and "\u202e" not in str(e.value)


def test_a_failed_search_is_replaced_by_a_finished_one():
    a, b = made(base=[0.2], sft=[0.2]), made(sft=[0.4])
    dead = [dataclasses.replace(s, status="failed", best_raw=None) if s.mutator == "sft" else s for s in a.searches]
    (p,) = compare(both(dataclasses.replace(a, searches=tuple(dead)), b), draws=50).pairs
    assert p.wins == 1


def test_other_scaffolds_are_separated():
    a = made(base=[0.2], sft=[0.4])
    b = with_config(made(base=[0.2], sft=[0.3]), scaffold="tournament")
    c = compare(both(a, b), draws=50)
    assert {p.mutator for p in c.pairs} == {"sft · openevolve", "sft · tournament"}


def test_report_of_several(tmp_path, capsys):
    whole = rich(seeds=2, iterations=5)
    halves = [[s for s in whole.searches if (s.mutator == "kto") == kto] for kto in (False, True)]
    for name, searches in zip(("a", "b"), halves, strict=True):
        part = dataclasses.replace(whole, searches=tuple(searches))
        manifest.write_json(tmp_path / name / "results.json", to_json(part))
    folders = [tmp_path / "a", tmp_path / "b"]
    report.run(report.Config(results=folders, output=tmp_path / "r.html"))
    assert "kto" in capsys.readouterr().err and "best_of_kto" in (tmp_path / "r.md").read_text()
    other = with_config(whole, prompt_format="openevolve@0.4")
    manifest.write_json(tmp_path / "b" / "results.json", to_json(other))
    with pytest.raises(UsageError, match="different prompt formats"):
        report.run(report.Config(results=folders, output=tmp_path / "r.html"))
