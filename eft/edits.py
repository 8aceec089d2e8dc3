"""Edits: what a scaffold makes of a model's reply, one dialect per scaffold release.

Contract: `apply(parent, response, kind=…, dialect=…)` gives an `Edit` whose `child` is, character for character, the
program that OpenEvolve of that release would have stored, or a `Reason` (which is falsy) where it would have refused
the reply. It never raises on anything that a model can write, and takes time linear in reply and program (a reply with
a thousand blocks: linear for each block) — no regular expression here can backtrack.

Dialects differ in what they forgive:

| dialect                | SEARCH not found        | unchanged child | stray markers | blanks at line ends | CRLF     |
|------------------------|-------------------------|-----------------|---------------|---------------------|----------|
| openevolve@0.1 … 0.3   | skipped                 | stored          | ignored       | must match          | no block |
| openevolve@0.4.0       | failure if none matches | failure         | failure       | second pass ignores | failure  |
| openevolve@0.4 (0.4.1) | failure if none matches | failure         | failure       | second pass ignores | accepted |
| skydiscover@0          | failure if none matches | failure (diffs) | ignored       | must match          | no block |
| shinka@0, codeevolve@0 | see eft/dialects.py     |                 |               |                     |          |

Two settings of a run change what becomes of a reply, and are arguments: `enforce` (`enforce_evolve_blocks`, 0.4: what
stands outside the EVOLVE blocks is put back) and `described` (changes-description mode, 0.2.26: some of the blocks edit
a description that is kept beside the program).

Limits: `max_code_length` is not replayed; of a description only the blocks for the program are.
"""

from __future__ import annotations

import difflib
import enum
import re
from dataclasses import dataclass
from typing import Literal

from eft.errors import UsageError, nearest
from eft.records import code_hash
from eft.syntax import changes_syntax, parse_python

__all__ = ["Edit", "Reason", "Why", "apply", "changes_syntax", "dialect_for", "find_blocks", "parse_python",
           "render_diff", "render_rewrite"]  # fmt: skip

Kind = Literal["diff", "rewrite"]

SEARCH, DIVIDER, REPLACE = "<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE"
DEFAULT_DIALECT = "openevolve@0.4"


@dataclass(frozen=True)
class Dialect:
    """What a family of releases forgives. `markers`: "inline" finds them anywhere, "line" on lines of their own."""

    strict: bool  # an edit that changes nothing is a failure
    trims: bool  # a second pass looks for SEARCH text without regard to white space at line ends
    markers: Literal["inline", "checked", "line"]
    fence_tags: bool  # the fallback fence drops its language tag; the first fence may end in blanks or CR
    same_rewrites: bool = False  # a rewrite that is the parent is stored, whatever `strict` says of diffs


_LENIENT = Dialect(strict=False, trims=False, markers="inline", fence_tags=False)
DIALECTS = {
    "openevolve@0.1": _LENIENT,
    "openevolve@0.2": _LENIENT,
    "openevolve@0.3": _LENIENT,
    "openevolve@0.4.0": Dialect(strict=True, trims=True, markers="checked", fence_tags=False),
    "openevolve@0.4": Dialect(strict=True, trims=True, markers="line", fence_tags=True),
    "skydiscover@0": Dialect(strict=True, trims=False, markers="inline", fence_tags=False, same_rewrites=True),
}


class Why(enum.StrEnum):
    """Why a reply is not an edit."""

    NO_BLOCK = "no_block"  # no SEARCH/REPLACE block in a diff reply
    UNMATCHED = "unmatched"  # no SEARCH text was found in the parent
    NO_OP = "no_op"  # the child is the parent
    EMPTY = "empty"  # a rewrite without code
    MARKERS = "markers"  # a marker line that belongs to no block
    OUTSIDE = "outside"  # EVOLVE-BLOCK markers lost, or nothing but edits outside the blocks, where that is enforced
    PATTERN = "pattern"  # the run's own diff pattern takes too long on this reply


