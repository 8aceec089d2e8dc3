"""Tasks of others from a user's checkout, on checkouts of the families' layouts that are written here."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from eft.errors import EftError, UsageError
from eft.tasks import import_contest, importers
from eft.tasks.evaluate import evaluate
from eft.tasks.suite import load_suite
from eft.tasks.task import load_task

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="C++ IMPORTS WERE NOT TESTED: g++ is missing")
SQUARE = """// EVOLVE-BLOCK-START
#include <cstdio>
int main() { int n; if (scanf("%d", &n) == 1) printf("%d\\n", n * n - 1); }
// EVOLVE-BLOCK-END
"""


def bring(family: str, source: Path, out: Path, **options) -> list[dict]:
    return importers.run(importers.Config(source=[family, str(source)], output=out, **options))["tasks"]


@pytest.fixture
def openevolve(tmp_path):
    folder = tmp_path / "examples" / "circle_packing"
    folder.mkdir(parents=True)
    (folder / "initial_program.py").write_text("# EVOLVE-BLOCK-START\nX = 0.5\n# EVOLVE-BLOCK-END\n")
    (folder / "evaluator.py").write_text(
        "import runpy\ndef evaluate(path):\n    x = runpy.run_path(path)['X']\n"
        "    return {'combined_score': x, 'sum_radii': 2 * x}\n"
    )
    (folder / "config_phase_1.yaml").write_text("max_iterations: 7\nprompt:\n  system_message: pack\n")
    return tmp_path / "examples"


def test_openevolve_folders_keep_their_files_and_gain_a_card(openevolve, tmp_path):
    (done,) = bring("openevolve", openevolve, tmp_path / "out")
    task = load_task(done["folder"])
    assert task.name == "circle_packing_26" and task.isolation == "contained" and task.system_message == "pack"
    assert (task.seed_score, task.seed_raw, task.best_known) == (0.5, 1.0, 2.63598308)
    assert task.best_known_source.startswith("published")
    with pytest.raises(EftError, match="there already"):
        bring("openevolve", openevolve, tmp_path / "out")
    (openevolve / "circle_packing" / "link").symlink_to("/etc")
    with pytest.raises(EftError, match="link out"):
        bring("openevolve", openevolve, tmp_path / "other")


def test_skydiscover_keeps_its_evaluator_in_a_folder(openevolve, tmp_path):
    folder = openevolve / "circle_packing"
    (folder / "evaluator").mkdir()
    (folder / "evaluator.py").rename(folder / "evaluator" / "evaluator.py")
    (done,) = bring("openevolve", folder, tmp_path / "out", name="mine")
    assert done["task"] == "mine" and done["seed_score"] == 0.5


ALGOTUNE = '''import random

from AlgoTuneTasks.base import Task, register_task


@register_task("total")
class Total(Task):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.start = 0

    def generate_problem(self, n, random_seed=1):
        rng = random.Random(random_seed)
        return [rng.randrange(9) for _ in range(n)]

    def solve(self, problem):
        total = self.start
        for number in problem:
            total += number
        return total

    def is_solution(self, problem, solution):
        return solution == sum(problem)
'''


def test_algotune_measures_the_speed_up_and_checks(tmp_path):
    folder = tmp_path / "AlgoTuneTasks" / "total"
    folder.mkdir(parents=True)
    (folder / "total.py").write_text(ALGOTUNE)
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "generation.json").write_text('{"total": {"n": 500000}}')
    (done,) = bring("algotune", tmp_path, tmp_path / "out", task=["total"])
    task = load_task(done["folder"])
    seed = task.seed()
    assert "generate_problem" not in seed and "is_solution" not in seed and "AlgoTuneTasks" not in seed
    assert seed.count("EVOLVE-BLOCK") == 2 and task.isolation == "contained" and 0.2 < done["seed_score"] < 5
    assert evaluate(task, "def solve(problem):\n    return sum(problem)\n").score > 1
    wrong = evaluate(task, "def solve(problem):\n    return 7\n")
    assert wrong.score is None and "refused" in wrong.metrics["error"]
    with pytest.raises(UsageError, match="no task 'totl'"):
        bring("algotune", tmp_path, tmp_path / "out", task=["totl"])
    with pytest.raises(UsageError, match="no checkout"):
        bring("algotune", tmp_path / "out", tmp_path / "out")


CHECKER = """#include <cstdio>
int main(int, char **v) {
    int n, m = 0;
    FILE *in = fopen(v[1], "r"), *out = fopen(v[2], "r");
    if (fscanf(in, "%d", &n) != 1 || fscanf(out, "%d", &m) != 1) { fprintf(stderr, "wrong format"); return 2; }
    fprintf(stderr, "points Ratio: %.3f (of %d)\\n", double(m) / (n * n), n * n);
    return 7;
}
"""


@pytest.fixture
def frontier(tmp_path):
    for number, kind in (("7", "default"), ("8", "interactive")):
        folder = tmp_path / "algorithmic" / "problems" / number
        (folder / "testdata").mkdir(parents=True)
        (folder / "config.yaml").write_text(f"type: {kind}\nchecker: chk.cc\ntime: 500ms\nmemory: 256m\n")
        (folder / "statement.txt").write_text("Square the number.")
        (folder / "chk.cc").write_text(CHECKER)
        for n in range(1, 9):
            (folder / "testdata" / f"{n}.in").write_text(f"{n + 1}\n")
    (tmp_path / "square.cpp").write_text(SQUARE)
    return tmp_path


@needs_compiler
def test_frontier_cs_problems_are_isolated_with_hidden_inputs(frontier, tmp_path):
    (done,) = bring("frontier-cs", frontier, tmp_path / "out", task=["7"], seed=str(tmp_path / "square.cpp"))
    task = load_task(done["folder"])
    settings = json.loads((task.folder / "contest.json").read_text())
    assert (settings["time_s"], settings["memory_mb"]) == (0.5, 256)
    assert len(settings["search"]) == len(settings["hidden"]) == 4
    assert task.isolation == "isolated" and task.has_hidden and task.language == "cpp"
    assert "Square the number." in task.system_message
    ratios = [1 - 1 / (n + 1) ** 2 for n in range(1, 9)]
    assert done["seed_score"] == pytest.approx(sum(ratios[:4]) / 4, abs=1e-3) == task.seed_raw
    assert evaluate(task, task.seed(), hidden=True).raw == pytest.approx(sum(ratios[4:]) / 4, abs=1e-3)
    silent = evaluate(task, import_contest.EMPTY)
    assert silent.score is None and "no point" in silent.metrics["error"]
    with pytest.raises(EftError, match="interactive"):
        import_contest.frontier_cs(frontier, importers.Config(task=["8"]))
    with pytest.raises(UsageError, match="none of the paper's problems"):
        import_contest.frontier_cs(frontier, importers.Config())


@needs_compiler
@pytest.mark.parametrize("direction", ["max", "min"])
def test_contest_tools(tmp_path, direction):
    tools = tmp_path / "tools"
    (tools / "in").mkdir(parents=True)
    for n in range(4):
        (tools / "in" / f"{n:04}.txt").write_text(f"{n + 1}\n")
    with pytest.raises(UsageError, match="scorer was not found"):
        bring("ahc", tools, tmp_path / "out")
    scorer = tools / "score"
    scorer.write_text('#!/bin/sh\nread x < "$2" || { echo "no output" >&2; exit 1; }\necho "Score = 1,$x"\n')
    scorer.chmod(0o755)
    (tmp_path / "s.cpp").write_text(SQUARE.replace("n * n - 1", "n * 100"))
    options = {"name": "ahc999", "scorer": str(scorer), "cases": 2, "direction": direction}
    (done,) = bring("ahc", tools, tmp_path / "out", seed=str(tmp_path / "s.cpp"), **options)
    task = load_task(done["folder"])
    assert task.name == "ahc/ahc999" and task.direction == direction
    assert evaluate(task, task.seed()).raw == 1150 and evaluate(task, task.seed(), hidden=True).raw == 1350
    assert "no output" in evaluate(task, import_contest.EMPTY).metrics["error"]


def test_the_router_hides_half_of_the_prompts(tmp_path):
    from eft.tasks.import_router import TIERS

    models = list(TIERS.values())
    columns = ["sample_id", "prompt", "eval_name", *models, *(f"{m}|total_cost" for m in models)]
    lines = [",".join(columns)]
    for n in range(40):  # every fourth is hard
        hard = n % 4 == 0
        right = "0.0,0.0,1.0" if hard else "1.0,1.0,1.0"
        lines.append(f"s{n},{'long ' * 300 if hard else 'short'},easy,{right},0.0001,0.0002,0.003")
    (tmp_path / "table.csv").write_text("\n".join(lines) + "\n")
    (done,) = bring("llm-router", tmp_path / "table.csv", tmp_path / "out")
    task = load_task(done["folder"])
    best = "def route(prompt, eval_name):\n    return 'expensive' if len(prompt) > 900 else 'cheap'\n"
    assert [evaluate(task, best, hidden=h).raw for h in (False, True)] == pytest.approx([100, 100])
    assert task.seed_raw < 100 and evaluate(task, best.replace("cheap", "free")).score is None
    assert evaluate(task, best.replace("cheap", "expensive")).score > 0, "worse than nothing is still a score"
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(EftError, match="no column 'sample_id'"):
        bring("llm-router", tmp_path / "other.csv", tmp_path / "o")


def test_usage(tmp_path):
    with pytest.raises(UsageError, match="no family 'algotone'"):
        bring("algotone", tmp_path, tmp_path / "out")
    with pytest.raises(UsageError, match="nothing to import"):
        bring("ahc", tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(UsageError, match="no task in OpenEvolve's format"):
        bring("openevolve", tmp_path, tmp_path / "out")


def test_a_suite_says_what_is_missing(tmp_path, monkeypatch, openevolve):
    monkeypatch.setenv("EFT_TASKS", str(tmp_path / "mine"))
    suite = load_suite("finch")
    assert len(suite.missing) == 22 and {m.role for m in suite.missing} == {"heldout"}
    assert all(m.how.startswith("eft tasks import ") for m in suite.missing)
    bring("openevolve", openevolve, tmp_path / "mine")
    again = load_suite("finch")
    assert len(again.missing) == 21 and str(tmp_path / "mine" / "circle_packing_26") in again.heldout
    file = tmp_path / "suite.yaml"
    file.write_text("external:\n  - {role: heldout, task: x}\n")
    with pytest.raises(UsageError, match="role, task, how"):
        load_suite(file)
