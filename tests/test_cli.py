"""The command line: verbs in the pipeline's order, dry runs, one JSON line, exit codes, no tracebacks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from eft import cli, stages


def test_every_stage_is_a_verb_in_the_same_order() -> None:
    assert list(cli.VERBS) == list(stages.STAGES)
    assert {verb: path for verb, (path, _) in cli.VERBS.items()} == stages.STAGES


def test_help_lists_the_pipeline(eft) -> None:
    done = eft("--help")
    places = [done.stdout.index(f"  {verb} ") for verb in stages.STAGES]
    assert done.returncode == 0 and places == sorted(places)


@pytest.mark.parametrize("verb", [*stages.STAGES, "run", "gateway"])
def test_every_verb_explains_itself(eft, verb: str) -> None:
    done = eft(verb, "--help")
    assert done.returncode == 0 and "--dry-run" in done.stdout and "--set" in done.stdout, done.stderr


def test_a_dry_run_prints_and_writes_the_resolved_config_and_nothing_else(eft, tmp_path: Path) -> None:
    out = tmp_path / "l"
    done = eft("label", tmp_path / "absent", "-o", out, "--set", "eps=0.5", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "eps: 0.5" in done.stdout and [f.name for f in out.iterdir()] == ["config.yaml"]
    again = eft("label", "--config", out / "config.yaml", "--dry-run", "--json")
    assert json.loads(again.stdout.splitlines()[-1])["config"]["eps"] == 0.5


@pytest.mark.parametrize(
    "args, code, words",
    [
        (("harvets",), 2, "did you mean 'harvest'?"),
        (("label", "x", "-o", "y", "--set", "epss=1"), 2, "did you mean 'eps'?"),
        (("label", "x", "-o", "y", "--config", "no.yaml"), 2, "does not exist"),
        (("label", "--epss", "1"), 2, "No such option"),
        (("label", "absent", "-o", "y"), 1, "harvest"),
        (("harvest", "absent", "-o", "y"), 1, "absent"),
    ],
)
def test_bad_requests_are_one_message(eft, tmp_path: Path, args: tuple, code: int, words: str) -> None:
    done = eft(*args, cwd=tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert words in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("args", [("tasks",), ("tasks", "list", "--json"), ("recipes", "list")])
def test_a_full_disk_behind_standard_output(args: tuple) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "eft.cli", *args]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and done.stderr.startswith("error: the disk is full") and "Exception" not in done.stderr