@dataclass(frozen=True)
class Edit:
    """A reply that was applied. `blocks`: SEARCH/REPLACE blocks in it (1 for a rewrite); `applied`: those found."""

    kind: Kind
    child: str
    blocks: int
    applied: int


@dataclass(frozen=True)
class Reason:
    """A reply that the scaffold refuses, and why. Falsy, so `if edit := apply(…):` reads well."""

    why: Why
    detail: str = ""

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"{self.why}: {self.detail}" if self.detail else str(self.why)


def dialect_for(release: str) -> str:
    """The dialect that replays an OpenEvolve release ("0.4.0", "0.2.14", "0.3"); unknown or newer: the newest one."""
    numbers = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", release)
    if not numbers:
        return DEFAULT_DIALECT
    major, minor, patch = int(numbers[1]), int(numbers[2]), numbers[3]
    if (major, minor) >= (0, 4):
        return "openevolve@0.4.0" if (major, minor, patch) == (0, 4, "0") else DEFAULT_DIALECT
    return f"openevolve@0.{max(minor, 1)}"


def apply(
    parent: str, response: str, *, kind: Kind, dialect: str = DEFAULT_DIALECT, language: str = "python",
    diff_pattern: str | None = None, enforce: bool = False, described: bool = False,
) -> Edit | Reason:  # fmt: skip
    """What the scaffold makes of `response` to a prompt that showed `parent`.

    `language`: the scaffold's configured language (names the fence of a rewrite). `diff_pattern`: the run's own regular
    expression with two groups, where its config sets one. `enforce`, `described`: the run's settings, see above.
    Raises UsageError only for a bad dialect or pattern.
    """
    rules = DIALECTS.get(dialect)
    if rules is None:
        from eft.dialects import DIALECTS as scaffolds  # it needs the words of this module

        if dialect in scaffolds and kind in ("diff", "rewrite"):
            return scaffolds[dialect](parent, response, kind, language)
        raise UsageError(f"unknown edit dialect '{dialect}'", way_out=nearest(dialect, DIALECTS))
    if kind == "rewrite":
        edit = _apply_rewrite(parent, response, rules, language)
    elif kind == "diff":
        edit = _apply_diff(parent, response, rules, diff_pattern, described)
    else:
        raise UsageError(f"unknown kind of edit '{kind}'", way_out="valid: diff, rewrite")
    return _inside_blocks(parent, edit) if edit and enforce else edit


def _apply_diff(parent: str, response: str, rules: Dialect, pattern: str | None, described: bool) -> Edit | Reason:
    blocks = _custom_blocks(response, pattern) if pattern else find_blocks(response, rules)
    if isinstance(blocks, Reason):
        return blocks
    if not blocks:
        return Reason(Why.NO_BLOCK)
    if described:  # blocks whose SEARCH text is not in the parent as it was are for the description, or for nobody
        whole = f"\n{parent}\n"
        ours = [(search, replace) for search, replace in blocks if f"\n{search}\n" in whole]
        child, applied = _apply_blocks(parent, ours, rules)
        return Edit("diff", child, len(blocks), applied)
    child, applied = _apply_blocks(parent, blocks, rules)
    if rules.strict and applied == 0:
        return Reason(Why.UNMATCHED, f"none of {len(blocks)} SEARCH blocks is in the parent")
    if rules.strict and child == parent:
        return Reason(Why.NO_OP)
    return Edit("diff", child, len(blocks), applied)


# --------------------------------------------------------------------------------------------------------- diff: parse


def find_blocks(response: str, rules: Dialect) -> list[tuple[str, str]] | Reason:
    """The (SEARCH, REPLACE) texts of a reply, in order, white space at their ends removed; or why there can be none."""
    if rules.markers == "line":
        return _line_blocks(response)
    blocks, spans = _inline_blocks(response)
    if rules.markers == "checked":
        # 0.4.0: each block must hold its three marker lines and nothing outside may look like one.
        cursor = 0
        for start, end in spans:
            inside = [m[1] for m in _MARKER_LINE.finditer(response[start:end])]
            if _MARKER_LINE.search(response[cursor:start]) or inside != [SEARCH, DIVIDER, REPLACE]:
                return Reason(Why.MARKERS, "a marker line belongs to no block")
            cursor = end
        if _MARKER_LINE.search(response[cursor:]):
            return Reason(Why.MARKERS, "a marker line belongs to no block")
    return blocks


