"""What a run of many searches shows: lines without a terminal, a live table with the time left on one."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from rich.console import Console

from eft.search import display, executor
from eft.search.display import Display, clock
from eft.search.spec import SearchSpec


@dataclass
class Flying:
    spec: SearchSpec
    seconds: float
    n: int

    def done(self) -> int:
        return self.n


def text(table: object) -> str:
    out = io.StringIO()
    Console(file=out, width=120).print(table)
    return out.getvalue()


def test_the_table_shows_what_is_in_flight_and_the_time_left(spec, monkeypatch) -> None:
    monkeypatch.setattr(display, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    specs = [spec(f"s{k}", iterations=20) for k in range(20)]
    shown = Display("evaluate", specs, specs[:2], quiet=False)
    shown.started -= 100.0
    shown.ended(specs[2], "out of luck")
    running = [Flying(s, 60.0, k) for k, s in enumerate(specs[3:18])]
    shown_text = text(shown.table(running, [r.n for r in running]))
    assert "s3" in shown_text and "0 of 20" in shown_text and "1:00" in shown_text
    assert "and 3 more" in shown_text and "s17" not in shown_text  # the furthest ones are left out
    assert "3 of 20 searches, 165 of 400 candidates, 1 failed, about 188 s left" in " ".join(shown_text.split())
    assert "3:00" in shown_text  # s8: 5 of 20 in a minute


def test_lines_now_and_then_without_a_terminal(spec, monkeypatch, capsys) -> None:
    monkeypatch.setattr(display, "LINE_S", 0.0)
    specs = [spec("a", iterations=10), spec("b", iterations=10)]
    with Display("collect", specs, [], quiet=False) as shown:
        shown.show([Flying(specs[0], 1.0, 4), Flying(specs[1], 1.0, 12)])
        shown.ended(specs[0], None)
        shown.ended(specs[1], "why\n  where: here")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "collect: 0 of 2 searches, 0 of 20 candidates"
    assert lines[1].startswith("collect: 0 of 2 searches, 14 of 20 candidates, about ")  # never more than its budget
    assert lines[2:4] == ["collect: 'b' failed", "why"] and lines[-1].startswith("collect: 2 of 2 searches, 20 of 20")


def test_a_terminal_gets_the_table_and_keeps_what_failed(spec, monkeypatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(display, "TABLE_S", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    specs = [spec("a", iterations=10)]
    with Display("evaluate", specs, [], quiet=False) as shown:
        shown.show([Flying(specs[0], 65.0, 5)])
        shown.ended(specs[0], "out of [luck]")
    assert "5 of 10" in terminal.getvalue() and "1:05" in terminal.getvalue() and "[luck]" in terminal.getvalue()


@pytest.mark.parametrize("seconds, words", [(5, "0:05"), (65.4, "1:05"), (7389, "2:03:09")])
def test_a_clock(seconds: float, words: str) -> None:
    assert clock(seconds) == words


@pytest.mark.integration
def test_a_folder_that_cannot_be_made_fails_its_search_only(spec, tmp_path) -> None:
    (tmp_path / "file").write_text("in the way")
    bad, dead = spec("bad", out=str(tmp_path / "file")), spec("dead", iterations=2)
    outcomes = executor.run_all([bad, dead], quiet=True)
    assert [o.status for o in outcomes] == ["failed", "failed"]
    assert "in the way" in outcomes[0].error and "had no answer" in outcomes[1].error
