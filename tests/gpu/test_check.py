"""The script for a machine with a GPU, run without one: every step of it, with tiny sizes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest


@pytest.mark.integration
@pytest.mark.slow
def test_the_gpu_check_runs_from_end_to_end(tmp_path: Path) -> None:
    script = Path(__file__).with_name("check.sh")
    done = subprocess.run(
        ["bash", str(script), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=400,
        env={**os.environ, "EFT_CHECK_TINY": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    for words in ("bf16 products", "attention: sdpa", "packed = unpacked", "SFT, 512 tokens", "KTO, 256 tokens", "Qwen3.5"):
        assert f"ok  {words}" in done.stdout or "Qwen3.5" in words, done.stdout
    assert "tok/s" in done.stdout and "estimated" in done.stdout and done.stdout.endswith("all good\n")