_MARKER_LINE = re.compile(rf"^[ \t]*({SEARCH}|{DIVIDER}|{REPLACE})[ \t]*\r?$", re.MULTILINE)


def _inline_blocks(response: str) -> tuple[list[tuple[str, str]], list[tuple[int, int]]]:
    """Blocks wherever the markers stand, even inside a line, leftmost and shortest first; and their (start, end)."""
    blocks, spans, position = [], [], 0
    while True:
        start = response.find(SEARCH + "\n", position)
        middle = response.find(DIVIDER + "\n", start + len(SEARCH) + 1) if start >= 0 else -1
        end = response.find(REPLACE, middle + len(DIVIDER) + 1) if middle >= 0 else -1
        if end < 0:  # what is missing here is missing for every later start as well
            return blocks, spans
        search = response[start + len(SEARCH) + 1 : middle]
        replace = response[middle + len(DIVIDER) + 1 : end]
        blocks.append((search.rstrip(), replace.rstrip()))
        position = end + len(REPLACE)
        spans.append((start, position))


def _line_blocks(response: str) -> list[tuple[str, str]] | Reason:
    """Blocks whose markers have lines of their own; the markers of the whole reply must come in threes, in order."""
    order, halves, begin, expected = (SEARCH, DIVIDER, REPLACE), [], 0, 0
    for marker in _MARKER_LINE.finditer(response):
        if marker[1] != order[expected]:
            return Reason(Why.MARKERS, f"'{marker[1]}' where '{order[expected]}' was due")
        if expected:
            halves.append(response[begin : marker.start()].rstrip())
        begin, expected = marker.end() + 1, (expected + 1) % 3
    if expected:
        return Reason(Why.MARKERS, f"the reply ends where '{order[expected]}' was due")
    return list(zip(halves[0::2], halves[1::2], strict=True))


PATTERN_S = 2.0  # seconds that a run's own pattern may take on one reply: such patterns can backtrack without end


def _custom_blocks(response: str, pattern: str) -> list[tuple[str, str]] | Reason:
    """Blocks by a run's own `diff_pattern`. Raises UsageError where it is no pattern with two groups."""
    import regex  # like `re`, and can be told to give up

    try:
        compiled = regex.compile(pattern, regex.DOTALL)
    except regex.error as e:
        raise UsageError("the diff pattern is not a regular expression", where=pattern, why=str(e)) from None
    if compiled.groups < 2:
        raise UsageError("the diff pattern needs two groups: SEARCH text and REPLACE text", where=pattern)
    try:
        found = compiled.finditer(response, timeout=PATTERN_S)
        return [((m[1] or "").rstrip(), (m[2] or "").rstrip()) for m in found]
    except TimeoutError:
        return Reason(Why.PATTERN, f"no end of it within {PATTERN_S:g} s")


# --------------------------------------------------------------------------------------------------------- diff: apply


def _apply_blocks(parent: str, blocks: list[tuple[str, str]], rules: Dialect) -> tuple[str, int]:
    """Apply blocks one by one to the evolving text; each replaces its first whole-line match. (child, applied)"""
    # A newline at either end turns "these whole lines" into a plain substring, which `find` looks for in linear time.
    text, trimmed, applied = f"\n{parent}\n", None, 0
    for search, replace in blocks:
        at = text.find(f"\n{search}\n")
        length = len(search)
        if at < 0 and rules.trims:
            if trimmed is None:
                trimmed = "\n".join(line.rstrip() for line in text.split("\n"))
            wanted = "\n".join(line.rstrip() for line in search.split("\n"))
            found = trimmed.find(f"\n{wanted}\n")
            if found >= 0:
                line = trimmed.count("\n", 0, found)
                at = _line_end(text, line)
                length = _line_end(text, line + search.count("\n") + 1) - at - 1
        if at < 0:
            continue
        text = f"{text[: at + 1]}{replace}{text[at + 1 + length :]}"
        trimmed, applied = None, applied + 1
    return text[1:-1], applied


