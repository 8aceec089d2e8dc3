"""Prompt formats by name, and what can be read back from a logged prompt.

A format is the wording of a scaffold's templates: `openevolve@0.1` (0.0.x to 0.2.x, "Current performance metrics"),
`openevolve@0.4` (the wording of prompts/defaults, "Fitness"), and `eft@1`, our compact one, a template folder that is
handed to OpenEvolve. All of them keep the lines "# Current Program" and "# Task", which is what this module relies on.
How a prompt becomes tokens is the tokenizer's business (its chat template), not this module's.
"""

from __future__ import annotations

import functools
import re
from importlib import resources

from eft.edits import SEARCH

EFT_FORMAT = "eft@1"
CUSTOM_FORMAT = "custom"  # a prompt was logged, in the words of somebody's own templates

# SkyDiscover puts a label and the program's metrics between the line and the fence.
_HEADER = re.compile(
    r"^# Current Program[ \t]*\r?\n(?:[ \t]*\r?\n)*"
    r"(?:(?:[^`\n]*\n){0,6}?## Program Information\n(?:[^`\n]*\n){0,200}?)?```[^\n`]*\n", re.MULTILINE)  # fmt: skip
_TASK = re.compile(r"^# Task[ \t]*\r?$", re.MULTILINE)
_CLOSED_BEFORE_TASK = re.compile(r"\n```[ \t]*\r?\n(?:[ \t]*\r?\n)*# Task[ \t]*\r?(?:\n|\Z)")


# Other scaffolds' prompts: format -> (what precedes the program, up to its fence; what follows its fence).
_OTHERS = {
    "shinka@0": (
        re.compile(r"^# (?:Current program|Incorrect Program to Fix)\n\n[^\n`]*:\n\n```[^\n`]*\n", re.MULTILINE),
        re.compile(r"\n```\n\n(?:Here are the performance metrics of the program:|## Error Information)"),
    ),
    "codeevolve@0": (
        re.compile(r"^-+TARGET PROGRAM-+\n[ \t]*\n```[^\n`]*\n", re.MULTILINE),
        re.compile(r"\n```\nPERFORMANCE METRICS:"),
    ),
}


_SIGNS = ("# Current program\n", "# Incorrect Program to Fix\n", "TARGET PROGRAM-")


def _other_program(user: str) -> tuple[str, int, int] | None:
    """(format, begin, end) of the program in a prompt of another scaffold; None for other prompts."""
    if not any(sign in user for sign in _SIGNS):
        return None
    for name, (before, after) in _OTHERS.items():
        for header in reversed(list(before.finditer(user))):  # earlier programs, above, may be prompts themselves
            if end := after.search(user, header.end() - 1):
                return name, header.end(), max(end.start(), header.end())
    return None


# A prompt is long and asked about several times in a row, so the last few answers are kept.
@functools.lru_cache(maxsize=4)
def _header_end(user: str) -> int | None:
    """Where the last "# Current Program" header ends, behind its opening fence; looked for from the end."""
    at = user.rfind(_LINE)
    while at >= 0:
        if (at == 0 or user[at - 1] == "\n") and (header := _HEADER.match(user, at)):
            return header.end()
        at = user.rfind(_LINE, 0, at)
    return None


@functools.lru_cache(maxsize=4)
def _closing(user: str, begin: int) -> tuple[int, int] | None:
    """(start, end) of the closing fence and the "# Task" line right after it, from `begin` on."""
    end = _CLOSED_BEFORE_TASK.search(user, begin)
    return end.span() if end else None


_LINE = "# Current Program"


def current_program(user: str) -> str | None:
    """The code that the prompt asks to improve, exactly; None where the prompt shows none.

    It stands in the fence after the last "# Current Program" line and before the following "# Task"; history, artifacts
    and the program itself may hold fences of their own, so the fence's end is the one right before "# Task".
    """
    begin = _header_end(user)
    if begin is None:
        shown = _other_program(user)
        return user[shown[1] : shown[2]] if shown else None
    if end := _closing(user, begin - 1):
        return user[begin : end[0]] if end[0] >= begin else ""
    # Templates without the "# Task" line: the first fence line that closes.
    stop = user.find("\n```", begin)
    return user[begin:stop] if stop >= 0 else None


def task_part(user: str) -> str:
    """What follows the "# Task" line of the current program, "" where there is none: how the answer must look."""
    begin = _header_end(user)
    if begin is None:
        shown = _other_program(user)
        begin = shown[2] if shown else 0
    if end := _closing(user, max(begin - 1, 0)):
        return user[end[1] :]
    task = _TASK.search(user, begin)
    return user[task.end() :] if task else ""


def edit_kind(user: str) -> str:
    """The form of answer that the prompt asks for: "diff", "rewrite", or "" where it does not tell."""
    asked = task_part(user)
    if SEARCH in asked or "with a SEARCH/REPLACE block" in asked:  # ShinkaEvolve shows the form in its system message
        return "diff"
    if "```" in asked or re.search(r"\b(re-?write|complete (new )?program|fix the program)\b", asked, re.IGNORECASE):
        return "rewrite"
    return ""


def detect_format(system: str, user: str, key: str | None = None, release: str = "") -> str:
    """The name of a logged prompt's format, "" where no prompt was logged.

    `key`: the name under which the log keeps it (`diff_user`, `full_rewrite_user`, SkyDiscover's `…_user_message`).
    `release`: of the scaffold, "" where unknown; the wording decides then.
    """
    if not system and not user:
        return ""
    if key and key.endswith("_user_message"):
        return "skydiscover@0"
    stock = user.lstrip().startswith("# Current Program Information")
    if not stock and (other := _other_program(user)):
        return other[0]
    if _is_eft(user):
        return EFT_FORMAT
    if not stock:
        return CUSTOM_FORMAT
    if "Current performance metrics:" in user.split("# Program Evolution History", 1)[0]:
        return "openevolve@0.1"
    minor = re.match(r"0\.(\d+)", release)
    return f"openevolve@0.{minor[1]}" if minor and int(minor[1]) >= 2 else "openevolve@0.4"


_THOUGHT = re.compile(r"\s*<(think|thinking|reasoning)>(.*?)</\1>", re.DOTALL)


def inline_reasoning(response: str) -> str:
    """The reasoning that a model wrote into its reply, in front of the answer; "" where there is none. The reply itself
    stays as it was logged: that is what the scaffold applied."""
    return split_thought(response)[0]


def split_thought(response: str) -> tuple[str, str]:
    """(reasoning, answer) of a reply, without the line breaks between them; ("", the reply) where no reasoning was
    written into it."""
    found = _THOUGHT.match(response) if "</" in response else None
    return (found[2].strip(), response[found.end() :].lstrip("\n")) if found else ("", response)


@functools.cache
def _eft_tasks() -> tuple[str, ...]:
    """The fixed words after "# Task" in our own templates, up to the first field that a search fills in."""
    folder = resources.files("eft") / "templates" / "eft_1"
    found = []
    for name in ("diff_user.txt", "full_rewrite_user.txt"):
        file = folder / name
        if file.is_file():
            tail = file.read_text(encoding="utf-8").rpartition("# Task\n")[2]
            found.append(re.split(r"(?<!\{)\{(?!\{)", tail)[0].replace("{{", "{").replace("}}", "}").strip())
    return tuple(t for t in found if t)


def _is_eft(user: str) -> bool:
    asked = task_part(user).lstrip()
    return any(asked.startswith(fixed) for fixed in _eft_tasks())
