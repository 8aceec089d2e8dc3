"""Recipes: what is accepted, what is refused and why, and what they say of each tensor."""

from __future__ import annotations

import math

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from eft.loops.merge_recipe import MAX_BYTES, METHODS, Recipe, RecipeError, parse, plain, text

EXPERTS = ["a", "b", "c"]
TENSOR = "model.layers.{}.self_attn.q_proj.weight"


def read(genome: str, full: bool = False, layers: int = 4) -> Recipe:
    return parse(genome, EXPERTS, layers=layers, full=full)


GOOD = """
base_model: base
# EVOLVE-BLOCK-START
merge_method: ties  # linear, ties
models:
  - model: a
    parameters: {weight: 1e-1, density: 0.5}
  - model: b
    parameters:
      weight: [{filter: mlp, value: [0.0, 0.8]}, {value: 0.5}]
parameters: {normalize: false, lambda: 1}
# EVOLVE-BLOCK-END
"""


def test_a_recipe_says_numbers_per_tensor() -> None:
    recipe = read(GOOD)
    b = dict(recipe.models)["b"]
    assert dict(recipe.models)["a"]["weight"] == 0.1, "1e-1 is a number here, though not in YAML 1.1"
    mlp = [recipe.value("weight", f"model.layers.{i}.mlp.up_proj.weight", 4, b) for i in range(4)]
    assert mlp == pytest.approx([0.0, 0.8 / 3, 1.6 / 3, 0.8])
    assert recipe.value("weight", TENSOR.format(2), 4, b) == 0.5
    assert recipe.value("density", TENSOR.format(2), 4, b) is None and not recipe.switch("normalize")


def test_the_same_recipe_is_the_same_however_it_is_written() -> None:
    other = "models:\n- {parameters: {density: .50, weight: 0.1}, model: a}\n" + "- model: b\n  parameters: {weight: "
    other += "[{value: [0, 8.0e-1], filter: mlp}, {value: 0.50}]}\nmerge_method: ties\nparameters: {lambda: 1.0, normalize: no}\n"
    assert read(other).hash() == read(GOOD).hash()
    assert read(other.replace("0.1", "0.11")).hash() != read(GOOD).hash()
    assert read(GOOD.replace("normalize: false", "normalize: true")).hash() == read(GOOD.replace("normalize: false, ", "")).hash()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("model: a", "model: ../../etc/passwd"), "there is no expert '../../etc/passwd'"),
        (("model: a", "model: https://host/model"), "there is no expert"),
        (("- model: b", "- model: a"), "twice"),
        (("weight: 1e-1", "weight: .nan"), "not a finite number"),
        (("weight: 1e-1", "weight: -.inf"), "not a finite number"),
        (("weight: 1e-1", "weight: 1e400"), "not a finite number"),
        (("weight: 1e-1", f"weight: {10**400}"), "not a finite number"),
        (("weight: 1e-1", "weight: 5.5"), "outside"),
        (("weight: 1e-1", "weight: true"), "must be a number"),
        (("weight: 1e-1", "weight: '0.1'"), "must be a number"),
        (("weight: 1e-1", "weight: []"), "empty list"),
        (("weight: 1e-1", "weight: [1, 1, 1, 1, 1]"), "4 layers"),
        (("weight: 1e-1", "weight: {filter: mlp, value: 1}"), "need a last one without `filter`"),
        (("weight: 1e-1", "wieght: 0.1"), "did you mean 'weight'"),
        (("weight: 1e-1, ", ""), "'a' has no weight"),
        (("density: 0.5", "density: 0"), "outside"),
        (("filter: mlp", "filter: 'a b'"), "part of a tensor's name"),
        (("merge_method: ties", "merge_method: slerp"), "merge_method must be one of"),
        (("merge_method: ties", "merge_method: [ties]"), "merge_method must be one of"),
        (("base_model: base", "base_model: a"), "base_model must be 'base'"),
        (("base_model: base", "slices: []"), "cannot have the key 'slices'"),
        (("base_model: base", "dtype: float64"), "cannot have the key 'dtype'"),
        (("parameters: {normalize", "parameters: {int8_mask: true, normalize"), "cannot have the key 'int8_mask'"),
        (("normalize: false", "normalize: 0"), "true or false"),
        (("model: a", "model: &x a"), "anchors"),
        (("model: a", "model: !!python/name:os.system"), "tags"),
        (("merge_method: ties", "merge_method: ties\nmerge_method: ties"), "stands there twice"),
        (("models:", "models: ["), "it is not valid YAML: line"),
        (("merge_method: ties", "merge_method: " + "x" * MAX_BYTES), "at most"),
        (("model: a", "model: " + "[" * 20 + "]" * 20), "nested"),
    ],
)
def test_what_is_refused_says_why_in_one_line(change: tuple[str, str], told: str) -> None:
    genome = GOOD.replace(*change, 1)
    assert genome != GOOD
    with pytest.raises(RecipeError) as e:
        read(genome)
    assert told in str(e.value) and "\n" not in str(e.value)


