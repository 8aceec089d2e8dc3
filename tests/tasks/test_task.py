"""Reading task folders and suites: what is right, and what each mistake is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eft.errors import EftError, UsageError
from eft.tasks.suite import ROLES, load_suite, table
from eft.tasks.task import find_task, gap_closed, load_task, shipped


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "evaluator.py").write_text("def evaluate(program_path):\n    return {'combined_score': 1.0}\n")
    (tmp_path / "initial_program.py").write_text("x = 1\n")
    return tmp_path


def test_a_plain_openevolve_folder_is_a_contained_task(folder):
    task = load_task(folder)
    assert (task.isolation, task.language, task.raw_metric, task.best_known) == (
        "contained",
        "python",
        "combined_score",
        None,
    )
    assert task.name == folder.name and task.seed() == "x = 1\n"


def test_the_block_is_read(folder):
    (folder / "config.yaml").write_text(
        "max_iterations: 5\nprompt:\n  system_message: Do it.\ntask:\n  domain: d\n  raw_metric: cost\n"
        "  direction: min\n  best_known: 2\n  seed_raw: 4\n  seed_score: 0.5\n"
    )
    task = load_task(folder)
    assert (task.domain, task.direction, task.system_message) == ("d", "min", "Do it.")
    assert gap_closed(task, 4.0) == 0 and gap_closed(task, 3.0) == 0.5 and gap_closed(task, 1.0) == 1.5
    assert gap_closed(task, None) is None and gap_closed(task, float("nan")) is None


def test_hidden_values_have_a_scale_of_their_own(folder):
    block = "task:\n  raw_metric: cost\n  direction: min\n  best_known: 2\n  seed_raw: 4\n"
    (folder / "config.yaml").write_text(block)
    assert gap_closed(load_task(folder), 3.0, hidden=True) == 0.5, "without values of their own: the same scale"
    (folder / "config.yaml").write_text(block + "  hidden_seed_raw: 8\n  hidden_best_known: 4\n")
    assert gap_closed(load_task(folder), 5.0, hidden=True) == 0.75
    assert gap_closed(load_task(folder), 3.0) == 0.5


MISTAKES = {
    "no such": (lambda f: None, "no such task folder"),
    "evaluator": (lambda f: (f / "evaluator.py").unlink(), "has no evaluator"),
    "program": (lambda f: (f / "initial_program.py").unlink(), "has no initial program"),
    "two programs": (lambda f: (f / "initial_program.cpp").write_text("int x;"), "more than one initial program"),
    "yaml": (lambda f: (f / "config.yaml").write_text("a: [1\n"), "not valid YAML"),
    "list": (lambda f: (f / "config.yaml").write_text("- 1\n"), "must hold a mapping"),
    "block": (lambda f: (f / "config.yaml").write_text("task: 3\n"), "must be a mapping"),
    "key": (lambda f: (f / "config.yaml").write_text("task:\n  domian: x\n"), "did you mean 'domain'"),
    "value": (lambda f: (f / "config.yaml").write_text("task:\n  direction: up\n"), "direction"),
    "best": (lambda f: (f / "config.yaml").write_text("task:\n  best_known: .nan\n"), "finite"),
    "utf8": (lambda f: (f / "config.yaml").write_bytes(b"\xff\xfe\x00a"), "config"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named(folder, name):
    spoil, message = MISTAKES[name]
    spoil(folder)
    with pytest.raises(EftError, match=message):
        load_task(folder / "nowhere" if name == "no such" else folder)


def test_find_task(folder):
    name = next(iter(shipped()))
    assert find_task(name) is find_task(name)
    assert find_task(name.split("/")[1]).name == name
    assert find_task(folder).folder == folder.resolve()
    with pytest.raises(UsageError, match="did you mean 'heuristics/knapsack'"):
        find_task("heuristics/knapsak")
    (folder / "initial_program.py").write_bytes(b"\xff\xff")
    with pytest.raises(EftError, match="not UTF-8"):
        load_task(folder).seed()


def test_the_embedded_suite():
    suite = load_suite("embedded")
    assert len(suite.train) >= 8 and len({find_task(t).domain for t in suite.train}) >= 3
    assert len(suite.heldout) >= 4 and suite.validation
    families = [{find_task(t).family for t in getattr(suite, role)} for role in ROLES]
    assert sum(map(len, families)) == len(set().union(*families)), "a family crosses roles"
    assert set(shipped()) >= {t for role in ROLES for t in getattr(suite, role)}
    assert suite.role(suite.heldout[0]) == "heldout" and suite.role("nothing") == ""


SUITE_MISTAKES = {
    "two roles": ("train: [heuristics/knapsack]\nheldout: [heuristics/knapsack]\n", "serves two roles"),
    "twice": ("train: [heuristics/knapsack, knapsack]\n", "twice"),
    "role": ("trian: [heuristics/knapsack]\n", "did you mean 'train'"),
    "task": ("train: [heuristics/knapsak]\n", "did you mean 'heuristics/knapsack'"),
    "no list": ("train: heuristics/knapsack\n", "must be a list"),
}


@pytest.mark.parametrize("name", SUITE_MISTAKES)
def test_mistakes_in_suites_are_named(tmp_path, name):
    text, message = SUITE_MISTAKES[name]
    file = tmp_path / "suite.yaml"
    file.write_text(text)
    with pytest.raises(UsageError, match=message):
        load_suite(file)


def test_a_suite_refuses_a_family_in_two_roles(tmp_path, folder):
    (folder / "config.yaml").write_text("task:\n  family: knapsack\n")
    file = tmp_path / "suite.yaml"
    file.write_text(f"train: [heuristics/knapsack]\nheldout: [{folder}]\n")
    with pytest.raises(UsageError, match="of the same family, 'knapsack'"):
        load_suite(file)
    with pytest.raises(UsageError, match="did you mean 'embedded'"):
        load_suite("embeded")


def test_table():
    rows = [{"a": None, "b": 1.23456789}, {"a": "xyz", "b": 2}]
    assert table(("a", "b"), rows) == "a    b\n-    1.23457\nxyz  2"


@pytest.mark.integration
def test_eft_tasks(eft):
    done = eft("tasks", "list", "--role", "heldout", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert {row["role"] for row in result["tasks"]} == {"heldout"}
    assert "combined_score" not in done.stdout.splitlines()[0] and "kernel filter" in done.stdout
    wrong = eft("tasks", "list", "--role", "heldoud")
    assert wrong.returncode == 2 and "did you mean 'heldout'" in wrong.stderr and "Traceback" not in wrong.stderr
