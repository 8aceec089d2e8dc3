"""What a routing policy is told of a prompt: plain facts about its text, and what is known of the models in general.

Nothing here depends on how any model answered that prompt. `scores` and `costs` are means over the rows that searches
see, for those rows and for the hidden ones alike.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import product
from typing import Any

PROMPT_CHARACTERS = 4000  # of a prompt that a policy is given; the facts are about the whole

_CHOICE = re.compile(r"^\s*\(?[A-J][).:]\s", re.MULTILINE)
_CODE = re.compile(
    r"```|\bdef \w|\bfunction\b|\bclass \w+[:({]|\breturn\b|\bpython\b|\bjava(?:script)?\b|\bsql\b|#include|\bint main\b"
    r"|\bimport \w|[;{}]\s*$|\bcode\b|\bregex\b|\balgorithm\b",
    re.IGNORECASE | re.MULTILINE,
)
_MATH = re.compile(
    r"\\(?:frac|sum|int|sqrt|cdot)|\$[^$\n]+\$|\b(?:solve|equation|how many|how much|how long|calculate|percent|math|total|"
    r"sum of|product of|probability|derivative|integral|matrix|polynomial|triangle)\b|\d\s*[-+*/=^]\s*\d",
    re.IGNORECASE,
)


def facts(prompt: str) -> dict[str, Any]:
    """Facts about one prompt, all numbers but `prompt` itself.

    length, words, lines   of the whole prompt
    choices                lines that offer an answer: "A) …"
    digits, capitals       share of its characters
    foreign                share of its letters that are not a-z
    questions              question marks
    code, math             places that look like program text, like mathematics
    """
    count = max(len(prompt), 1)
    letters = [c for c in prompt if c.isalpha()]
    return {
        "prompt": prompt[:PROMPT_CHARACTERS],
        "length": len(prompt),
        "words": len(prompt.split()),
        "lines": prompt.count("\n") + 1,
        "choices": len(_CHOICE.findall(prompt)),
        "digits": round(sum(c.isdigit() for c in prompt) / count, 4),
        "capitals": round(sum(c.isupper() for c in prompt) / count, 4),
        "foreign": round(sum(not c.isascii() for c in letters) / max(len(letters), 1), 4),
        "questions": prompt.count("?") + prompt.count("？"),
        "code": len(_CODE.findall(prompt)),
        "math": len(_MATH.findall(prompt)),
    }


_PIECES = (
    "\nA) one\nB) two\nC) three\nD) four\n",
    "\n```python\nimport json\ndef f(x):\n    return x\n```\n",
    " Solve the equation 3 * 4 = 12: how many percent?",
    " \u8bf7\u7528\u4e2d\u6587\u56de\u7b54\uff1f" * 8,
    " some plain words" * 800,
)


@cache
def made_up() -> tuple[dict[str, Any], ...]:
    """Facts about 32 made-up prompts: every set of choices, code, mathematics, a foreign script and length, from an empty
    prompt on. A policy must answer them, too: the rows that search sees may never reach one of its branches, and what
    fails there fails on the first prompt of a kind that nobody has recorded."""
    chosen = product((False, True), repeat=len(_PIECES))
    return tuple(facts("".join(p for p, on in zip(_PIECES, some, strict=True) if on)) for some in chosen)
