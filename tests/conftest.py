"""Shared fixtures: the command line as a user runs it, and the real runs where they are present."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
REAL_RUNS = REPOSITORY.parent / "shared" / "data" / "openevolve_runs"

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing in the tests may depend on a hub
os.environ.setdefault("WANDB_MODE", "disabled")


@pytest.fixture(scope="session")
def real_runs() -> Path:
    """The folder of recorded runs. They are not part of this repository: without them the test says so and is skipped."""
    if not REAL_RUNS.is_dir():
        pytest.skip(f"the recorded runs are not here ({REAL_RUNS}): tests on real logs were NOT run")
    return REAL_RUNS


@pytest.fixture(scope="session")
def scaffold_python() -> Callable[[str], Path]:
    """The Python of a scaffold's own environment. They are optional: without one the test says so and is skipped."""

    def find(name: str) -> Path:
        python = Path(os.environ.get("EFT_SCAFFOLD_VENVS", REPOSITORY / ".venv-scaffolds")) / name / "bin" / "python"
        if not python.is_file():
            pytest.skip(f"no environment of {name} here (make scaffold-env): tests with the real {name} were NOT run")
        return python

    return find


@pytest.fixture(scope="session")
def eft() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `eft ARGS…` as a process; returns the completed process with text output."""

    def run(*args: object, timeout: float = 300, env: dict[str, str] | None = None, cwd: Path | None = None):
        command = [sys.executable, "-m", "eft.cli", *map(str, args)]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=cwd,
                              env={**os.environ, "PYTHONPATH": str(REPOSITORY), **(env or {})})  # fmt: skip

    return run
