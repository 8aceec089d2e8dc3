"""`eft collect` as a user runs it: logs on disk, resumption, what is reported and what is refused."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from toy import trail

from eft import resources
from eft.search.process import Progress

pytestmark = pytest.mark.integration


N = 20  # iterations of a search: enough that a kill comes in the middle


def options(toy: Path, out: Path, *more: object) -> list[object]:
    return ["collect", toy, "-o", out, "--iterations", N, "--set", "mutator.lookahead=3", "--json", *more]


def last_json(done: subprocess.CompletedProcess[str]) -> dict:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def journal(out: Path, kind: str) -> list[dict]:
    # Whole lines only: a kill may come in the middle of one.
    lines = [line for f in sorted((out / "journal").glob("*.jsonl")) for line in f.read_bytes().split(b"\n")[:-1]]
    return [r for r in map(json.loads, lines) if r["kind"] == kind]


def test_collect_leaves_logs_and_continues_after_a_kill(eft, toy, tmp_path) -> None:
    calm, shot = tmp_path / "calm", tmp_path / "shot"
    counts = last_json(eft(*options(toy, calm)))
    assert (counts["searches"], counts["failed_searches"], counts["replies"]) == (2, 0, 2 * N)
    assert counts["valid_edits"] > 1.6 * N and counts["improved_searches"] == 2
    assert len(journal(calm, "reply")) == 2 * N
    proposals = journal(calm, "proposal")
    assert len(proposals) == 3 * 2 * N and sum(p["chosen"] for p in proposals) == 2 * N
    forms = {f.parent.name: json.loads(f.read_text())["edit"] for f in calm.glob("*/run.json")}
    assert forms == {"toys-toy-diff-s0": "diff", "toys-toy-rewrite-s1": "rewrite"}
    assert json.loads((calm / "manifest.json").read_text())["counts"]["replies"] == 2 * N
    assert last_json(eft(*options(toy, calm)))["skipped"]

    command = [sys.executable, "-m", "eft.cli", *map(str, options(toy, shot))]
    nowhere = subprocess.DEVNULL
    running = subprocess.Popen(command, cwd=resources.PACKAGE.parent, stdout=nowhere, stderr=nowhere,
                               start_new_session=True)  # fmt: skip
    deadline, progress = time.monotonic() + 300, Progress(shot / "toys-toy-rewrite-s1")
    while progress.done() < 5:
        assert time.monotonic() < deadline and running.poll() is None
        time.sleep(0.02)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    before = {r["key"] for r in journal(shot, "reply") if r["status"] == "ok"}
    assert len(before) >= 5 and not (shot / "manifest.json").exists()
    assert last_json(eft(*options(toy, shot)))["replies"] == 2 * N
    assert len(journal(shot, "reply")) == 2 * N and before < {r["key"] for r in journal(shot, "reply")}
    for name in forms:
        assert trail(calm / name) == trail(shot / name)


def test_what_collect_refuses(eft, toy, tmp_path) -> None:
    out = tmp_path / "out"
    endpoint = ["--set", "mutator.base_url=http://127.0.0.1:9/v1"]
    for more, code, words in [
        (endpoint, 2, "both base_url and model"),
        (["--prompt-format", "eft@2"], 2, "eft@1"),
        (["--set", "mutator.lokahead=3"], 2, "lookahead"),
        (["--suite", "embeded"], 2, "embedded"),
        ([*endpoint, "--set", "mutator.model=m", "--set", "mutator.api_key_env=NOT_SET"], 2, "NOT_SET"),
    ]:  # fmt: skip
        done = eft(*options(toy, out, *more))
        assert done.returncode == code and words in done.stderr and "Traceback" not in done.stderr, (more, done.stderr)
    (toy / "initial_program.py").write_text("def run(:\n")
    done = eft(*options(toy, out))
    assert done.returncode == 1 and "initial program" in done.stderr and "Traceback" not in done.stderr
    with contextlib.suppress(FileNotFoundError):
        assert not [p for p in out.iterdir() if (p / "result.json").exists()]