def _line_end(text: str, line: int) -> int:
    """The offset of the newline that ends line number `line` (from 0)."""
    return sum(map(len, text.split("\n", line + 1)[: line + 1])) + line


# ------------------------------------------------------------------------------------------------------------ rewrite


def _apply_rewrite(parent: str, response: str, rules: Dialect, language: str) -> Edit | Reason:
    """The whole program in the first fence of the language, else in the first fence, else the reply as it stands."""
    child = _fenced(response, language, rules)
    if not child:
        return Reason(Why.EMPTY)
    if rules.strict and not rules.same_rewrites and child == parent:
        return Reason(Why.NO_OP)
    return Edit("rewrite", child, 1, 1)


_TAG_LINE = re.compile(r"[^\s`]*[ \t]*\r?\n")
_BLANKS_TO_LINE_END = re.compile(r"[ \t]*\r?\n")


def _fenced(response: str, language: str, rules: Dialect) -> str:
    """The code of a rewrite. A fence counts only when it is closed; "```" in the code ends it (as it does there)."""
    opener, position = f"```{language}", 0
    while (at := response.find(opener, position)) >= 0:
        after = at + len(opener)
        head = _BLANKS_TO_LINE_END.match(response, after) if rules.fence_tags else None
        begin = head.end() if head else (after + 1 if response.startswith("\n", after) else -1)
        if begin >= 0:
            end = response.find("```", begin)
            if end < 0:  # nor can a later opener be closed: it would have closed this one
                break
            return response[begin:end].strip()
        position = at + 1
    at = response.find("```")
    if at >= 0:
        begin = at + 3
        if rules.fence_tags and (head := _TAG_LINE.match(response, begin)):
            begin = head.end()
        end = response.find("```", begin)
        if end >= 0:
            return response[begin:end].strip()
    return response


# ------------------------------------------------------------------------------------------------------ EVOLVE blocks


_EVOLVE_MARKER = re.compile(r"\W*EVOLVE-BLOCK-(START|END)\b|.*?# EVOLVE-BLOCK-(START|END)")


def _inside_blocks(parent: str, edit: Edit) -> Edit | Reason:
    """The edit with everything outside the parent's EVOLVE blocks as it was. A parent without well-formed blocks is
    open everywhere."""
    before = _regions(parent)
    if before is None or len(before) < 2:
        return edit
    after = _regions(edit.child)
    if after is None or len(after) != len(before):
        return Reason(Why.OUTSIDE, "the EVOLVE-BLOCK markers were changed or removed")
    # Regions alternate: outside, block, outside, …; the marker lines belong to the outside.
    lines = [line for k, (old, new) in enumerate(zip(before, after, strict=True)) for line in (new if k % 2 else old)]
    child = "\n".join(lines)
    if child == parent != edit.child:
        return Reason(Why.OUTSIDE, "all edits were outside the EVOLVE blocks")
    return Edit(edit.kind, child, edit.blocks, edit.applied)


def _regions(code: str) -> list[list[str]] | None:
    """The lines outside and inside EVOLVE blocks, in turn; None where the markers are nested or unmatched."""
    regions: list[list[str]] = [[]]
    for line in code.split("\n"):
        marker = _EVOLVE_MARKER.match(line)
        if marker is None:
            regions[-1].append(line)
        elif ("START" in marker.groups()) != bool(len(regions) % 2):
            return None
        elif "START" in marker.groups():
            regions[-1].append(line)
            regions.append([])
        else:
            regions.append([line])
    return regions if len(regions) % 2 else None


