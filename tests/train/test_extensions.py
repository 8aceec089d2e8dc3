"""A build of DeepSpeed's extension that was killed must not hang the launches after it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest

from eft.train import extensions

pytestmark = [pytest.mark.multirank, pytest.mark.integration]
ENV = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
BUILD = "from eft.train import extensions; extensions.build(); print('built')"


def test_a_lock_that_a_dead_process_left_is_not_waited_for() -> None:
    """In the folder of all launches, whose extension the other tests build too: a second build would take a minute."""
    assert built(ENV).returncode == 0
    left = extensions.place(version("torch")) / "deepspeed_shm_comm" / "lock"
    if not left.parent.is_dir():
        pytest.skip("there is no C++ compiler here, so DeepSpeed builds nothing")
    left.touch()
    done = built(ENV)
    assert done.returncode == 0 and not left.exists(), done.stderr[-2000:]


def built(env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BUILD], env={**os.environ, **env}, capture_output=True, text=True, timeout=1200
    )


@pytest.mark.slow
def test_a_killed_build_leaves_nothing_to_wait_for(tmp_path: Path) -> None:
    env = {**ENV, "TORCH_EXTENSIONS_DIR": str(tmp_path)}
    builder = subprocess.Popen([sys.executable, "-c", BUILD], env={**os.environ, **env}, start_new_session=True, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while not (locks := list(tmp_path.glob("eft/*/lock"))):
        assert builder.poll() is None and time.monotonic() < deadline, "the build never began"
        time.sleep(0.05)
    os.killpg(builder.pid, signal.SIGKILL)
    builder.wait()
    assert locks[0].exists(), "the kill came in the middle of the build"
    done = built(env)
    assert done.returncode == 0 and "built" in done.stdout, done.stderr[-2000:]
    assert not locks[0].exists()
