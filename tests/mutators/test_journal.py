"""The journal: what is on the disk counts, a torn end does not, and nobody else may write."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eft.errors import EftError
from eft.mutators import journal
from eft.mutators.journal import Journal, SearchJournal


def reply(key: str, **more) -> dict:
    return {"kind": "reply", "key": key, "status": "ok", "mutator": "m", "content": "text", "n": 1, "choice": 0, **more}


def test_what_was_added_is_found_again_after_reopening(tmp_path: Path, records) -> None:
    path = tmp_path / "s.jsonl"
    first = SearchJournal(path)
    first.add([(reply("a:0", content="é\n😀", call=0), [{"kind": "proposal", "child_code": "x"}])])
    first.add([(reply("a:1", status="error", call=1), [])])
    first.add([(reply("b:0", content="\ud800 broken", call=2), [])])
    again = SearchJournal(path)
    assert again.lookup("a:0")[0]["content"] == "é\n😀"
    assert again.lookup("a:1") is None, "failures are asked again"
    assert again.lookup("b:0")[0]["content"] == "\ud800 broken"
    assert again.take_call("m") == 3 and again.take_call("m") == 4 and again.take_call("other") == 0
    lines = records(path)
    assert [(r["kind"], r["index"]) for r in lines] == [("proposal", 0), ("reply", 0), ("reply", 1), ("reply", 2)]


def test_non_finite_numbers_are_written_as_json(tmp_path: Path, records) -> None:
    log = SearchJournal(tmp_path / "s.jsonl")
    log.add([(reply("a:0"), [{"kind": "proposal", "child_metrics": {"a": float("nan"), "b": -float("inf")}}])])
    assert records(tmp_path / "s.jsonl")[0]["child_metrics"] == {"a": "NaN", "b": "-Infinity"}


def test_a_file_cut_anywhere_opens_and_goes_on(tmp_path: Path, records, capsys, monkeypatch) -> None:
    monkeypatch.setattr(journal, "_to_disk", lambda fd: None)  # only the order of bytes matters here
    path = tmp_path / "s.jsonl"
    log = SearchJournal(path)
    for i in range(3):
        log.add([(reply(f"k:{i}", content="c" * 20), [])])
    whole = path.read_bytes()
    ends = [i + 1 for i, b in enumerate(whole) if b == 10]
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        reopened = SearchJournal(path)
        # A record whose line end alone is missing is whole.
        kept = sum(end <= cut or end == cut + 1 for end in ends)
        assert [reopened.lookup(f"k:{i}") is not None for i in range(3)] == [i < kept for i in range(3)], cut
        reopened.add([(reply("new:0"), [])])
        assert len(records(path)) == kept + 1, cut
        assert SearchJournal(path).lookup("new:0") is not None
    assert "cut off a torn last line" in capsys.readouterr().err


def test_a_damaged_line_in_the_middle_is_left_out_and_named(tmp_path: Path, capsys) -> None:
    path = tmp_path / "s.jsonl"
    log = SearchJournal(path)
    log.add([(reply("a:0"), [])])
    log.add([(reply("b:0"), [])])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"\0\0\0\0\n" + lines[0] + b'["a list"]\n' + lines[1])
    again = SearchJournal(path)
    assert again.lookup("a:0") and again.lookup("b:0")
    assert "2 unreadable lines" in capsys.readouterr().err


def test_a_group_of_choices_counts_only_when_whole(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    group = [(reply("g:0", n=2, choice=i, content=f"c{i}"), []) for i in range(2)]
    SearchJournal(path).add(group)
    assert [r["content"] for r in SearchJournal(path).lookup("g:0")] == ["c0", "c1"]
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0])
    torn = SearchJournal(path)
    assert torn.lookup("g:0") is None
    torn.add(group)  # asked again, on top of the half that is there
    assert [r["content"] for r in SearchJournal(path).lookup("g:0")] == ["c0", "c1"]


def test_a_full_disk_is_one_clear_error_and_loses_nothing_older(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "s.jsonl"
    log = SearchJournal(path)
    log.add([(reply("a:0"), [])])
    before = path.read_bytes()

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(journal, "_to_disk", full)
    with pytest.raises(EftError, match="disk is full"):
        log.add([(reply("b:0"), [])])
    assert path.read_bytes() == before
    monkeypatch.undo()
    log.add([(reply("b:0"), [])])
    assert SearchJournal(path).lookup("b:0") and SearchJournal(path).lookup("a:0")


def test_one_gateway_per_journal(tmp_path: Path) -> None:
    first = Journal(tmp_path)
    first.open()
    with pytest.raises(EftError, match="another gateway"):
        Journal(tmp_path).open()
    first.close()
    second = Journal(tmp_path)
    second.open()
    second.close()


def test_the_lock_of_a_dead_process_does_not_hold(tmp_path: Path) -> None:
    code = "import os, sys, pathlib as p, eft.mutators.journal as j; j.Journal(p.Path(sys.argv[1])).open(); os._exit(9)"
    assert subprocess.run([sys.executable, "-c", code, tmp_path], cwd=Path(__file__).parents[2]).returncode == 9
    journal_ = Journal(tmp_path)
    journal_.open()
    journal_.close()


def test_a_file_in_the_way_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "j").write_text("")
    with pytest.raises(EftError, match="must be a folder"):
        Journal(tmp_path / "j").open()
    with pytest.raises(EftError, match="no such journal"):
        list(journal.read(tmp_path / "nothing.jsonl"))


_plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
_json = st.recursive(_plain, lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(), x, max_size=3))


@settings(max_examples=60, deadline=None)
@given(_json)
def test_every_value_becomes_one_line_of_strict_json(value) -> None:
    line = journal.line_of({"kind": "reply", "value": value})
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    json.loads(line, parse_constant=lambda name: pytest.fail(name))


def test_the_digest_does_not_depend_on_the_order_of_keys() -> None:
    messages = [{"role": "user", "content": "x"}]
    a = journal.digest("m", "", messages, {"temperature": 0.7, "top_p": 0.9})
    assert a == journal.digest("m", "", [{"content": "x", "role": "user"}], {"top_p": 0.9, "temperature": 0.7})
    assert len({a, journal.digest("n", "", messages, {}), journal.digest("m", "w", messages, {})}) == 3
