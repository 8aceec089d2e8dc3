"""No server outlives its parent, however the parent ends. With stand-ins for vLLM that are up at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from eft.mutators import watch

pytestmark = pytest.mark.integration
# A front process with a worker of its own, as vLLM has; `stubborn`: both ignore SIGTERM.
FRONT = """
import os, signal, subprocess, sys, time
if "stubborn" in sys.argv: signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "worker" not in sys.argv:
    worker = subprocess.Popen([sys.executable, __file__, "worker", *sys.argv[1:]])
    open(sys.argv[1], "w").write(f"{os.getpid()} {worker.pid}")
    if "fails" in sys.argv: sys.exit(7)
time.sleep(300)
"""


def pids(file: Path) -> list[int]:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if file.exists() and len(file.read_text().split()) == 2:
            return [int(p) for p in file.read_text().split()]
        time.sleep(0.02)
    pytest.fail("the stand-in did not start")


def gone(processes: list[int], seconds: float = 30) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(alive, processes)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def command(tmp_path: Path, *how: str) -> list[str]:
    (tmp_path / "front.py").write_text(FRONT)
    (tmp_path / "scratch").mkdir()
    front = [sys.executable, str(tmp_path / "front.py"), str(tmp_path / "pids"), *how]
    return [sys.executable, "-P", watch.__file__, str(os.getpid()), str(tmp_path / "scratch"), *front]


def test_terminated(tmp_path: Path) -> None:
    process = subprocess.Popen(command(tmp_path))
    running = pids(tmp_path / "pids")
    process.terminate()
    assert process.wait(60) == 128 + signal.SIGTERM and gone(running, 0.2)
    assert not (tmp_path / "scratch").exists()


def test_the_front_dies_and_its_worker_goes_too(tmp_path: Path) -> None:
    process = subprocess.Popen(command(tmp_path, "fails"))
    running = pids(tmp_path / "pids")
    assert process.wait(60) == 7 and gone(running, 0.2)


def test_the_parent_is_killed(tmp_path: Path) -> None:
    code = "import os, subprocess, sys; c = sys.argv[1:]; c[3] = str(os.getpid()); subprocess.run(c)"
    parent = subprocess.Popen([sys.executable, "-c", code, *command(tmp_path)])
    running = pids(tmp_path / "pids")
    parent.kill()
    parent.wait()
    assert gone(running)


def test_the_watcher_is_killed(tmp_path: Path) -> None:
    process = subprocess.Popen(command(tmp_path))
    front, worker = pids(tmp_path / "pids")
    process.kill()
    process.wait()
    assert gone([front]), "the front process at least is told"
    os.kill(worker, signal.SIGKILL)


def test_what_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    impatient = "import sys; from eft.mutators import watch; watch.GRACE = 0.5; sys.exit(watch.main(sys.argv[1:]))"
    arguments = command(tmp_path, "stubborn")[3:]
    process = subprocess.Popen([sys.executable, "-c", impatient, *arguments], cwd=Path(watch.__file__).parents[2])
    running = pids(tmp_path / "pids")
    time.sleep(0.3)  # until it ignores
    process.terminate()
    assert process.wait(60) == 128 + signal.SIGKILL and gone(running, 0.2)
