"""`eft evaluate` on a real vLLM server, killed at random moments: budgets exact, nothing paid twice, nothing lost."""

from __future__ import annotations

import dataclasses
import json
import random
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from eft.evaluate import results as tables
from eft.evaluate import run as evaluate
from eft.evaluate.settings import Config
from eft.search.spec import RESULT, SearchResult

pytestmark = [pytest.mark.integration, pytest.mark.serve]
TASKS = ["control/pid", "routing/tsp_insertion"]


def options(root: Path, mutators: dict[str, Any], iterations: int, scaffolds: list[str]) -> dict[str, Any]:
    # Rewrites: whatever a random model says is a program then, and is evaluated.
    return {"root": str(root), "iterations": iterations, "seeds": 1, "prompt_format": "eft@1", "edit": "rewrite",
            "tasks": TASKS, "workers": 2 * len(scaffolds), "max_tokens": 24, "scaffold": scaffolds,
            "mutators": mutators}  # fmt: skip


def generated(base_url: str) -> float:
    """Tokens that the server has generated since it started."""
    with urllib.request.urlopen(f"{base_url.removesuffix('/v1')}/metrics", timeout=60) as answer:
        return sum(map(float, re.findall(r"^vllm:generation_tokens_total\{.*\} (\S+)$", answer.read().decode(), re.M)))


def replies(out: Path) -> list[dict[str, Any]]:
    """The journals' replies. Whole lines only: a kill may come in the middle of one."""
    lines = [x for f in out.glob("journal/*.jsonl") for x in f.read_bytes().split(b"\n")[:-1]]
    return [r for r in map(json.loads, lines) if r["kind"] == "reply" and r["status"] == "ok"]


def evaluations(out: Path) -> list[str]:
    """What was evaluated, by search and program."""
    files = sorted(out.glob("*/*/*/evaluations.jsonl"))
    return [f"{f.parent} {json.loads(x)['key']}" for f in files for x in f.read_bytes().split(b"\n")[:-1]]


def outcome(out: Path) -> list[dict[str, Any]]:
    """All results without names, times and token counts."""
    found = []
    for file in sorted(out.glob(f"*/*/*/{RESULT}")):
        r = dataclasses.asdict(SearchResult.load(file))
        for key in ("seconds", "name", "spec", "mutator", "model", "prompt_tokens", "completion_tokens"):
            r.pop(key)
        for c in r["candidates"]:
            for key in ("seconds", "prompt_tokens", "completion_tokens", "finish_reason"):
                c.pop(key)
        found.append(r)
    return found


def killed(config: Path, out: Path, total: int, kills: int, rng: random.Random) -> tuple[list[Path], int]:
    """Kill the command at random points of its progress, then let it end. (Results that stood at kills, kills done)."""
    command = [sys.executable, "-m", "eft.cli", "evaluate", "--config", config]
    stood, done = [], 0
    for at in sorted(rng.sample(range(1, total), kills)):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
        while process.poll() is None and len(replies(out)) < at:
            time.sleep(0.01)
        time.sleep(rng.uniform(0.0, 0.1))
        stood += [(f, f.stat().st_mtime_ns) for f in out.glob(f"*/*/*/{RESULT}")]
        done += process.poll() is None
        process.kill()  # that process alone: what it started must see to itself
        process.wait()
        time.sleep(0.3)
    last = subprocess.run(command, capture_output=True, text=True)
    assert last.returncode == 0, last.stderr
    return stood, done


def check(vllm: Any, tmp_path: Path, kills: int, iterations: int, scaffolds: list[str]) -> None:
    served = {"served": {"model": vllm.name, "base_url": vllm.base_url}}
    config = tmp_path / "e.yaml"
    config.write_text(yaml.safe_dump(options(tmp_path / "shot", served, iterations, scaffolds)))
    out, searches = tmp_path / "shot" / "evaluate", len(TASKS) * len(scaffolds)
    before = generated(vllm.base_url)
    stood, done = killed(config, out, searches * iterations, kills, random.Random(kills))
    assert done >= 1, "no kill hit a running evaluation"

    # Budgets are exact, and every reply was asked for and paid for once. On top comes what was under way at a kill:
    # at most one request of each search, given up half-way.
    found = replies(out)
    assert len(found) == searches * iterations
    assert len({(r["search"], r["key"], r["choice"]) for r in found}) == len(found)
    journaled = sum((r["usage"] or {}).get("completion_tokens", 0) for r in found)
    lost = generated(vllm.base_url) - before - journaled
    assert 0 <= lost <= done * searches * 24 * max(r["n"] for r in found)
    results = tables.load(out)
    assert [s.status for s in results.searches] == ["done"] * searches
    assert all(s.proposals == iterations for s in results.searches)
    # No finished candidate is lost: results that stood are untouched, and nothing was evaluated twice.
    assert all(file.stat().st_mtime_ns == written for file, written in stood)
    assert len(set(evaluations(out))) == len(evaluations(out)) > searches

    # The same replies, undisturbed: bit-equal.
    again = {"again": {"kind": "replay", "journal": str(out / "journal"), "of": "served"}}
    calm = evaluate.run(Config(**options(tmp_path / "calm", again, iterations, scaffolds)))
    assert outcome(calm) == outcome(out) and len(outcome(out)) == searches


def test_killed_twice(vllm, tmp_path: Path) -> None:
    check(vllm, tmp_path, kills=2, iterations=12, scaffolds=["tournament"])


@pytest.mark.slow
def test_killed_ten_times(vllm, tmp_path: Path) -> None:
    check(vllm, tmp_path, kills=10, iterations=50, scaffolds=["tournament", "openevolve"])