def test_whole_models_have_more_methods_and_their_own_demands() -> None:
    slerp = "merge_method: slerp\nmodels: [{model: a}, {model: b}]\nparameters: {t: [0, 1]}\n"
    assert read(slerp, full=True).canonical() != read(slerp.replace("{model: a}, {model: b}", "{model: b}, {model: a}"), full=True).canonical()
    with pytest.raises(RecipeError, match="takes 2 models"):
        read(slerp.replace(", {model: b}", ""), full=True)
    with pytest.raises(RecipeError, match="must be one of linear"):
        parse(slerp, EXPERTS, layers=4, full=True, methods=["linear", "slerp"][:1])


def test_nothing_but_recipe_errors_comes_out() -> None:
    odd = ("", "null", "[]", "1", "- a", "\x00", "a: b: c", "? {}", "models: 1", "x: 2026-99-99", "\ud800")
    for genome in (*odd, "merge_method: linear\nmodels: [[]]"):
        with pytest.raises(RecipeError):
            read(genome)


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet=st.sampled_from(list(" \n:-[]{}#&*!|>'\"%@`,.0123456789eabct\\/_")), max_size=200))
def test_any_text_is_a_recipe_or_a_recipe_error(noise: str) -> None:
    for genome in (noise, GOOD.replace("1e-1", noise), GOOD + noise):
        try:
            read(genome)
        except RecipeError as e:
            assert str(e)


WEIGHT = st.one_of(st.floats(-5, 5), st.lists(st.floats(-5, 5), min_size=1, max_size=4))


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from([m for m, about in METHODS.items() if about.adapters]),
    st.dictionaries(st.sampled_from(EXPERTS), WEIGHT, min_size=1),
)
def test_what_is_written_reads_back_and_is_mergekits_dialect(method: str, weights: dict) -> None:
    recipe = read(text(method, weights))
    for alias, values in recipe.models:
        told = weights[alias] if isinstance(weights[alias], list) else [weights[alias]]
        values = values["weight"] if isinstance(values["weight"], tuple) else [values["weight"]]
        assert list(values) == pytest.approx(told, rel=1e-5, abs=1e-6)
    places = {alias: f"/x/{alias}" for alias in (*EXPERTS, "base")}
    known = yaml.safe_load(yaml.safe_dump(plain(recipe, places)))
    assert known["merge_method"] == method and known.get("base_model") == (None if method == "linear" else "/x/base")
    assert {m["model"] for m in known["models"]} == {f"/x/{a}" for a in weights}


@given(st.lists(st.floats(0.01, 5), min_size=3, max_size=3))
def test_averages_weigh_one_in_all(weights: list[float]) -> None:
    told = read(text("linear", dict(zip(EXPERTS, weights, strict=True)))).coefficients(TENSOR.format(0), 4)
    assert math.isclose(sum(c for _, c in told), 1)
    with pytest.raises(RecipeError, match="add up to"):
        read(text("linear", {"a": weights[0], "b": -weights[0]})).coefficients(TENSOR.format(0), 4)
