"""Edits of YAML genomes: between the markers, never keys, comments or quoted words; and the mutator that makes them."""

from __future__ import annotations

import random

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from eft import edits
from eft.mutators import text_edits, yaml_edits
from eft.mutators.ast import AstMutator
from eft.mutators.validate import propose
from eft.syntax import yaml_events

GENOME = """# a merge recipe; experts: math, code, law
base: start
# EVOLVE-BLOCK-START
method: linear  # linear, ties, dare_ties
normalize: true
title: "not 0.5"
models:
  - model: math
    weight: 0.5
    density: [1.0, 0.5]
  - model: code
    weight: 0.25  # not 0.75
  - {model: law, weight: 1}
# EVOLVE-BLOCK-END
seed: 7
"""
KEPT = ("base: start", '"not 0.5"', "# not 0.75", "EVOLVE-BLOCK-START", "EVOLVE-BLOCK-END", "seed: 7")


def children(code=GENOME, count=400, seed=0, **options):
    return [c for c, _ in zip(yaml_edits.stream(code, random.Random(seed), **options), range(count), strict=False)]


def test_what_changes_and_what_does_not():
    kinds = set()
    for change in children():
        kinds.add(change.kind)
        said = yaml.safe_load(change.child)
        assert isinstance(said, dict) and said["base"] == "start" and said["seed"] == 7
        for kept in KEPT:
            assert kept in change.child or change.kind == "statement"
    assert kinds == set(yaml_edits.WEIGHTS)
    methods = {yaml.safe_load(c.child).get("method") for c in children()}
    assert methods - {None} == {"linear", "ties", "dare_ties"}  # what the comment on the line offers, and nothing else
    models = {m["model"] for c in children() for m in yaml.safe_load(c.child).get("models") or () if "model" in m}
    assert models == {"math", "code", "law"}
    assert children(count=40, seed=3) == children(count=40, seed=3)


def test_an_entry_goes_with_all_below_it():
    for change in children(kinds=("statement",)):
        for model in yaml.safe_load(change.child).get("models") or ():
            assert {"model", "weight"} & set(model), change.child


def test_numbers_only():
    for change in children(kinds=("number",)):
        a, b = (e.split("\n") for e in (GENOME, change.child))
        assert sum(x != y for x, y in zip(a, b, strict=True)) == 1 and change.kind == "number"


@settings(max_examples=120, deadline=None)
@given(st.text(alphabet="ab1.0+-:[]{} ,\n\"'#&*!|>%@é\t", max_size=120), st.integers(0, 99))
def test_any_text_is_survived(code, seed):
    for change in children(code, 5, seed):
        assert edits.changes_syntax(code, change.child, "yaml")


@pytest.mark.parametrize("code", ["", "# nothing\n", "a: [1, 2", "x: " + "9" * 400, "&a " * 50, "[" * 3000, "a: 1\nb: *c\n",
                                  "n: 1e999\n", "n: .inf\n", "!!python/object/apply:os.system ['true']"])  # fmt: skip
def test_odd_genomes(code):
    for change in children(code, 5):
        assert yaml_events(change.child) is not None


def test_a_bomb_is_not_unfolded():
    bomb = "a: &a [x, x]\n" + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [*{chr(97 + i)}, *{chr(97 + i)}]\n" for i in range(24))
    assert not edits.changes_syntax(bomb, bomb + "# a comment\n", "yaml")
    assert edits.changes_syntax(bomb, bomb + "n: 2\n", "yaml")
    assert children(bomb + "n: 2\n", 3)


def test_what_counts_as_a_change():
    assert not edits.changes_syntax("a: 1\n", "a:   1  # the same\n", "yaml")
    assert edits.changes_syntax("a:\n  b: 1\n", "a:\nb: 1\n", "yaml")  # indentation says something
    assert not edits.changes_syntax("a: 1\n", "a: [1\n", "yaml")  # no YAML


@pytest.mark.parametrize("form", ["diff", "rewrite"])
@pytest.mark.parametrize("tag", ["yaml", "yml"])
def test_the_ast_mutator_answers_for_yaml(form, tag):
    prompt = [{"role": "user", "content": f"# Current Program\n```{tag}\n{GENOME}\n```\n\n# Task\nSEARCH/REPLACE\n"}]
    for call in range(20):
        reply = AstMutator(seed=1, form=form).propose(prompt, call).content
        edit = edits.apply(GENOME, reply, kind=form, language="yaml")
        assert edit and edits.changes_syntax(GENOME, edit.child, "yaml")
        assert form == "diff" or reply.startswith("```yaml\n")
    assert propose(GENOME, random.Random(0), "yaml")


def test_an_edit_that_helped_is_followed():
    user = (
        "Score: 0.5\n- Change 1: 'weight: 0.1' to 'weight: 0.5' | improved\n\n# Current Program\n```yaml\n"
        f"{GENOME}\n```\n\n# Task\nSEARCH/REPLACE\n"
    )
    reply = AstMutator(seed=1, guided=1.0).propose([{"role": "user", "content": user}], 0).content
    assert yaml.safe_load(edits.apply(GENOME, reply, kind="diff").child)["models"][0]["weight"] in (0.9, 1.3, 0.7)


def test_yaml_is_a_language_of_the_mutator():
    assert "yaml" in text_edits.LANGUAGES
