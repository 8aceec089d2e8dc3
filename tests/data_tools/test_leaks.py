"""Decontamination: a planted leak of every kind is found, and nothing that is shipped leaks into anything else."""

from __future__ import annotations

import json
import re

import pytest
from tables import labelled, output_of

from data_tools import clean, leaks
from eft import manifest
from eft.errors import UsageError
from eft.records import read_transitions
from eft.tasks.suite import load_suite, suite_names
from eft.tasks.task import find_task

SECRET = "learning/step_rule"  # held out in every suite


def program(name: str = SECRET) -> str:
    return find_task(name).initial_program.read_text()


def renamed(code: str) -> str:
    """The same program with other names and a comment."""
    own = sorted(set(re.findall(r"\b[a-z_]\w{2,}\b", code)) - leaks.guard("embedded").names.keys(), key=len)
    from data_tools.lexing import KEPT

    for i, name in enumerate(n for n in own if n not in KEPT):
        code = re.sub(rf"(?<!\.)\b{name}\b", f"zz{i}", code)
    return "# nothing to see\n" + code


PLANTED = {
    "name": labelled(1, task="elsewhere/Step-Rule", run="by_name"),
    "text": labelled(2, task="mine", run="by_text",
                     child_artifacts=json.dumps({"stderr": find_task(SECRET).evaluator.read_text()})),
    "program": labelled(3, task="mine", run="by_program", parent_code=renamed(program()),
                        prompt_user="# Task\nImprove."),
    "near copy": labelled(4, task="mine", run="near", prompt_user="# Task\nImprove.",
                          child_code=program().replace("return", "return 1.0 +") + "\n\ndef more():\n    return 3\n"),
}  # fmt: skip


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_leak_is_found_and_named(kind, tmp_path, capsys):
    rows = [labelled(9, run="clean"), PLANTED[kind]]
    out = clean.run(clean.Config(source=output_of("label", tmp_path / "l", rows), output=tmp_path / "c"))
    assert [r.run for r in read_transitions(out)] == ["clean"]
    assert manifest.read(out)["counts"]["reasons"] == {"leak": 1}
    found = json.loads((out / clean.LEAKS).read_text())
    assert {f["of"] for f in found} == {SECRET} and {f["first"] for f in found} == {PLANTED[kind].id}
    assert kind.replace("near copy", "text") in {f["kind"] for f in found} or kind == "near copy"
    assert f"leak of {SECRET}" in capsys.readouterr().err


def test_a_child_of_a_held_out_search_goes_though_it_shows_nothing(tmp_path):
    late = labelled(5, task="mine", run="by_name_not_given", parent_code="x = 5\n" * 3)
    rows = [PLANTED["program"].replace(run="by_name_not_given"), late, labelled(6, task="mine", run="another")]
    out = clean.run(clean.Config(source=output_of("label", tmp_path / "l", rows), output=tmp_path / "c"))
    assert [r.run for r in read_transitions(out)] == ["another"]
    kinds = {f["kind"]: f for f in json.loads((out / clean.LEAKS).read_text())}
    assert kinds["lineage"]["of"] == SECRET and kinds["lineage"]["first"] == late.id


def test_it_can_be_switched_off_and_another_suite_asked(tmp_path):
    source = output_of("label", tmp_path / "l", [labelled(9, run="clean"), PLANTED["program"]])
    assert len(list(read_transitions(clean.run(clean.Config(source=source, output=tmp_path / "c", suite=""))))) == 2
    own = tmp_path / "own.yaml"
    own.write_text("heldout: [mathematics/circle_packing]\n")
    assert (
        len(list(read_transitions(clean.run(clean.Config(source=source, output=tmp_path / "c", suite=str(own)))))) == 2
    )
    with pytest.raises(UsageError, match="there is no suite"):
        clean.run(clean.Config(source=source, output=tmp_path / "c", suite="standart"))
    own.write_text("heldout: [mathematics/circle_packing]\ntrain: [mathematics/circle_packing]\n")
    with pytest.raises(UsageError, match="two roles"):
        clean.run(clean.Config(source=source, output=tmp_path / "c", suite=str(own)))


@pytest.mark.parametrize("suite", [s for s in suite_names() if s != "finch"])
def test_no_shipped_training_task_looks_like_a_held_out_one(suite):
    loaded, guard = load_suite(suite), leaks.guard(suite)
    for role in ("train", "validation"):
        for task in loaded.tasks(role):
            row = labelled(1, task=task.name, parent_code=task.initial_program.read_text(),
                           child_artifacts=json.dumps({"stderr": task.evaluator.read_text()}))  # fmt: skip
            assert guard.by_name(task.name) + guard.by_text(row) + guard.by_program(row, {}) == []


@pytest.mark.parametrize("suite", [s for s in suite_names() if s != "finch"])
def test_every_held_out_task_is_known_again(suite):
    loaded, guard = load_suite(suite), leaks.guard(suite)
    small = set()
    for role in ("heldout", "gate"):
        for task in loaded.tasks(role):
            small |= {task.name} - {name for name, _ in guard.programs}
            row = labelled(1, parent_code="", child_code=task.initial_program.read_text(), prompt_user="")
            hits = guard.by_text(row) + guard.by_program(row, {})
            assert task.name in {h.task for h in hits}, task.name
            logs = labelled(1, child_artifacts=json.dumps({"stderr": task.evaluator.read_text()}))
            assert task.name in {h.task for h in guard.by_text(logs)}, task.name
    assert small == set(guard.ordinary) and len(small) <= 5  # of these no renamed copy can be told from others


def test_a_row_that_shows_a_sign_at_both_ends_is_one_row(tmp_path):
    rows = [labelled(5, task="mine", run="r", parent_code=program(), child_code=renamed(program()) + "\nprint(3)\n"),
            labelled(6, task="own")]  # fmt: skip
    out = clean.run(clean.Config(source=output_of("label", tmp_path / "l", rows), output=tmp_path / "c"))
    found = json.loads((out / clean.LEAKS).read_text())
    assert found and all(hit["rows"] == 1 for hit in found)


def test_the_text_of_a_held_out_task_in_a_reply_is_found(tmp_path):
    text = find_task(SECRET).evaluator.read_text()
    rows = [labelled(7, task="mine", run="r", reasoning=text), labelled(8, task="own")]
    out = clean.run(clean.Config(source=output_of("label", tmp_path / "l", rows), output=tmp_path / "c"))
    assert [hit["kind"] for hit in json.loads((out / clean.LEAKS).read_text())] == ["text"]
