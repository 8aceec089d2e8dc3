"""Random small edits of YAML genomes (merge recipes, settings), found by their tokens and made in their text.

`stream(code, rng)` gives `Change`s as text_edits does: layout and comments stay, keys and quoted words stay as they
are, and only lines between EVOLVE-BLOCK markers are touched, where a genome has them.

Kinds of edits:
    number      another value for a number; whole numbers stay whole half of the time
    name        another word for a plain word: one that stands under the same key elsewhere in the genome, or one that the
                comment on its line offers (`method: linear  # linear, ties, dare_ties`)
    boolean     true for false and back
    statement   delete, double, or swap with the next: an entry (`- …` or `key: …`) with everything below it

Limits: it knows no schema, so a child may be refused by whoever reads the genome; that says so, and the search goes on.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

from eft.mutators.ast_edits import Change, allowed_lines, another_number
from eft.syntax import changes_syntax

WEIGHTS = {"number": 62, "name": 20, "boolean": 4, "statement": 14}

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_WORD = re.compile(r"[A-Za-z_][\w./:@-]*")
_BOOLEANS = {"true": "false", "false": "true", "True": "False", "False": "True"}
_KNOWN = {*_BOOLEANS, "null", "Null", "NULL", "TRUE", "FALSE"}
LONGEST = 200_000  # characters; a longer genome is left alone


@dataclass(frozen=True)
class Scalar:
    """A plain value that may change: where it stands, the key that it is under, its line's comment."""

    text: str
    start: int
    key: str
    comment: str
    allowed: bool


def scalars(code: str) -> list[Scalar]:
    """The plain values of `code`, in order; [] where it is no YAML."""
    import yaml

    if len(code) > LONGEST:
        return []
    lines = code.split("\n")
    allowed = allowed_lines(lines)
    found, key, is_key = [], "", False
    try:
        for token in yaml.scan(code, Loader=yaml.SafeLoader):  # the C scanner counts its marks otherwise
            if isinstance(token, yaml.KeyToken):
                is_key = True
            elif isinstance(token, yaml.ScalarToken):
                mark = token.start_mark
                plain = token.plain and mark.line == token.end_mark.line
                if is_key:
                    key, is_key = token.value, False
                elif plain and mark.line < len(lines) and code.startswith(token.value, mark.index):
                    comment = lines[mark.line][token.end_mark.column :].partition(" #")[2]
                    found.append(Scalar(token.value, mark.index, key, comment, allowed[mark.line]))
            elif isinstance(token, yaml.ValueToken):
                is_key = False
    except (yaml.YAMLError, ValueError, RecursionError, IndexError):
        return []
    return found


def stream(
    code: str, rng: random.Random, kinds: tuple[str, ...] = tuple(WEIGHTS), tries: int = 60
) -> Iterator[Change]:
    """Random edits of `code`, without end while there are any: repeats are possible. Stops after `tries` failures in
    a row. Deterministic given `rng`."""
    found, failures = scalars(code), 0
    kinds = tuple(k for k in kinds if k in WEIGHTS)
    weights = [WEIGHTS[k] for k in kinds]
    while failures < tries and kinds:
        kind = rng.choices(kinds, weights)[0]
        child = _MAKERS[kind](code, found, rng)
        if child is not None and child != code and changes_syntax(code, child, "yaml"):
            failures = 0
            yield Change(child, kind)
        else:
            failures += 1


def _replace(code: str, scalar: Scalar, new: str) -> str:
    return code[: scalar.start] + new + code[scalar.start + len(scalar.text) :]


def _number(code: str, found: list[Scalar], rng: random.Random) -> str | None:
    spots = [s for s in found if s.allowed and _NUMBER.fullmatch(s.text)]
    if not spots:
        return None
    spot = rng.choice(spots)
    whole = spot.text.lstrip("+-").isdigit() and len(spot.text) < 16
    value = int(spot.text) if whole else float(spot.text)
    if abs(value) > 1e15:  # also infinities
        return None
    return _replace(code, spot, another_number(value, rng))


def _name(code: str, found: list[Scalar], rng: random.Random) -> str | None:
    spots = [s for s in found if s.allowed and _WORD.fullmatch(s.text) and s.text not in _KNOWN]
    if not spots:
        return None
    spot = rng.choice(spots)
    near = {s.text for s in found if s.key == spot.key and _WORD.fullmatch(s.text) and s.text not in _KNOWN}
    offered = {w for part in re.split(r"[,|]", spot.comment) if _WORD.fullmatch(w := part.strip())}
    others = sorted((near | (offered if len(offered) > 1 else set())) - {spot.text})
    return _replace(code, spot, rng.choice(others)) if others else None


def _boolean(code: str, found: list[Scalar], rng: random.Random) -> str | None:
    spots = [s for s in found if s.allowed and s.text in _BOOLEANS]
    if not spots:
        return None
    spot = rng.choice(spots)
    return _replace(code, spot, _BOOLEANS[spot.text])


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _statement(code: str, found: list[Scalar], rng: random.Random) -> str | None:
    """An entry and all lines that are indented further; a list's items are doubled or deleted, keys only deleted."""
    lines = code.split("\n")
    allowed = allowed_lines(lines)
    heads = [i for i, line in enumerate(lines) if allowed[i] and re.match(r" *(- |[\w.-]+:)", line)]
    if not heads:
        return None
    first = rng.choice(heads)
    end = _entry_end(lines, allowed, first)
    entry = lines[first:end]
    choice = rng.random()
    if choice < 0.4:
        return "\n".join(lines[:first] + lines[end:])
    if choice < 0.6 and entry[0].lstrip().startswith("- "):
        return "\n".join(lines[:end] + entry + lines[end:])
    if end in heads and _indent(lines[end]) == _indent(lines[first]):
        after = _entry_end(lines, allowed, end)
        return "\n".join(lines[:first] + lines[end:after] + entry + lines[after:])
    return None


def _entry_end(lines: list[str], allowed: list[bool], first: int) -> int:
    end, depth = first + 1, _indent(lines[first])
    while end < len(lines) and allowed[end] and lines[end].strip() and _indent(lines[end]) > depth:
        end += 1
    return end


_MAKERS = {"number": _number, "name": _name, "boolean": _boolean, "statement": _statement}
