"""Edits of programs that are not Python: one line changes, between the markers, never in comments or strings."""

from __future__ import annotations

import random
import re
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eft import edits
from eft.errors import EftError, UsageError
from eft.mutators import text_edits
from eft.mutators.ast import AstMutator
from eft.tasks.task import find_task, shipped

PROGRAM = """#include <vector>
#define LIMIT 10
int outside = 5;
// EVOLVE-BLOCK-START
double GAIN = 0.5;  // not 0.25
int STEPS = 20;
const char *word = "a + 1 < 2";
double table[8];

double rule(double x, double y, bool late) {
    double value = GAIN * x - 3 * y;
    if (late && x < 1e-3) value += 2.0f;
    value = value / (1 + table[3]);
    return value;
}
// EVOLVE-BLOCK-END
int after = 7;
"""
KEPT = ("#define LIMIT 10", "int outside = 5;", "// not 0.25", '"a + 1 < 2"', "table[8]", "EVOLVE-BLOCK-START",
        "EVOLVE-BLOCK-END", "int after = 7;")  # fmt: skip
SEEDS = [t.seed() for t in map(find_task, shipped()) if t.language == "cpp"]


def children(code, count=200, seed=0, **options):
    stream = text_edits.stream(code, random.Random(seed), "cpp", **options)
    return [c for c, _ in zip(stream, range(count), strict=False)]


def test_what_changes_and_what_does_not():
    kinds = set()
    for change in children(PROGRAM, 400):
        kinds.add(change.kind)
        old, new = PROGRAM.split("\n"), change.child.split("\n")
        if change.kind != "statement":
            touched = [i for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
            assert len(touched) == 1
            assert re.sub(r".*//|.*", "", old[touched[0]]) == re.sub(r".*//|.*", "", new[touched[0]])
        for kept in KEPT:
            assert kept in change.child
        assert change.kind == "statement" or "table[3]" in change.child  # an index is no measure
    assert kinds == set(text_edits.WEIGHTS)


def test_whole_numbers_stay_whole_and_suffixes_stay():
    found = [c.child for c in children(PROGRAM, 300, kinds=("number",))]
    steps = {m[1] for child in found for m in [re.search(r"STEPS = (\S+);", child)]}
    assert len(steps) > 3 and all(re.fullmatch(r"-?\d+", s) for s in steps)
    assert all(m[1].endswith("f") for child in found for m in [re.search(r"value \+= (\S+);", child)])
    assert not any(re.search(r"[-+*/] -\d", child) for child in found)  # a negative number stands in parentheses


def test_deterministic_and_markers():
    assert children(PROGRAM, 50, seed=3) == children(PROGRAM, 50, seed=3)
    free = PROGRAM.replace("// EVOLVE-BLOCK-START\n", "").replace("// EVOLVE-BLOCK-END\n", "")
    assert any("outside = 5" not in c.child for c in children(free, 300))
    assert children("// nothing here\n") == [] and children("") == []


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_most_children_of_a_seed_compile():
    code = SEEDS[0]
    fine = sum(
        subprocess.run(["g++", "-std=c++17", "-fsyntax-only", "-x", "c++", "-"], input=c.child.encode(),
                       capture_output=True).returncode == 0
        for c in children(code, 8)
    )  # fmt: skip
    assert fine >= 6


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="ab1.0+-*/<>=&|;(){}[] \n\"'#/\\Eé", max_size=120), st.integers(0, 99))
def test_any_text_is_survived(code, seed):
    for change in children(code, 5, seed):
        assert edits.changes_syntax(code, change.child, "cpp")


def prompt(code, tag="cpp"):
    return [{"role": "user", "content": f"# Current Program\n```{tag}\n{code}\n```\n\n# Task\nSEARCH/REPLACE\n"}]


@pytest.mark.parametrize("form", ["diff", "rewrite"])
def test_the_ast_mutator_answers_for_cpp(form):
    code = SEEDS[0].rstrip("\n")
    for call in range(20):
        reply = AstMutator(seed=1, form=form).propose(prompt(code), call)
        edit = edits.apply(code, reply.content, kind=form, language="cpp")
        assert edit and edit.child != code
    task = next(t for t in map(find_task, shipped()) if t.language == "cpp")
    assert AstMutator(seed=1, task=task).propose(prompt(code, ""), 0).content
    with pytest.raises(EftError, match="does not parse as Python"):
        AstMutator(seed=1).propose(prompt(code, ""), 0)


def test_an_edit_that_helped_is_followed():
    code = SEEDS[0].rstrip("\n")
    line = next(x for x in code.split("\n") if x.startswith("double "))
    old = re.sub(r"[\d.]+;.*", "1.0;", line)
    new = re.sub(r"[\d.]+;.*", "1.5;", line)
    code = code.replace(line, new)
    user = f"Score: 0.5\n- Change 1: '{old}' to '{new}' | improved\n\n" + prompt(code)[0]["content"]
    reply = AstMutator(seed=1, guided=1.0).propose([{"role": "user", "content": user}], 0)
    assert re.search(r"= (2\.0|2\.5|1\.75);", edits.apply(code, reply.content, kind="diff", language="cpp").child)


def test_languages(tmp_path):
    (tmp_path / "evaluator.py").write_text("def evaluate(path):\n    return {}\n")
    (tmp_path / "initial_program.js").write_text("let gain = 0.5;\n")
    task = find_task(str(tmp_path))
    assert AstMutator(seed=0, task=task).propose(prompt("let gain = 0.5;", "js"), 0).content
    r = "# EVOLVE-BLOCK-START\ngain <- 0.5  # not 0.25\n# EVOLVE-BLOCK-END\n"
    changes = zip(text_edits.stream(r, random.Random(0), "r"), range(50), strict=False)
    assert all("# not 0.25" in change.child for change, _ in changes)
    with pytest.raises(UsageError, match="no kinds"):
        AstMutator(seed=0, kinds="letters")


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_looking_ahead_improves_a_cpp_task():
    task = find_task("contest/containers")
    reply = AstMutator(seed=2, lookahead=6, task=task).propose(prompt(task.seed().rstrip("\n")), 0)
    assert len(reply.proposals) == 6
    (chosen,) = [p for p in reply.proposals if p["chosen"]]
    assert chosen["child_metrics"]["combined_score"] > chosen["parent_metrics"]["combined_score"]
