"""ShinkaEvolve and SkyDiscover for real, in environments of their own, through the gateway, against a scripted model.

What they leave on the disk is harvested and held against the gateway's journal: every reply of it, no more, no less.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from toy import CONFIG, EVALUATOR, PROGRAM, Clumsy

from data_tools import harvest
from eft.errors import EftError
from eft.mutators.gateway import Gateway, running
from eft.records import Transition, read_transitions
from eft.search import process, shinka
from eft.search.spec import SearchResult, SearchSpec

pytestmark = pytest.mark.integration
N = len(Clumsy.KINDS)
SKY_EVALUATOR = """import runpy

def evaluate(path):
    try:
        a, b, c = runpy.run_path(path)["run"]()
    except Exception as e:
        return {"combined_score": 0.0, "error": str(e)}
    return {"combined_score": 1 / (1 + (a - 7.3) ** 2 + (b - 1.7) ** 2 + (c - 0.4) ** 2)}
"""


def toy_task(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "initial_program.py").write_text(PROGRAM)
    (folder / "evaluator.py").write_text(EVALUATOR)
    (folder / "config.yaml").write_text(CONFIG)
    return folder


def sky_command(root: Path, python: Path, url: str) -> list[str]:
    """SkyDiscover's own command line, at a model behind `url`."""
    (root / "initial_program.py").write_text(PROGRAM)
    (root / "evaluator.py").write_text(SKY_EVALUATOR)
    model = {"name": "m", "api_base": url, "api_key": "none"}
    settings = {"checkpoint_interval": 4, "llm": {"models": [model], "retries": 0, "timeout": 60},
                "search": {"type": "topk"}, "diff_based_generation": True, "monitor": {"enabled": False},
                "evaluator": {"timeout": 20, "cascade_evaluation": False}}  # fmt: skip
    (root / "config.yaml").write_text(yaml.safe_dump(settings))
    return [str(python.with_name("skydiscover-run")), str(root / "initial_program.py"), str(root / "evaluator.py"),
            "-c", str(root / "config.yaml"), "-o", str(root / "sky"), "-i", "6", "-s", "topk"]  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory, scaffold_python) -> Iterator[tuple[Path, SearchSpec, SearchResult]]:
    """Both searches at once: (folder of all, spec and result of ShinkaEvolve's)."""
    scaffold_python("shinka")
    sky_python = scaffold_python("skydiscover")
    root = tmp_path_factory.mktemp("scaffolds")
    journal = root / "journal"
    task = toy_task(root / "toy")
    with running(Gateway(journal, {"clumsy": lambda search: Clumsy()})) as gateway:
        url = gateway.url("shinka_run", "clumsy")
        spec = SearchSpec(task=str(task), base_url=url, out=str(root / "shinka_run"), iterations=N, mutator="clumsy",
                          scaffold="shinka", journal=str(journal / "shinka_run.jsonl"))  # fmt: skip
        search = process.start(spec)
        (root / "sky_run").mkdir()
        command = sky_command(root / "sky_run", sky_python, gateway.url("sky", "clumsy"))
        env = {**os.environ, "NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}
        sky = subprocess.run(command, capture_output=True, text=True, timeout=600, env=env, cwd=root / "sky_run")
        result = process.wait(spec, search, 600)
    assert sky.returncode == 0, sky.stderr[-2000:]
    yield root, spec, result


def replies(journal: Path) -> list[dict]:
    return [r for line in journal.read_text().splitlines() if (r := json.loads(line))["kind"] == "reply"]


def harvested(run: Path, journal: Path, out: Path) -> tuple[list[Transition], dict, list[dict]]:
    """(rows, the search in the report, replies.parquet) of one run and its journal."""
    folder = harvest.run(harvest.Config(runs=[run, journal], output=out))
    rows = list(read_transitions(folder))
    table = pq.read_table(folder / "replies.parquet").to_pylist()
    return rows, json.loads((folder / "searches.json").read_text())[0], table


def test_shinka_is_a_scaffold_like_the_others(runs):
    _, spec, result = runs
    statuses = ["ok", "no_edit", "unmatched", "no_op", "ok", "no_edit", "invalid", "duplicate", "no_edit"]
    assert [c.status for c in result.candidates] == statuses
    assert (result.replies, result.valid_edits, result.distinct_valid_edits) == (N, 3, 2)
    assert (result.scaffold, result.prompt_format, result.iterations_done) == ("shinka", "shinka@0", N)
    assert result.best_score >= result.seed_score and result.best_code.startswith("# EVOLVE-BLOCK-START")
    assert all(c.parent_score is not None for c in result.candidates)


def test_harvest_of_shinka_agrees_with_the_journal(runs, tmp_path):
    _, spec, result = runs
    journal = Path(spec.journal)
    rows, search, table = harvested(spec.folder, journal, tmp_path / "h")
    asked, counts = replies(journal), search["counts"]
    assert len(asked) == len(table) == N and counts["iterations"] == N
    assert counts["children"] + counts["failed_iterations"] == N
    made = [c for c in result.candidates if c.status in ("ok", "no_op", "invalid", "duplicate")]
    assert len(rows) == counts["children"] == len(made) == Counter(r["outcome"] for r in table)["child"]
    assert {r.replay for r in rows} == {"match"} and {r.prompt_source for r in rows} == {"logged"}
    said = {(r["content"], r["messages"][-1]["content"]) for r in asked}
    assert all((r.response, r.prompt_user) in said for r in rows)
    assert {r.task for r in rows} == {"toys/toy"} and search["scaffold"] == "shinka"


def test_harvest_of_skydiscover_agrees_with_the_journal(runs, tmp_path):
    root, _, _ = runs
    journal = root / "journal" / "sky.jsonl"
    rows, search, table = harvested(root / "sky_run" / "sky", journal, tmp_path / "h")
    asked, counts = replies(journal), search["counts"]
    assert len(asked) == len(table) > counts["children"] > 0  # it asks again where a reply cannot be used
    assert counts["iterations"] == 6 == counts["children"] + counts["failed_iterations"]
    assert len(rows) == counts["children"] == Counter(r["outcome"] for r in table)["child"]
    assert {r.replay for r in rows} == {"match"} and {r.prompt_format for r in rows} == {"skydiscover@0"}
    said = {(r["content"], r["messages"][-1]["content"]) for r in asked}
    assert all((r.response, r.prompt_user) in said for r in rows)


def test_without_its_environment_it_is_said_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("EFT_SCAFFOLD_VENVS", str(tmp_path))
    monkeypatch.delenv(shinka.PYTHON, raising=False)
    with pytest.raises(EftError, match="environment is not there") as raised:
        shinka.interpreter()
    assert "make scaffold-env" in str(raised.value)


def test_a_program_without_markers_gets_them():
    assert shinka.marked("x = 1\n", "python") == "# EVOLVE-BLOCK-START\nx = 1\n# EVOLVE-BLOCK-END\n"
    assert shinka.marked("int x;", "cpp").startswith("// EVOLVE-BLOCK-START")
    assert shinka.marked(PROGRAM, "python") == PROGRAM


@pytest.mark.slow
def test_rewrites_and_a_run_that_was_killed(tmp_path, scaffold_python):
    """Killed in the middle and started again with its gateway: it comes to its end, answered replies come from the
    journal."""
    scaffold_python("shinka")
    spec = SearchSpec(task=str(toy_task(tmp_path / "toy")), base_url="", out=str(tmp_path / "again"), iterations=N,
                      mutator="clumsy", scaffold="shinka", edit="rewrite",
                      journal=str(tmp_path / "journal" / "again.jsonl"))  # fmt: skip
    for attempt in (1, 2):
        with running(Gateway(tmp_path / "journal", {"clumsy": lambda search: Clumsy()})) as gateway:
            search = process.start(spec.replace(base_url=gateway.url("again", "clumsy")))
            if attempt == 1:
                while not (tmp_path / "again" / "shinka" / "gen_4").is_dir() and search.poll() is None:
                    time.sleep(0.1)
                process.kill(search)
            else:
                result = process.wait(spec, search, 600)
            replayed = gateway.stats()["total"]["replayed"]
    assert replayed >= 3 and result.iterations_done == N
    assert [c.status for c in result.candidates][:3] == ["ok", "empty", "empty"]
    rows, found, _ = harvested(spec.folder, Path(spec.journal), tmp_path / "h")
    assert found["counts"]["children"] + found["counts"]["failed_iterations"] == N
    assert {r.replay for r in rows} == {"match"} and {r.edit_kind for r in rows} == {"rewrite"}
