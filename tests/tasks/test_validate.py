"""`eft tasks …`: what is right, what each unfit task is told, and the exit codes."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from eft.mutators.validate import propose
from eft.tasks.task import find_task, load_task
from eft.tasks.validate import change_number, validate

EXAMPLE = Path(__file__).parent / "function_minimization"
CONFIG = """task:
  raw_metric: worth
  best_known: 10.0
  best_known_source: ours
  seed_raw: 1.0
  seed_score: 1.0
  isolation: isolated
"""
EVALUATOR = """from eft.tasks import scoring

def score(value):
    worth = scoring.number(value, "the value", 0.0, 10.0)
    return {"combined_score": worth, "worth": worth}

def evaluate(program_path):
    return scoring.evaluate(program_path, score=score)
"""
SEED = "# EVOLVE-BLOCK-START\nGAIN = 1.0\n\n\ndef run():\n    return GAIN\n# EVOLVE-BLOCK-END\n"


@pytest.fixture
def make(tmp_path: Path):
    def folder(evaluator: str = EVALUATOR, config: str = CONFIG, seed: str = SEED) -> Path:
        where = tmp_path / "task"
        where.mkdir(exist_ok=True)
        (where / "evaluator.py").write_text(evaluator)
        (where / "config.yaml").write_text(config)
        (where / "initial_program.py").write_text(seed)
        return where

    return folder


def failed(folder: Path, **options) -> dict[str, str]:
    report = validate(load_task(folder), propose, attack=False, mutations=20, **options)
    assert report.ok == (not [c for c in report.checks if c.ok is False])
    return {c.name: c.text for c in report.checks if c.ok is False}


def test_a_fit_task(make):
    report = validate(load_task(make()), propose, ends=False, mutations=20)
    assert report.ok, report
    assert report.noise == 0.0 and report.seed_score == 1.0 and report.best_mutant > 1.0
    attacks = next(c for c in report.checks if c.name == "attacks")
    assert int(attacks.text.split()[0]) >= 100


UNFIT = {
    "invalid seed": ({"seed": "def run():\n    return 'x'\n"}, "runs", "not valid"),
    "zero": ({"seed": SEED.replace("1.0", "0.0")}, "runs", "score is 0"),
    "stated": ({"config": CONFIG.replace("seed_raw: 1.0", "seed_raw: 2.0")}, "stated", "seed_raw says 2, measured 1.0"),
    "at its best": ({"config": CONFIG.replace("10.0", "1.0")}, "room", "at the best known value"),
    "no source": ({"config": CONFIG.replace("  best_known_source: ours\n", "")}, "room", "best_known_source"),
    "slow": ({"config": CONFIG + "  timeout_s: 0.001\n"}, "quick", "limit 0.001"),
    "random": ({"evaluator": "import random\n" + EVALUATOR.replace('": worth,', '": worth + random.random(),')},
               "stable", "must be deterministic"),
    "deaf": ({"evaluator": EVALUATOR.replace('": worth,', '": 1.0,')}, "moves", "0 improve"),
    "the same instances": (
        {"evaluator": EVALUATOR.replace("(program_path)", "(program_path, hidden=False)", 1)}, "hidden", "the same?"),
    "hidden not valid": (
        {"evaluator": EVALUATOR.replace("def evaluate(program_path):", "def evaluate(program_path, hidden=False):\n"
                                        "    if hidden: raise KeyError('h')")}, "hidden", "not valid there"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNFIT)
def test_unfit_tasks_are_told_why(make, name):
    options, check, words = UNFIT[name]
    told = failed(make(**options))
    assert words in told.get(check, ""), told


def test_a_gullible_scorer_is_found(make):
    """It believes what the program says, breaks on odd data, and hands the program's own score on."""
    gullible = EVALUATOR.replace('scoring.number(value, "the value", 0.0, 10.0)', "float(value)")
    report = validate(load_task(make(evaluator=gullible)), propose, ends=False, mutations=0)
    text = next(c.text for c in report.checks if c.name == "attacks" and c.ok is False)
    assert "got through" in text and ("scorer broke" in text or "better than the best known" in text)


