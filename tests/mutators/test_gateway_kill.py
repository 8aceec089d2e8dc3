"""`eft gateway` as a process: killed with SIGKILL in the middle of a search, it goes on without asking twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from scripted import completion

REPOSITORY = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.integration


def start(upstream, journal: Path, *options: str) -> tuple[subprocess.Popen[str], str]:
    """A gateway process and its base URL."""
    command = [sys.executable, "-m", "eft.cli", "gateway", "--upstream", upstream.url, "--model", "served",
               "--journal", str(journal), "--port", "0", *options]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY)
    url = process.stdout.readline().strip()
    assert url.endswith("/s/search/model/v1"), process.stderr.read()
    return process, url


def search(ask: Callable, url: str, questions: list[str], replies: list[str]) -> None:
    """A scaffold: asks one after the other, each question made of the reply before; ends when the gateway is gone."""
    said = ""
    for question in questions:
        try:
            answer = ask(url, f"{question} {said}")
        except (OSError, ValueError):
            return
        said = answer[1]["choices"][0]["message"]["content"]
        replies.append(said)


def test_killed_and_started_again_nothing_is_asked_twice(tmp_path: Path, upstream, ask, records) -> None:
    upstream.script = lambda k, body: completion(f"reply {k} to {len(body['messages'][0]['content'])}")
    upstream.delay = 0.02
    questions = [f"q{i}" for i in range(40)]
    process, url = start(upstream, tmp_path)
    before: list[str] = []
    scaffold = threading.Thread(target=search, args=(ask, url, questions, before))
    scaffold.start()
    while len(before) < 12:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    scaffold.join(120)
    process.communicate()
    paid = len(upstream.bodies)
    with open(tmp_path / "search.jsonl", "ab") as f:
        f.write(b'{"kind":"reply","key":"torn')  # the worst moment: in the middle of a line
    process, url = start(upstream, tmp_path)
    try:
        after: list[str] = []
        search(ask, url, questions, after)
    finally:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert len(after) == 40 and after[: len(before)] == before, "what was delivered is delivered again, word for word"
    # Only the one request that was under way when the kill came may have been asked twice.
    assert 40 <= len(upstream.bodies) <= 41 and paid >= len(before)
    lines = records(tmp_path / "search.jsonl")
    assert [r["index"] for r in lines] == list(range(40)) and len({r["key"] for r in lines}) == 40
    assert "torn last line" in err and "replayed" in err


def test_sigterm_ends_it_in_order_and_a_second_one_on_the_journal_is_refused(tmp_path: Path, upstream, eft) -> None:
    process, url = start(upstream, tmp_path)
    try:
        second = eft("gateway", "--upstream", upstream.url, "--journal", tmp_path, "--port", 0)
        assert second.returncode == 1 and "another gateway writes" in second.stderr and "Traceback" not in second.stderr
        port = url.split(":")[2].split("/")[0]
        third = eft("gateway", "--upstream", upstream.url, "--journal", tmp_path / "x", "--port", port)
        assert third.returncode == 1 and "cannot listen" in third.stderr and "--port" in third.stderr
    finally:
        process.terminate()
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0 and "0 answered" in err


@pytest.mark.parametrize(
    "options, why",
    [(["--upstream", "localhost:1"], "http(s) base URL"), ([], "'upstream' is required"),
     (["--upstream", "http://x/v1", "--api-key-env", "EFT_NO_SUCH"], "EFT_NO_SUCH is not set"),
     (["--upstream", "http://x/v1", "--port", "70000"], "'port'")],
)  # fmt: skip
def test_wrong_options_are_named(tmp_path: Path, eft, options: list[str], why: str) -> None:
    done = eft("gateway", "--journal", tmp_path / "j", *options)
    assert done.returncode == 2 and why in done.stderr and "Traceback" not in done.stderr
