"""Fixtures of the mutators' tests: a scripted endpoint, and a plain way to ask one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted import ScriptedUpstream, post


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as scripted:
        yield scripted


@pytest.fixture
def records() -> Callable[[Path], list[dict[str, Any]]]:
    """The records of a journal file, read with plain json (a stranger's reader must be able to)."""

    def load(path: Path) -> list[dict[str, Any]]:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    return load


@pytest.fixture
def ask() -> Callable[..., tuple[int, dict[str, Any], dict[str, str]]]:
    """Post one chat request to a base URL: ask(url, 'text', temperature=...) or ask(url, raw=b'...')."""

    def send(url: str, text: str = "hello", *, raw: bytes | None = None, timeout: float = 120, **params: Any):
        body = raw if raw is not None else {"model": "m", "messages": [{"role": "user", "content": text}], **params}
        return post(url + "/chat/completions", body, timeout)

    return send
