"""Specs and results: files that come back equal, mistakes that are named."""

from __future__ import annotations

import dataclasses
import json

import pytest

from eft.errors import EftError, UsageError
from eft.search.spec import RESULT, Candidate, SearchResult, SearchSpec, finished, finite


def result_of(spec: SearchSpec) -> SearchResult:
    candidate = Candidate(0, 1, "ok", applied=True, changes_syntax=True, valid=True, score=0.5)
    return SearchResult(
        name=spec.name, task="toys/toy", domain="toys", role="", mutator=spec.mutator, model=spec.model, seed=spec.seed,
        scaffold=spec.scaffold, scaffold_release="0", prompt_format=spec.prompt_format, edit=spec.edit, iterations=1,
        iterations_done=1, seed_score=0.1, seed_raw=None, best_score=0.5, best_raw=None, best_code="x = 1",
        best_curve=(0.5,), raw_curve=(None,), candidates=(candidate,), replies=1, valid_edits=1, distinct_valid_edits=1,
        spec=spec.identity(),
    )  # fmt: skip


def test_a_spec_and_a_result_come_back_equal(spec, tmp_path) -> None:
    one = spec(journal="j.jsonl", seed=3)
    one.save(tmp_path / "spec.json")
    assert SearchSpec.load(tmp_path / "spec.json") == one
    result = result_of(one)
    result.save(tmp_path / RESULT)
    assert SearchResult.load(tmp_path / RESULT) == result
    assert json.loads((tmp_path / RESULT).read_text())["valid_edit_rate"] == 1.0


def test_names_and_models_have_defaults(spec) -> None:
    assert (spec("abc").name, spec("abc").model) == ("abc", "m")


@pytest.mark.parametrize("fields, hint", [
    ({"scaffold": "openevolv"}, "openevolve"), ({"edit": "diffs"}, "diff"), ({"iterations": 0}, "iteration"),
])  # fmt: skip
def test_a_wrong_spec_names_the_mistake(spec, fields, hint) -> None:
    with pytest.raises(UsageError, match=hint):
        spec(**fields)


def test_finished_is_this_search_and_no_other(spec) -> None:
    one = spec()
    assert finished(one) is None
    result_of(one).save(one.folder / RESULT)
    assert finished(one) is not None
    assert finished(one.replace(base_url="http://127.0.0.1:1/v1", request_timeout_s=1)) is not None
    for change in ({"seed": 1}, {"iterations": 9}, {"mutator": "n"}, {"temperature": 1.0}, {"edit": "rewrite"}):
        assert finished(one.replace(**change)) is None, change


@pytest.mark.parametrize("content", ["", "[]", "{", '{"name": 1}', "null"])
def test_a_broken_result_is_not_finished(spec, content) -> None:
    one = spec()
    one.folder.mkdir()
    (one.folder / RESULT).write_text(content)
    assert finished(one) is None
    with pytest.raises(EftError, match="search result"):
        SearchResult.load(one.folder / RESULT)


def test_only_finite_numbers_are_numbers() -> None:
    assert [finite(v) for v in (1, 0.5)] == [1.0, 0.5]
    assert all(finite(v) is None for v in (True, float("nan"), float("inf"), "1", None, 10**400))


def test_what_counts_as_a_valid_edit() -> None:
    good = Candidate(0, 1, "ok", applied=True, changes_syntax=True, valid=True)
    assert good.valid_edit
    for name in ("applied", "changes_syntax", "valid"):
        assert not dataclasses.replace(good, **{name: False}).valid_edit
