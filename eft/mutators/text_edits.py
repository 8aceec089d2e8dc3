"""Random small edits of programs that are not Python, found by their tokens (C++, C, Rust, JavaScript, R; YAML genomes:
yaml_edits.py).

`stream(code, rng, language)` gives `Change`s as eft/mutators/ast_edits does for Python: one line changes (or is
deleted, or swapped with the next), layout and comments stay, only code between EVOLVE-BLOCK markers is touched where a
program has them.

Kinds of edits:
    number      another value for a numeric literal; whole numbers stay whole, array sizes and indices are left alone
    operator    another arithmetic operator (+ - * /), also in `+=`
    compare     another comparison (< <= > >= == !=)
    boolean     `&&` for `||` and back
    name        another name of the same line's neighbourhood that is written the same way (x for y, DECAY for GAIN)
    statement   delete a line `x = …;` or swap it with the next

Limits: without a syntax tree some children do not compile (a template's angle brackets count as comparisons where white
space stands around them, a name may have another type); the evaluator says so, and the search goes on.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from eft.edits import changes_syntax
from eft.mutators import yaml_edits
from eft.mutators.ast_edits import Change, allowed_lines, another_number, whole_step

WEIGHTS = {"number": 60, "operator": 10, "compare": 8, "boolean": 4, "name": 10, "statement": 8}
KINDS = {"all": tuple(WEIGHTS), "numbers": ("number",)}
LANGUAGES = ("cpp", "c", "rust", "javascript", "r", "yaml")
FENCES = {"c++": "cpp", "cc": "cpp", "rs": "rust", "js": "javascript", "yml": "yaml"}  # other names of theirs on a fence

_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
      | (?P<text>R"\((?:.|\n)*?\)"|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<directive>^[ \t]*\#[^\n]*)
      | (?P<number>(?:0[xXbB][0-9a-fA-F']+|(?:\d[\d']*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)[a-zA-Z]*)
      | (?P<name>[A-Za-z_]\w*)
      | (?P<operator><<=|>>=|<=>|->|\+\+|--|&&|\|\||<<|>>|[-+*/%&|^<>=!]=|::|[-+*/%<>=!&|^~?:;,.(){}\[\]])
      | (?P<line>\n)""",
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)
_PLAIN = re.compile(r"(?P<digits>\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+)(?P<suffix>[a-zA-Z]*)")
_KEYWORDS = frozenset(
    "auto bool break case char class const continue default delete do double else enum false float fn for function if "
    "impl in int let long mut new nullptr null of pub return short signed sizeof size_t static std struct switch "
    "template this true typedef unsigned use using var void while FALSE NULL TRUE".split()
)
_ASSIGNMENT = re.compile(r"\s*[A-Za-z_][\w.\[\]]*\s*[-+*/]?=[^=].*;\s*(?://.*)?")


@dataclass(frozen=True)
class Token:
    """One token that may change, with its neighbours' kinds and text ("" at the ends)."""

    kind: str
    text: str
    start: int
    before: tuple[str, str]
    after: tuple[str, str]
    spaced: bool  # white space on both sides


