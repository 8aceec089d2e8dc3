"""Errors: one message, whatever stands in the names."""

from __future__ import annotations

from eft.errors import EftError, nearest


def test_the_parts_in_order():
    error = EftError("no", where="here", why="because", way_out="go")
    assert str(error) == "no\n  where: here\n  why: because\n  way out: go"


def test_control_characters_are_shown_not_obeyed():
    text = str(EftError("no task \x1b[2J\x9b1m", where="a\rb\x7f", why="two\nlines\tkept"))
    assert not any(ord(c) < 32 and c not in "\n\t" or 127 <= ord(c) < 160 for c in text)
    assert "\u241b[2J" in text and "two\nlines\tkept" in text


def test_nearest():
    assert nearest("validatoin", ["validation", "seed"]) == "did you mean 'validation'?"
    assert nearest("xyz", ["b", "a"]) == "valid: a, b"
