"""Fixtures of the search tests: a toy task that evaluates in milliseconds, and specs of short searches on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from toy import CONFIG, EVALUATOR, PROGRAM

from eft.search.spec import SearchSpec


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """The folder of the toy task."""
    folder = tmp_path / "toy"
    folder.mkdir()
    (folder / "initial_program.py").write_text(PROGRAM)
    (folder / "evaluator.py").write_text(EVALUATOR)
    (folder / "config.yaml").write_text(CONFIG)
    return folder


@pytest.fixture
def spec(toy: Path, tmp_path: Path) -> Callable[..., SearchSpec]:
    """spec(name, **fields): a search of eight candidates in a folder of its own."""

    def make(name: str = "one", **fields) -> SearchSpec:
        return SearchSpec(**{"task": str(toy), "base_url": "http://127.0.0.1:9/v1", "out": str(tmp_path / name),
                             "iterations": 8, "prompt_format": "eft@1", "mutator": "m", **fields})  # fmt: skip

    return make