def test_numbers_are_changed_in_any_language():
    code = "#include <x86.h>\n// EVOLVE-BLOCK-START\nint a = 10; double b = 0.5; int v2 = a;\n"
    code += "// EVOLVE-BLOCK-END\nint c = 7;\n"
    rng = random.Random(0)
    children = {change_number(code, rng) for _ in range(60)}
    assert len(children) > 5
    for child in children:
        assert child.startswith("#include <x86.h>") and child.endswith("int c = 7;\n") and "v2 = a" in child
    assert change_number("no digits", rng) is None


@pytest.mark.integration
def test_openevolves_example_runs_contained_and_unchanged(tmp_path):
    """A folder as OpenEvolve's documentation has it: no `task:` block, evaluator and program in one process."""
    shutil.copytree(EXAMPLE, tmp_path / "example")
    report = validate(load_task(tmp_path / "example"), propose, repeats=2, mutations=2, attack=False)
    told = {c.name: c for c in report.checks}
    assert report.isolation == "contained" and told["runs"].ok and told["quick"].ok
    assert told["stable"].text.startswith("noise floor")
    assert sorted(p.name for p in (tmp_path / "example").iterdir()) == [
        "config.yaml", "evaluator.py", "initial_program.py"]  # fmt: skip


@pytest.mark.integration
def test_the_verbs(eft, make, tmp_path):
    good = make()
    done = eft("tasks", "validate", good, "--no-attacks", "--mutations", "10", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["tasks"][0]["ok"] and "bubblewrap" in result["sandbox"] or "rlimits" in result["sandbox"]
    (good / "initial_program.py").write_text("def run():\n    return None\n")
    done = eft("tasks", "validate", good, tmp_path / "nowhere", "--no-attacks")
    assert done.returncode == 2 and "Traceback" not in done.stderr  # a folder that is not there is a wrong request
    done = eft("tasks", "validate", good, "--no-attacks", "--json")
    assert done.returncode == 1 and "FAILED" in done.stdout
    assert json.loads(done.stdout.splitlines()[-1])["tasks"][0]["ok"] is False
    (good / "config.yaml").write_text("task: [\n")
    done = eft("tasks", "validate", good, "--no-attacks")
    assert done.returncode == 1 and "not valid YAML" in done.stdout and "Traceback" not in done.stderr

    done = eft("tasks", "show", "knapsack", "--json")
    assert done.returncode == 0 and json.loads(done.stdout.splitlines()[-1])["seed"] == find_task("knapsack").seed()
    done = eft("tasks", "run", "knapsack", "--hidden", "--sandbox", "rlimits", "--json")
    result = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0 and result["hidden"] and result["sandbox"].startswith("rlimits")
    (tmp_path / "bad.py").write_bytes(b"\xff\xfe")
    done = eft("tasks", "run", "knapsack", tmp_path / "bad.py")
    assert done.returncode == 1 and "not UTF-8" in done.stderr and "Traceback" not in done.stderr
    (tmp_path / "bad.py").write_text("def rank(*a):\n    return 1 / 0\n")
    done = eft("tasks", "run", "knapsack", tmp_path / "bad.py")
    assert done.returncode == 1 and "ZeroDivisionError" in done.stdout
    done = eft("tasks", "lst")
    assert done.returncode == 2 and "did you mean 'list'?" in done.stderr


def test_a_link_out_of_a_task_folder_is_refused(make, tmp_path):
    from eft.errors import EftError

    (tmp_path / "secret").write_text("key")
    folder = make()
    (folder / "notes").symlink_to("evaluator.py")  # inside: fine
    load_task(folder)
    (folder / "data").mkdir()
    (folder / "data" / "table.csv").symlink_to(tmp_path / "secret")
    with pytest.raises(EftError, match="a link out of it"):
        load_task(folder)
