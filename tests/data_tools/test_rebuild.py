"""Prompts that were not logged: put together from what existed when the child was asked for, and from nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_runs import SEED, checkpoint, child, code, program_json, seed_json, trace, trace_json

from data_tools import harvest
from data_tools.rebuild import TOP, History, Known, known
from eft import manifest, prompts
from eft.records import Transition, code_hash, read_transitions


def harvested(run: Path, out: Path, **options) -> tuple[dict[str, Transition], dict]:
    folder = harvest.run(harvest.Config(runs=[run], output=out, **options))
    return {r.child_id: r for r in read_transitions(folder)}, manifest.read(folder)["counts"]


# ------------------------------------------------------------------------------------------ what may be shown: property


@st.composite
def searches(draw, honest: bool) -> list[Known]:
    """Programs of a search in any order; `honest`: with clocks that tell the truth, where they tell anything."""
    programs: list[Known] = []
    moment = 0.0
    for number in range(draw(st.integers(2, 14))):
        parent = draw(st.sampled_from(programs)) if programs and draw(st.integers(0, 5)) else None
        text = draw(st.sampled_from([f"x = {number}", "x = 0", "x = 1"]))
        moment += draw(st.floats(0.0, 2.0))
        made, logged, seconds = moment, None, None
        if honest:
            earliest = parent.at if parent is not None else 0.0
            made = max(moment, earliest)
            seconds = draw(st.none() | st.floats(0.0, max(0.0, made - earliest)))
            logged = draw(st.none() | st.just(made + draw(st.floats(0.0, 0.5)))) if not seconds else None
            if logged is not None:
                moment = max(moment, logged)
        else:
            made = draw(st.none() | st.floats(0, 20))
            seconds = draw(st.none() | st.floats(-5, 30))
            logged = draw(st.none() | st.floats(0, 20))
        above = parent.id if parent else draw(st.sampled_from([None, "gone"]))
        if not honest:
            above = draw(st.sampled_from([above, f"p{draw(st.integers(0, 14))}"]))  # cycles, and parents of itself
        score = draw(st.none() | st.floats(-9, 9))
        programs.append(known(f"p{number}", above, text, score, island=draw(st.sampled_from([None, 0, 1])), made=made,
                              logged=logged, seconds=seconds))  # fmt: skip
    return draw(st.permutations(programs))


def descendants(programs: list[Known], of: set[str]) -> set[str]:
    below = set(of)
    while more := {p.id for p in programs if p.parent_id in below} - below:
        below |= more
    return below


@given(searches(honest=False) | searches(honest=True))
@settings(max_examples=120, deadline=None)
def test_never_the_child_its_copies_or_its_descendants(programs):
    history = History(programs, [p.id for p in programs])
    for one in programs:
        same = {p.id for p in programs if p.code_hash == one.code_hash} | {one.id}
        shown = history.best(one.id)
        assert not set(shown) & descendants(programs, same) and len(shown) <= TOP == 5


@given(searches(honest=True))
@settings(max_examples=120, deadline=None)
def test_only_what_existed_when_the_child_was_asked_for(programs):
    by_id = {p.id: p for p in programs}
    history = History(programs, list(by_id))
    for one in programs:
        parent = by_id.get(one.parent_id or "")
        # The truth: a child is asked for no earlier than its parent is there, and `asked` is its earliest moment.
        moments = [t for t in (one.asked, parent.at if parent else None) if t is not None]
        for name in history.best(one.id):
            assert by_id[name].score is not None
            assert moments and by_id[name].at <= max(moments)
    orders = [History(sorted(programs, key=lambda p: p.id, reverse=r), list(by_id)) for r in (True, False)]
    assert all(orders[0].best(name) == orders[1].best(name) for name in by_id)


def test_times_of_a_program():
    assert known("a", None, "x", 1.0, island=0, made=10.0, logged=12.0, seconds=4.0).asked == 6.0
    assert known("a", None, "x", 1.0, island=0, made=10.0, logged=12.0, seconds=4.0).at == 12.0
    only_trace = known("a", None, "x", 1.0, island=0, made=None, logged=12.0, seconds=4.0)
    assert only_trace.asked is None and only_trace.at == 12.0  # written later than made: minus 4 would be too late
    assert only_trace.code_hash == code_hash("x")


def test_a_long_lineage_and_many_copies_take_no_time():
    line = [known(f"p{n}", f"p{n - 1}" if n else None, f"x = {n % 200}", float(n), island=0, made=float(n), logged=None,
                  seconds=0.5) for n in range(20_000)]  # fmt: skip
    history = History(line, [p.id for p in line])
    assert len(history.best("p150")) == TOP and history.best("p19999") == []  # made from a copy of it, all of the best


# ----------------------------------------------------------------------------------------------------- through harvest


def without_prompts(folder: Path) -> Path:
    """A run that logged no prompts: seed -> 1 -> 2 -> 3, and 4 from the seed, made while 2 was not there yet."""
    programs = [seed_json() | {"timestamp": 0.0}]
    for number, parent, made in ((1, 0, 10.0), (2, 1, 20.0), (3, 2, 30.0), (4, 0, 25.0)):
        value = program_json(child(number, parent, score=number * 1.5), prompts=None, timestamp=made)
        value["metadata"] |= {"changes": f"Change of {number}", "island": 0}
        value["artifacts_json"] = json.dumps({"stderr": f"said by {number}"})
        programs.append(value)
    checkpoint(folder, 10, programs)
    traced = [trace_json(child(n, p, score=n * 1.5), with_code=False) for n, p in ((3, 2), (4, 0))]
    for record, (logged, took) in zip(traced, ((30.5, 2.0), (25.5, 9.0)), strict=True):
        del record["prompt"], record["llm_response"]
        record |= {"timestamp": logged, "metadata": {"iteration_time": took}, "island_id": 0}
    trace(folder / "evolution_trace.jsonl", traced)
    return folder


def test_a_rebuilt_prompt_and_its_marks(tmp_path):
    pytest.importorskip("openevolve")
    run = without_prompts(tmp_path / "run")
    (run / "config.yaml").write_text(json.dumps({"prompt": {"system_message": "Make x large."}}))
    rows, counts = harvested(run, tmp_path / "h")
    assert counts["prompts_rebuilt"] == 4 and counts["with_prompt"] == 0
    assert {r.prompt_source for r in rows.values()} == {"rebuilt"}
    for number, parent in ((1, 0), (2, 1), (3, 2), (4, 0)):
        row = rows[f"child-{number}"]
        assert prompts.current_program(row.prompt_user) == row.parent_code == code(parent)
        assert prompts.edit_kind(row.prompt_user) == "diff" and row.prompt_system == "Make x large."
        assert row.prompt_format == "openevolve@0.4" == prompts.detect_format(row.prompt_system, row.prompt_user)
        shown = {int(n) for n in re.findall(r"^x = (\d+)$", row.prompt_user, re.MULTILINE)} - {parent}
        # 4 was asked for at 25 - 9 = 16, when 2 was not there; 3 at 28, when 4 was
        assert shown == {1: set(), 2: {0}, 3: {0, 1, 4}, 4: {1}}[number], (number, shown)
        assert (f"said by {parent}" in row.prompt_user) == (parent > 0)
        assert f"said by {number}" not in row.prompt_user and f"Change of {number}" not in row.prompt_user
    again, _ = harvested(run, tmp_path / "h2")
    assert {c: r.prompt_user for c, r in rows.items()} == {c: r.prompt_user for c, r in again.items()}


def test_the_form_that_was_asked_for(tmp_path):
    pytest.importorskip("openevolve")
    one, two = (program_json(child(n), prompts=None, timestamp=float(n)) for n in (1, 2))
    one["metadata"]["changes"], two["metadata"]["evolution_mode"] = "Full rewrite", "full_rewrite"
    checkpoint(tmp_path / "run", 10, [seed_json(), one, two, program_json(child(3), prompts=None)])
    rows, _ = harvested(tmp_path / "run", tmp_path / "h")
    kinds = {c: prompts.edit_kind(r.prompt_user) for c, r in rows.items()}
    assert kinds == {"child-1": "rewrite", "child-2": "rewrite", "child-3": "diff"}


def test_off_by_an_option_and_never_where_one_was_logged(tmp_path):
    rows, counts = harvested(without_prompts(tmp_path / "run"), tmp_path / "h", rebuild_prompts=False)
    assert {(r.prompt_user, r.prompt_source) for r in rows.values()} == {("", "")} and counts["prompts_rebuilt"] == 0
    checkpoint(tmp_path / "logged", 10, [seed_json(), program_json(child(1))])
    rows, counts = harvested(tmp_path / "logged", tmp_path / "h2")
    assert rows["child-1"].prompt_user == child(1)["user"] and rows["child-1"].prompt_source == "logged"


def test_the_instruction_of_other_children_serves_where_no_config_is_there(tmp_path):
    pytest.importorskip("openevolve")
    silent = program_json(child(2), prompts=None, timestamp=9.0)
    checkpoint(tmp_path / "run", 10, [seed_json(), program_json(child(1)), silent])
    rows, _ = harvested(tmp_path / "run", tmp_path / "h")
    assert rows["child-2"].prompt_system == child(1)["system"] and rows["child-2"].prompt_source == "rebuilt"
    assert SEED.strip() in rows["child-2"].prompt_user
