"""The gateway's journals: proposals as transitions, reasoning for the scaffold's children, nothing counted twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from synthetic_runs import checkpoint, child, code, diff, program_json, seed_json, trace, trace_json, user_prompt

from data_tools import harvest
from data_tools.readers import gateway
from eft import manifest
from eft.errors import EftError
from eft.records import Transition, read_transitions


def harvested(*runs: Path, out: Path) -> tuple[list[Transition], dict]:
    folder = harvest.run(harvest.Config(runs=list(runs), output=out))
    return list(read_transitions(folder)), manifest.read(folder)["counts"]


def messages(parent: str) -> list[dict]:
    return [{"role": "system", "content": "You improve programs."}, {"role": "user", "content": user_prompt(parent)}]


def reply(index: int, content: str, parent: str, **more) -> dict:
    return {"kind": "reply", "search": "s1", "index": index, "key": f"k{index}", "mutator": "teacher", "model": "big",
            "messages": messages(parent), "status": "ok", "content": content, "reasoning": f"thought {index}",
            "usage": {"prompt_tokens": 11, "completion_tokens": 5}, **more}  # fmt: skip


def proposal(index: int, new: int, *, chosen: bool = False, **more) -> dict:
    return {"kind": "proposal", "search": "s1", "index": index, "mutator": "ast", "parent_code": code(0),
            "child_code": code(new), "response": diff(0, new), "parent_metrics": {"combined_score": 0.0},
            "child_metrics": {"combined_score": float(new)}, "child_artifacts": {}, "messages": messages(code(0)),
            "chosen": chosen, **more}  # fmt: skip


def journal(path: Path, records: list[dict], torn: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in records) + ('{"kind": "rep' if torn else ""))
    return path


def search(folder: Path, name: str = "s1") -> Path:
    """A search as `eft collect` leaves it: OpenEvolve's trace and run.json."""
    trace(folder / "evolution_trace.jsonl", [trace_json(child(3))])
    about = {
        "search": name,
        "task": "maths/x",
        "domain": "maths",
        "role": "train",
        "prompt_format": "eft@1",
        "model": "",
    }
    (folder / "run.json").write_text(json.dumps(about))
    return folder


def test_proposals_are_transitions_and_the_chosen_one_is_the_scaffolds(tmp_path):
    search(tmp_path / "runs" / "s1")
    records = [proposal(0, 2), proposal(0, 3, chosen=True), proposal(0, 5), reply(0, diff(0, 3), code(0))]
    journal(tmp_path / "runs" / "journal" / "s1.jsonl", records)
    rows, counts = harvested(tmp_path / "runs", out=tmp_path / "h")
    assert sorted((r.scaffold, r.child_code) for r in rows) == [
        ("gateway", code(2)), ("gateway", code(5)), ("openevolve", code(3))]  # fmt: skip
    assert counts["proposals"] == 3 and counts["proposals_in_scaffold"] == 1 and counts["searches"] == 1
    assert {(r.task, r.domain, r.suite_role, r.prompt_format, r.run, r.replay) for r in rows} == {
        ("maths/x", "maths", "train", "eft@1", "s1", "match")}  # fmt: skip
    assert len({r.id for r in rows}) == 3


def test_a_chosen_proposal_that_the_scaffold_lost_is_kept(tmp_path):
    search(tmp_path / "runs" / "s1")
    journal(tmp_path / "runs" / "journal" / "s1.jsonl", [proposal(0, 4, chosen=True)])
    rows, counts = harvested(tmp_path / "runs", out=tmp_path / "h")
    assert {r.child_code for r in rows} == {code(3), code(4)} and counts["proposals_in_scaffold"] == 0


def test_a_journal_elsewhere_does_not_count_children_twice_either(tmp_path):
    trace(tmp_path / "run" / "evolution_trace.jsonl", [trace_json(child(3))])
    path = journal(tmp_path / "far" / "unrelated-name.jsonl", [proposal(0, 3, chosen=True), proposal(0, 5)])
    rows, _ = harvested(tmp_path / "run", path, out=tmp_path / "h")
    assert sorted(r.child_code for r in rows) == [code(3), code(5)]


def test_a_journal_alone(tmp_path):
    path = journal(tmp_path / "s1.jsonl", [reply(0, diff(0, 2), code(0)), proposal(0, 2, chosen=True)], torn=True)
    rows, counts = harvested(path, out=tmp_path / "h")
    assert [(r.task, r.scaffold, r.child_code) for r in rows] == [("s1", "gateway", code(2))]
    assert counts["bad_files"] == 1 and counts["replies"] == 1


def test_a_rewrite_that_was_evaluated_unstripped(tmp_path):
    user = user_prompt(code(0)).replace("<<<<<<< SEARCH", "```")
    path = journal(tmp_path / "s1.jsonl", [
        proposal(0, 2, response=f"```python\n{code(2)}\n```", messages=[{"role": "user", "content": user}]),
    ])  # fmt: skip
    row = harvested(path, out=tmp_path / "h")[0][0]
    assert (row.replay, row.edit_kind, row.child_code) == ("match", "rewrite", code(2).strip())


def test_reasoning_is_joined_by_text_and_prompt(tmp_path):
    run = tmp_path / "runs" / "s1"
    same = [child(n, id=f"c{n}", iteration=n, code=code(9), response=diff(0, 9)) for n in (1, 2)]
    other = child(3, 1, response=diff(1, 9), code=code(9))
    checkpoint(run, 10, [seed_json(), *map(program_json, [*same, other])])
    journal(run / "journal.jsonl", [
        reply(0, diff(0, 9), code(0)), reply(1, diff(0, 9), code(0)), reply(2, diff(1, 9), code(1)),
        reply(3, "useless", code(0)), reply(4, diff(0, 9), code(0), status="error")])  # fmt: skip
    rows, counts = harvested(tmp_path / "runs", out=tmp_path / "h")
    assert {r.child_id: r.reasoning for r in rows} == {"c1": "thought 0", "c2": "thought 1", "child-3": "thought 2"}
    assert counts["with_reasoning"] == 3 and {(r.model, r.prompt_tokens, r.response_tokens) for r in rows} == {
        ("big", 11, 5)
    }


@pytest.mark.parametrize("broken", [{"parent_code": None}, {"child_code": 3}, {"messages": "no list"}, {"index": "x"},
                                    {"child_metrics": []}, {"response": None}, {"usage": 1}])  # fmt: skip
def test_wrong_types(tmp_path, broken):
    path = journal(tmp_path / "s1.jsonl", [proposal(0, 2), proposal(1, 3) | broken, {"kind": "other"}])
    rows, _ = harvested(path, out=tmp_path / "h")
    assert code(2) in {r.child_code for r in rows}


def test_only_replies_is_no_transition(tmp_path):
    path = journal(tmp_path / "s1.jsonl", [reply(0, "x", code(0))])
    with pytest.raises(EftError, match="1 replies, no evaluated proposals"):
        harvested(path, out=tmp_path / "h")


def test_detection(tmp_path):
    assert gateway.is_journal(journal(tmp_path / "a.jsonl", [reply(0, "x", "y")]))
    assert not gateway.is_journal(trace(tmp_path / "evolution_trace.jsonl", [trace_json(child(1))]))
    (tmp_path / "empty.jsonl").write_text("")
    assert not gateway.is_journal(tmp_path / "empty.jsonl")
