"""The small parts around a search's process: ids that repeat, progress, locks, reasons."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from eft.errors import EftError
from eft.search import process
from eft.search.spec import CACHE, LOG, RESULT, SPEC

FORKS = """
import os, random, sys, uuid
from eft.search.determinism import settle
settle(7)
import random
def say(who): print(who, uuid.uuid4(), uuid.uuid4(), random.random() if who != "parent" else "", flush=True)
say("parent")
for name in ("first", "second"):
    pid = os.fork()
    if pid == 0:
        say(name); os._exit(0)
    os.waitpid(pid, 0)
say("parent")
"""


def ids() -> list[str]:
    command = [sys.executable, "-c", FORKS]
    return subprocess.check_output(command, text=True, env=process.environment()).splitlines()


def test_ids_and_random_numbers_repeat_and_forks_have_their_own() -> None:
    lines = ids()
    assert lines == ids()
    every = [word for line in lines for word in line.split()[1:3]]
    assert len(set(every)) == len(every) == 8


def test_a_random_hash_seed_is_refused() -> None:
    env = {k: v for k, v in process.environment().items() if k != "PYTHONHASHSEED"}
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, env=env)
    assert done.returncode != 0 and "PYTHONHASHSEED" in done.stderr


def test_progress_counts_lines_and_begins_anew(tmp_path) -> None:
    progress = process.Progress(tmp_path)
    assert progress.done() == 0
    trace = tmp_path / "evolution_trace.jsonl"
    trace.write_text("{}\n{}\n{")
    (tmp_path / "evolution_trace_failures.jsonl").write_text("{}\n")
    assert progress.done() == 3
    with open(trace, "a") as f:
        f.write("}\n")
    assert progress.done() == 4
    trace.write_text("{}\n")
    assert progress.done() == 2


@pytest.mark.parametrize("log, reason", [
    ("2026 INFO hello\nerror: the model is gone\n  where: here\n", "the model is gone\n  where: here"),
    ("Traceback\nValueError: no", "ValueError: no"), ("", "it ended without a word"),
])  # fmt: skip
def test_the_reason_is_found_in_the_log(tmp_path, log, reason) -> None:
    (tmp_path / LOG).write_text(log)
    assert process.last_error(tmp_path / LOG) == reason


def test_two_searches_in_one_folder_are_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(process.time, "sleep", lambda s: None)
    entered = threading.Event()
    with process.holding(tmp_path):
        with pytest.raises(EftError, match="another process"), process.holding(tmp_path):
            entered.set()
    assert not entered.is_set()
    with process.holding(tmp_path):  # free again
        pass


def test_a_new_attempt_clears_logs_but_no_scores(spec) -> None:
    one = spec()
    (one.folder / "checkpoints").mkdir(parents=True)
    for name in (RESULT, CACHE, "evolution_trace.jsonl"):
        (one.folder / name).write_text("{}")
    one.save(one.folder / SPEC)
    process.prepare(one, process.lay_out(one))
    assert (one.folder / CACHE).exists()
    assert not any((one.folder / n).exists() for n in (RESULT, "evolution_trace.jsonl", "checkpoints", f".{SPEC}"))
    other = one.replace(task=one.task + "_other")
    process.prepare(other, process.lay_out(other))
    assert not (one.folder / CACHE).exists()


def test_a_killed_process_takes_its_group_along(tmp_path) -> None:
    script = "import subprocess, time; print(subprocess.Popen(['sleep', '60']).pid, flush=True); time.sleep(60)"
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True)
    child = int(parent.stdout.readline())
    process.kill(parent)
    parent.stdout.close()
    assert parent.poll() == -9
    for _ in range(1000):
        try:
            state = open(f"/proc/{child}/stat").read().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return
        if state == "Z":
            return
        os.sched_yield()
        process.time.sleep(0.02)
    pytest.fail("the child lives on")
