"""Contained evaluations: bounds that hold for the whole tree of processes, what it may read, and what is left."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import pytest

from eft.records import Validity
from eft.tasks import contained, sandbox

pytestmark = pytest.mark.integration


@pytest.fixture(params=["bubblewrap", "rlimits", "none"])
def level(request):
    before = sandbox.level()
    if request.param == "bubblewrap" and sandbox.bubblewrap_fails():
        pytest.skip("bubblewrap does not work on this machine: the bubblewrap level was NOT tested")
    yield sandbox.choose(request.param)
    sandbox.choose(before)


@pytest.fixture
def run(tmp_path: Path):
    def evaluate(body: str, level: str, more: str = "", **options):
        folder = tmp_path / "a task {work}"  # names are not templates
        folder.mkdir(exist_ok=True)
        lines = "".join(f"    {line}\n" for line in body.splitlines())
        file = folder / "evaluator.py"
        file.write_text(f"import os, sys, time\n\ndef evaluate(path):\n{lines}\n{more}\n")
        return contained.run(file, "x = 1\n", suffix=".py", timeout_s=20.0, level=level, **options)

    return evaluate


def test_it_reads_its_program_and_its_folder(level, run, tmp_path):
    found = run("here = os.path.dirname(__file__)\nreturn {'combined_score': float(open(path).read() == 'x = 1\\n'),"
                " 'seen': len(os.listdir(here)), 'home': os.environ['HOME'] == os.getcwd()}", level)  # fmt: skip
    assert found.value["metrics"] == {"combined_score": 1.0, "seen": 1, "home": True}
    assert [p.name for p in tmp_path.iterdir()] == ["a task {work}"]
    assert [p.name for p in (tmp_path / "a task {work}").iterdir()] == ["evaluator.py"], "no cache of compiled files"


def test_memory_counts_as_a_sum(run):
    """Each child is within its own limit; together they are not."""
    body = (
        "import subprocess\nchild = 'x = bytearray(150 << 20); import time; time.sleep(20)'\n"
        "kept = [subprocess.Popen([sys.executable, '-c', child]) for _ in range(6)]\ntime.sleep(15)\nreturn {}"
    )
    for level in ("bubblewrap", "rlimits"):
        if level == "rlimits" or not sandbox.bubblewrap_fails():
            found = run(body, level, memory_mb=500)
            assert found.validity is Validity.ERROR and "more than 500 MB of memory" in found.error, found


def test_results_that_are_none(level, run):
    assert "without a result" in run("os._exit(0)", level).error
    assert "returned int, not a dict" in run("return 5", level).error
    assert "larger than 4096 KB" in run("return {'a': 'x' * (5 << 20)}", level).error
    assert "KeyError" in run("raise KeyError('gone')", level).error
    assert run("return {'combined_score': object()}", level).value["metrics"]["combined_score"].startswith("<object")
    assert "no evaluate" in run("pass", level, more="evaluate = 5").error


def test_artifacts_are_bounded(level, run):
    body = "class R: metrics, artifacts = {'combined_score': 1.0}, {'log': 'x' * (1 << 20), 'n': 3}\nreturn R()"
    found = run(body, level).value
    assert found["metrics"] == {"combined_score": 1.0} and found["artifacts"]["n"] == 3
    assert len(found["artifacts"]["log"]) == 1 << 16


def test_what_is_printed_is_kept_at_its_end(level, run):
    found = run("print('x' * (3 << 20))\nprint('the end')\nreturn {'combined_score': 1.0}", level)
    assert found.stderr.endswith("the end\n") and len(found.stderr) <= 2000 and found.value


def test_a_process_that_outlives_the_evaluation(level, run):
    """It left its group and its session, and holds the result descriptor open."""
    mark = f"left-{time.time_ns()}"
    body = (
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        f"        os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(60)', '{mark}'])\n"
        "    time.sleep(60)\nreturn {'combined_score': 1.0}"
    )
    started = time.monotonic()
    found = run(body, level)
    assert found.value["metrics"] == {"combined_score": 1.0} and time.monotonic() - started < 40
    until = time.monotonic() + 15
    while left := [p for p in psutil.process_iter(["cmdline"]) if mark in (p.info["cmdline"] or [])]:
        assert time.monotonic() < until, left
        time.sleep(0.05)


def test_more_can_be_shown(run, tmp_path, monkeypatch):
    if sandbox.bubblewrap_fails():
        pytest.skip("bubblewrap does not work on this machine: NOT tested")
    table = tmp_path / "elsewhere" / "table.csv"
    table.parent.mkdir()
    table.write_text("1")
    body = f"return {{'combined_score': float(os.path.exists({str(table)!r}))}}"
    assert run(body, "bubblewrap").value["metrics"]["combined_score"] == 0.0
    monkeypatch.setenv("EFT_SANDBOX_READ", f"{table.parent}:/no/such/folder")
    assert run(body, "bubblewrap").value["metrics"]["combined_score"] == 1.0
    assert run(f"open({str(table)!r}, 'w')\nreturn {{}}", "bubblewrap").validity is Validity.ERROR


def test_the_environment_is_clean(level, run, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    found = run("return {'combined_score': 1.0, 'names': sorted(os.environ)}", level)
    assert set(found.value["metrics"]["names"]) <= {
        "HOME", "LANG", "LC_CTYPE", "OMP_NUM_THREADS", "PATH", "PWD", "PYTHONHASHSEED", "TMPDIR", "USER"}  # fmt: skip
    assert "OPENAI_API_KEY" in os.environ
