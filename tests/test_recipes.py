"""Recipes: forms merge over stage files, mistakes surface before any work, shipped recipes resolve."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml

from eft import config as configs
from eft import recipes, resources, stages
from eft.errors import UsageError

REPOSITORY = Path(__file__).resolve().parent.parent


def recipe(tmp_path: Path, **files: dict) -> Path:
    for name, content in files.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(content))
    return tmp_path


def test_a_form_is_merged_key_by_key(tmp_path: Path) -> None:
    folder = recipe(tmp_path, data={"root": "out/x", "harvest": {"runs": ["runs"], "a": {"b": 1, "c": 2}}}, sft={"steps": 9},
                    short={"harvest": {"a": {"c": 3}}, "sft": {"steps": 1}})  # fmt: skip
    full, short = recipes.resolve(folder), recipes.resolve(folder, "short")
    assert full["harvest"] == {"root": "out/x", "runs": ["runs"], "a": {"b": 1, "c": 2}}
    assert short["harvest"]["a"] == {"b": 1, "c": 3} and short["sft"] == {"steps": 1}
    assert list(full) == ["harvest", "sft"], "in the pipeline's order"
    assert recipes.resolve(folder, root=Path("/elsewhere"))["sft"]["root"] == "/elsewhere"


def test_further_runs_are_added_to_the_harvest(tmp_path: Path) -> None:
    folder = recipe(tmp_path, data={"harvest": {"runs": ["runs"]}})
    assert recipes.resolve(folder, runs=[str(tmp_path)])["harvest"]["runs"] == ["runs", str(tmp_path.resolve())]
    with pytest.raises(UsageError, match="no such run"):
        recipes.resolve(folder, runs=["/does/not/exist"])


def test_data_sets_on_the_hub_are_runs_too_where_a_revision_is_pinned(tmp_path: Path) -> None:
    folder = recipe(tmp_path, data={"harvest": {"runs": [], "output": "h"}})
    named = "hub:some-org/Finch-Collection@0123456789abcdef0123456789abcdef01234567"
    harvest = recipes.resolve(folder, runs=[named, str(tmp_path)])["harvest"]
    assert harvest["runs"] == [named, str(tmp_path.resolve())]
    config = configs.make(stages.module("harvest").Config, harvest)
    assert [str(p) for p in stages.module("harvest").inputs(config)][0] == named
    for loose in ("hub:some-org/Finch-Collection", "hub:some-org/Finch-Collection@main", "hub:Finch-Collection"):
        harvest = recipes.resolve(folder, runs=[loose])["harvest"]
        with pytest.raises(UsageError, match="no revision is pinned|no data set on the hub"):
            configs.make(stages.module("harvest").Config, harvest)


@pytest.mark.parametrize(
    "files, form, words",
    [
        ({}, "", "not a recipe"),
        ({"data": {"harvets": {}, "label": {}}}, "", "did you mean 'harvest'"),
        ({"sft": {}}, "long", "no form 'long'"),
        ({"sft": {}, "short": {"kto": {}}}, "short", "form 'short' names 'kto'"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, files: dict, form: str, words: str) -> None:
    with pytest.raises(UsageError) as e:
        recipes.resolve(recipe(tmp_path, **files), form)
    assert words in str(e.value)


FORMS = [(name, form) for name in resources.names("recipes")
         for form in ("", *sorted({f.stem for f in resources.path("recipes", name).glob("*.yaml")} - {"data", *recipes.ORDER}))]  # fmt: skip


@pytest.mark.parametrize("name, form", FORMS)
def test_shipped_recipes_and_their_forms_are_valid(name: str, form: str) -> None:
    folder = resources.path("recipes", name)
    for verb, data in recipes.resolve(folder, form).items():
        configs.make(stages.module(verb).Config, data, source=folder)


def test_unknown_recipes_and_stages_are_named(eft) -> None:
    done = eft("run", "smoek")
    assert done.returncode == 2 and "did you mean 'smoke'?" in done.stderr and "Traceback" not in done.stderr
    done = eft("run", "smoke", "--until", "sfft")
    assert done.returncode == 2 and "did you mean 'sft'?" in done.stderr


def test_copy_then_list(eft, tmp_path: Path) -> None:
    assert eft("recipes", "copy", "smoke", tmp_path / "mine").returncode == 0
    assert (tmp_path / "mine" / "sft.yaml").exists()
    again = eft("recipes", "copy", "smoke", tmp_path / "mine")
    assert again.returncode == 2 and "exists already" in again.stderr
    assert "recipes/smoke" in eft("recipes", "list").stdout
    for name in ("smoke", "zero2.yaml"):
        under = eft("recipes", "copy", name, tmp_path / "mine" / "sft.yaml" / "x")
        assert under.returncode == 2 and "a file is in the way" in under.stderr and "Traceback" not in under.stderr


@pytest.mark.integration
def test_a_killed_recipe_leaves_no_stage_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "eft.cli", "run", "recipes/smollm2_135m", "--root", str(tmp_path), "--until", "collect"]
    recipe = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=REPOSITORY)
    deadline = time.monotonic() + 180
    while not (stages := psutil.Process(recipe.pid).children()) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1)
    recipe.kill()
    recipe.wait()
    assert stages and not psutil.wait_procs(stages, timeout=60)[1], "it searches for minutes"
