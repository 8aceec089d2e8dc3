"""The examples of docs/gate.md run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "gate.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("number", range(len(PYTHON)))
def test_python_examples(number: int, capsys) -> None:
    exec(compile(PYTHON[number], "docs/gate.md", "exec"), {"__name__": "example"})
    if "class Calculator" in PYTHON[number]:
        assert "COMMIT g1-0.1" in capsys.readouterr().out
        code = [
            line for line in PYTHON[number].splitlines() if line.strip() and not line.startswith(("import", "from"))
        ]
        assert len(code) <= 40


def test_the_loop_file_is_valid() -> None:
    from eft.loops.inheritance import Config

    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    config = Config(**yaml.safe_load(text))
    assert set(config.branches) == {"sft", "kto", "own"}