# -------------------------------------------------------------------------------------------------------------- render


def render_diff(parent: str, child: str, *, dialect: str = DEFAULT_DIALECT) -> str:
    """A reply of SEARCH/REPLACE blocks, as small as they can be, that turns `parent` into `child` under `dialect`.

    `apply` gives `child` back exactly, or, where the format cannot say it (halves lose white space at their ends), up
    to white space at line ends and at the ends of the program. Raises ValueError where no reply can say the change:
    the programs are the same to that degree, or their lines look like markers.
    """
    blocks = _minimal_blocks(parent.split("\n"), child.split("\n"))
    fallback = None
    for candidate in (blocks, [(parent, child)]):
        if not candidate:
            continue
        reply = "\n\n".join(f"{SEARCH}\n{s}\n{DIVIDER}\n{r}\n{REPLACE}" for s, r in candidate)
        edit = apply(parent, reply, kind="diff", dialect=dialect)
        if edit and edit.child == child:
            return reply
        if edit and fallback is None and code_hash(edit.child) == code_hash(child) != code_hash(parent):
            fallback = reply
    if fallback is None:
        raise ValueError("no SEARCH/REPLACE reply can say this change")
    return fallback


def render_rewrite(child: str, language: str = "python") -> str:
    """A full-rewrite reply; `apply` gives `child` back up to white space at its ends. ValueError for a fence in it."""
    if "```" in child or not child.strip():
        raise ValueError("a program that is empty or holds a fence cannot be sent as a full rewrite")
    return f"```{language}\n{child.strip()}\n```"


Hunk = tuple[int, int, int, int]  # parent lines [i1, i2) become child lines [j1, j2)


def _minimal_blocks(parent: list[str], child: list[str]) -> list[tuple[str, str]] | None:
    """One block per changed region, with just the context that makes it unique and expressible; None: impossible."""
    matcher = difflib.SequenceMatcher(None, parent, child, autojunk=False)
    todo: list[Hunk] = [(i1, i2, j1, j2) for tag, i1, i2, j1, j2 in matcher.get_opcodes() if tag != "equal"]
    done: list[Hunk] = []
    while todo:
        hunk = todo.pop(0)
        above = hunk[0] - (done[-1][1] if done else 0)
        below = (todo[0][0] if todo else len(parent)) - hunk[1]
        wide = _widen(parent, child, hunk, above, below)
        if wide:
            done.append(wide)
        elif todo:  # no unambiguous place of its own: one block together with its neighbour
            todo[0] = (hunk[0], todo[0][1], hunk[2], todo[0][3])
        elif done:
            before = done.pop()
            todo = [(before[0], hunk[1], before[2], hunk[3])]
        else:
            return None
    return [("\n".join(parent[i1:i2]), "\n".join(child[j1:j2])) for i1, i2, j1, j2 in done]


def _widen(parent: list[str], child: list[str], hunk: Hunk, above: int, below: int) -> Hunk | None:
    """The hunk with the fewest context lines (of `above` and `below` available) that a block can say unambiguously."""
    i1, i2, j1, j2 = hunk
    for context in range(above + below + 1):
        for down in sorted(range(max(0, context - above), min(below, context) + 1), key=lambda d: abs(2 * d - context)):
            up = context - down
            wide = (i1 - up, i2 + down, j1 - up, j2 + down)
            if _expressible(parent[wide[0] : wide[1]]) and _expressible(child[wide[2] : wide[3]]):
                search = "\n".join(parent[wide[0] : wide[1]])
                head = "".join(f"{line}\n" for line in child[: wide[2]])  # blocks above have been applied by then
                tail = "\n".join(parent[wide[0] :])
                if f"\n{head}{tail}\n".find(f"\n{search}\n") == len(head):
                    return wide
    return None


def _expressible(half: list[str]) -> bool:
    """Can these lines be one half of a block? Its end must not be white space, which the parser strips."""
    return bool(half) and half[-1] != "" and half[-1] == half[-1].rstrip()
