"""What a prompt tells about recent edits, and which edits follow from it: a memory for the model-free mutator.

The `eft@1` format lists edits with their outcomes (eft/templates/eft_1): an edit of one number that was kept points
in a direction (go on: half, as far, twice as far), one that made things worse points in the other. OpenEvolve's own
formats are read as far as their outcome words say something.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from eft.mutators.ast_edits import format_number
from eft.prompts import current_program

_CHANGE = re.compile(
    r"Change \d+: '(?P<old>[^\n]*?)' to '(?P<new>[^\n]*?)'(?=\s*(?:\||$|, (?:low|high)\b))", re.MULTILINE
)
_SCORE = re.compile(r"^Score:\s*(-?\d+(?:\.\d+)?(?:e-?\d+)?)", re.MULTILINE)
_LINE_SCORE = re.compile(r"^- (-?\d+(?:\.\d+)?(?:e-?\d+)?)\b[^|]*\|")
_OUTCOME = re.compile(r"\|\s*(improved|worse|same)\b")
_ATTEMPT = re.compile(r"^- Outcome: (\w+)", re.MULTILINE)
_NUMBER = re.compile(r"(?<![\w.])-?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?(?![\w.])")


@dataclass(frozen=True)
class Past:
    """One edit from the history: source lines without indentation, and what it did to its parent's score."""

    old: str
    new: str
    outcome: str  # improved, worse, same, or "" where the prompt does not say


def read(user: str) -> list[Past]:
    """The single-line edits that the prompt lists, in its order."""
    program = current_program(user)
    text = user if program is None else user[: user.rfind("# Current Program")]
    score = _SCORE.search(text)
    now = float(score[1]) if score else None
    blocks = text.split("### Attempt") if "### Attempt" in text else re.split(r"\n(?=- )", text)
    found = []
    for block in blocks:
        changes = list(_CHANGE.finditer(block))
        if len(changes) != 1 or "Change 2:" in block:  # the outcome of several changes belongs to none of them
            continue
        change = changes[0]
        outcome, own, attempt = _OUTCOME.search(block), _LINE_SCORE.match(block.lstrip("\n")), _ATTEMPT.search(block)
        word = ""
        if outcome:
            word = outcome[1]
        elif own and now is not None:
            # Another program's score: only a lower one says something about the edit that made it.
            word = "worse" if float(own[1]) < now else ""
        elif attempt:
            word = {"Improvement": "improved", "Regression": "worse"}.get(attempt[1], "")
        found.append(Past(change["old"].strip(), change["new"].strip(), word))
    return found


def follow(code: str, allowed: list[bool], past: list[Past]) -> list[tuple[str, str]]:
    """Children of `code` that go on where an edit improved, or the other way where it did not, as (name, child).

    Names: cont (go on), opp (the opposite), shrink (the same way, a quarter as far). Edits of one number only, and
    only where the program still has that line, whatever its number is by now (also where the program is the one that
    the edit made worse); nothing that the history has tried already. The order: all of an edit before the next one.
    """
    lines = code.split("\n")
    tried = {(edit.old, edit.new) for edit in past}
    children: list[tuple[str, str]] = []
    for edit in past:
        slot = _single_number(edit.old, edit.new)
        if slot is None or edit.outcome not in ("improved", "worse"):
            continue
        before, a, b, after = slot
        for i, line in enumerate(lines):
            here = _current(line.strip(), before, after) if i < len(allowed) and allowed[i] else None
            if here is None:
                continue
            step, value = b - a, float(here)
            if edit.outcome == "improved":
                base = b if value in (a, b) else value
                goals = [("cont", base + step), ("cont", base + 2 * step), ("cont", base + step / 2)]
            else:
                base = a if value in (a, b) else value
                goals = [("opp", base - step), ("opp", base - step / 2), ("shrink", base + step / 4)]
            indent = line[: len(line) - len(line.lstrip())]
            for name, goal in goals:
                new = f"{indent}{before}{_moved(here, goal - value)}{after}"
                if new != line and (line.strip(), new.strip()) not in tried:
                    children.append((name, "\n".join(lines[:i] + [new] + lines[i + 1 :])))
            break
    return children


def _moved(text: str, move: float) -> str:
    """The number in `text`, moved; whole numbers stay whole where the move is whole."""
    move = float(f"{move:.12g}")  # 0.2 - 0.1 is not quite 0.1
    if text.lstrip("-").isdigit() and move.is_integer():
        return str(int(text) + int(move))
    return format_number(float(text) + move, move)


def _single_number(old: str, new: str) -> tuple[str, float, float, str] | None:
    """(text before, old number, new number, text after) where two lines differ in exactly one number."""
    a, b = list(_NUMBER.finditer(old)), list(_NUMBER.finditer(new))
    if len(a) != len(b) or _NUMBER.split(old) != _NUMBER.split(new):
        return None
    different = [(x, y) for x, y in zip(a, b, strict=True) if float(x[0]) != float(y[0])]
    if len(different) != 1:
        return None
    x, y = different[0]
    return old[: x.start()], float(x[0]), float(y[0]), old[x.end() :]


def _current(line: str, before: str, after: str) -> str | None:
    """The number that stands between `before` and `after` on this line, as it is written."""
    if not line.startswith(before) or not line.endswith(after) or len(line) <= len(before) + len(after):
        return None
    middle = line[len(before) : len(line) - len(after)]
    return middle if _NUMBER.fullmatch(middle) else None
