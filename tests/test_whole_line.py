"""The smoke recipe, whole: every stage for real, from a teacher's searches to the report; then again, all up to date."""

from __future__ import annotations

import json
import os
import time

import pytest

from eft import manifest
from eft.errors import EftError

STAGES = ["collect", "harvest", "label", "clean", "build", "sft", "kto", "export", "evaluate", "report"]


@pytest.fixture(scope="module")
def line(eft, tmp_path_factory: pytest.TempPathFactory):
    """(root, finished process) of one run of the smoke recipe."""
    from eft.mutators import engine

    try:
        engine.python()
    except EftError as e:
        if os.environ.get("CI"):
            pytest.fail(f"the serving environment is needed in CI: {e}")
        pytest.skip(f"the whole line was NOT run: {e}")
    root = tmp_path_factory.mktemp("smoke")
    return root, eft("run", "smoke", "--root", root, "--json", timeout=3300)


@pytest.mark.integration
@pytest.mark.serve
@pytest.mark.timeout(3600)
def test_the_smoke_recipe_runs_whole(line) -> None:
    root, done = line
    assert done.returncode == 0, done.stderr[-4000:]
    assert list(json.loads(done.stdout.splitlines()[-1])["seconds"]) == STAGES
    collected, harvested = manifest.read(root / "runs"), manifest.read(root / "harvest")
    assert harvested["counts"]["transitions"] >= collected["counts"]["replies"], "a lookahead teacher logs more than it answers"
    assert manifest.read(root / "label")["counts"]["transitions"] == harvested["counts"]["transitions"]
    cleaned = manifest.read(root / "clean")["counts"]
    assert cleaned["kept"] + cleaned["dropped"] == harvested["counts"]["transitions"], "every row stays or has a reason"
    losses = [json.loads(row)["loss"] for row in (root / "sft" / "losses.jsonl").read_text().splitlines() if '"loss"' in row]
    assert losses[-1] < losses[0], "eight steps on a random model lower the loss"
    results = json.loads((root / "evaluate" / "results.json").read_text())
    assert results and manifest.read(root / "evaluate")["counts"]["searches"] == 15, "six of programs, three of merges, six of policies"
    html = (root / "report.html").read_text()
    assert "kto" in html and "ast" in html and "https://" not in html.replace("https://arxiv.org", "")


@pytest.mark.integration
@pytest.mark.serve
def test_a_second_run_does_nothing(eft, line) -> None:
    root, first = line
    assert first.returncode == 0
    before = {p: p.stat().st_mtime_ns for p in root.rglob("manifest.json")}
    started = time.time()
    done = eft("run", "smoke", "--root", root)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr.count("up to date") == len(STAGES), f"{time.time() - started:.0f} s\n{done.stderr}"
    assert {p: p.stat().st_mtime_ns for p in root.rglob("manifest.json")} == before