def tokens(code: str, language: str = "cpp") -> list[Token]:
    """The tokens of `code` that may change: not comments, strings or directives, and only between markers."""
    if language == "r":  # comments only; the rest of R reads as C does
        code = re.sub(r"#[^\n]*", lambda m: m[0] if "EVOLVE-BLOCK" in m[0] else " " * len(m[0]), code)
    lines = code.split("\n")
    allowed, starts = allowed_lines(lines), [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    found = [(m.lastgroup or "", m[0], m.start()) for m in _TOKEN.finditer(code) if m.lastgroup != "line"]
    solid = [t for t in found if t[0] not in ("comment", "directive")]
    result, line = [], 0
    for k, (kind, text, start) in enumerate(solid):
        while starts[line + 1] <= start:
            line += 1
        if not allowed[line] or kind == "text":
            continue
        before = solid[k - 1][:2] if k else ("", "")
        after = solid[k + 1][:2] if k + 1 < len(solid) else ("", "")
        end = start + len(text)
        spaced = code[start - 1 : start].isspace() and code[end : end + 1].isspace()
        result.append(Token(kind, text, start, before, after, spaced))
    return result


def stream(
    code: str, rng: random.Random, language: str, kinds: tuple[str, ...] = KINDS["all"], tries: int = 60
) -> Iterator[Change]:
    """Random edits of `code`, without end while there are any: repeats are possible. Stops after `tries` failures in
    a row. Deterministic given `rng`."""
    if language == "yaml":
        yield from yaml_edits.stream(code, rng, kinds, tries)
        return
    found, failures = tokens(code, language), 0
    weights = [WEIGHTS[k] for k in kinds]
    while failures < tries:
        kind = rng.choices(kinds, weights)[0]
        child = _MAKERS[kind](code, found, rng)
        if child is not None and child != code and changes_syntax(code, child, language):
            failures = 0
            yield Change(child, kind)
        else:
            failures += 1


def _replace(code: str, token: Token, new: str) -> str:
    return code[: token.start] + new + code[token.start + len(token.text) :]


def _ends_value(token: tuple[str, str]) -> bool:
    """Can a value end here, so that a sign that follows is an operator between two?"""
    kind, text = token
    return kind in ("number", "text") or (kind == "name" and text not in ("return", "case", "in")) or text in (")", "]")


def _number(code: str, found: list[Token], rng: random.Random) -> str | None:
    spots = [t for t in found if t.kind == "number" and t.before[1] != "[" and t.after[1] != "]"]
    spots = [t for t in spots if _PLAIN.fullmatch(t.text)]
    if not spots:
        return None
    token = rng.choice(spots)
    match = _PLAIN.fullmatch(token.text)
    digits, suffix = match["digits"], match["suffix"]
    if digits.isdigit():
        new = str(int(digits) + whole_step(int(digits), rng))
    else:
        new = another_number(float(digits), rng)
    if new.startswith("-") and token.before[1] in ("+", "-", "*", "/", "%"):
        return _replace(code, token, f"({new}{suffix})")  # a - -1 would be a decrement
    return _replace(code, token, new + suffix)


def _swap(group: tuple[str, ...], spaced: bool = False) -> Callable[[str, list[Token], random.Random], str | None]:
    """Another operator of the group, where one stands between two values."""

    def swap(code: str, found: list[Token], rng: random.Random) -> str | None:
        spots = [
            t for t in found
            if t.kind == "operator" and t.text in group and _ends_value(t.before) and (t.spaced or not spaced)
        ]  # fmt: skip
        if not spots:
            return None
        token = rng.choice(spots)
        return _replace(code, token, rng.choice([o for o in group if o != token.text]))

    return swap


def _operator(code: str, found: list[Token], rng: random.Random) -> str | None:
    group = ("+", "-", "*", "/") if rng.random() < 0.7 else ("+=", "-=", "*=", "/=")
    return _swap(group)(code, found, rng)


def _style(name: str) -> str:
    return "upper" if name.isupper() and len(name) > 1 else "short" if len(name) == 1 else "lower"


def _name(code: str, found: list[Token], rng: random.Random) -> str | None:
    """A name that is read gives way to another that is written alike; never types, calls, members or declarations."""
    values = [
        t for t in found
        if t.kind == "name" and t.text not in _KEYWORDS and t.after[1] not in ("(", "::", "<", "[", ".", "->")
        and t.before[1] not in (".", "->", "::")
    ]  # fmt: skip
    read = [t for t in values if t.before[0] == t.after[0] == "operator" and t.after[1] not in ("=", "++", "--")]
    if not read:
        return None
    token = rng.choice(read)
    near = [t for t in values if abs(t.start - token.start) < 600 and _style(t.text) == _style(token.text)]
    others = sorted({t.text for t in near} - {token.text})
    return _replace(code, token, rng.choice(others)) if others else None


def _statement(code: str, found: list[Token], rng: random.Random) -> str | None:
    lines = code.split("\n")
    allowed = allowed_lines(lines)
    spots = [i for i, line in enumerate(lines) if allowed[i] and _ASSIGNMENT.fullmatch(line)]
    if not spots:
        return None
    i = rng.choice(spots)
    if rng.random() < 0.4:
        return "\n".join(lines[:i] + lines[i + 1 :])
    indent = len(lines[i]) - len(lines[i].lstrip())
    if i + 1 in spots and len(lines[i + 1]) - len(lines[i + 1].lstrip()) == indent:
        return "\n".join([*lines[:i], lines[i + 1], lines[i], *lines[i + 2 :]])
    return None


_MAKERS: dict[str, Callable[[str, list[Token], random.Random], str | None]] = {
    "number": _number,
    "operator": _operator,
    "compare": _swap(("<", "<=", ">", ">=", "==", "!="), spaced=True),
    "boolean": _swap(("&&", "||")),
    "name": _name,
    "statement": _statement,
}
