"""Programs as token sets: what near duplicates and leaks are found by. No language is parsed: broken code is code."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

_COMMENT = re.compile(r"#[^\n]*|//[^\n]*|/\*.*?\*/", re.DOTALL)
_BEGIN = re.compile(r"#[^\n]*|//[^\n]*|/\*")
_TOKEN = re.compile(r"\.?[A-Za-z_]\w*|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+|[^\s\w]")
KEPT = frozenset(
    "and as assert async await break case class continue def del do elif else except finally for from global if import "
    "in is lambda match nonlocal not or pass raise return try while with yield None True False "
    "abs all any enumerate float int len list max min range reversed round set sorted str sum tuple zip "
    "auto bool char const double include long namespace new public private sizeof static struct switch template this "
    "typename unsigned using void std vector fn let mut impl pub".split()
)
WIDTH = 8  # tokens of a shingle


def tokens(code: str) -> list[str]:
    """The tokens of a program in any language, without comments."""
    return _TOKEN.findall(uncommented(code))


def uncommented(code: str) -> str:
    """`code` with a space for every comment. A `/*` that is never closed is none. In time linear in its length."""
    if code.rfind("/*") < code.rfind("*/"):  # each finds its end, so the regular expression never looks in vain
        return _COMMENT.sub(" ", code)
    parts, place, last = [], 0, code.rfind("*/")
    while found := _BEGIN.search(code, place):
        begin, end = found.span()
        if found[0] == "/*" and end > last:
            parts.append(code[place:end])
        else:
            end = code.index("*/", end) + 2 if found[0] == "/*" else end
            parts += [code[place:begin], " "]
        place = end
    return "".join([*parts, code[place:]])


def nameless(code: str) -> list[str]:
    """The same with every name that the program may have chosen itself as "I": a renamed copy has the same tokens.
    Keywords, common built-ins and attributes (`.append`) stay."""
    return [t if not (t[0].isalpha() or t[0] == "_") or t in KEPT else "I" for t in tokens(code)]


@lru_cache(maxsize=1 << 16)
def _number(token: str) -> int:
    import hashlib

    return int.from_bytes(hashlib.blake2b(token.encode("utf-8", "replace"), digest_size=8).digest(), "little")


def shingles(words: list[str], width: int = WIDTH) -> Any:
    """The distinct runs of `width` tokens, hashed: a sorted uint64 array (one run of all, where there are fewer)."""
    import numpy as np

    if not words:
        return np.empty(0, np.uint64)
    values = np.fromiter(map(_number, words), np.uint64, len(words))
    width = min(width, len(values))
    count = len(values) - width + 1
    mixed = np.zeros(count, np.uint64)
    with np.errstate(over="ignore"):
        for i in range(width):
            mixed = (mixed ^ values[i : i + count]) * np.uint64(0x9E3779B97F4A7C15)
            mixed ^= mixed >> np.uint64(29)
    return np.unique(mixed)


def edit_words(parent: str, child: str) -> list[str]:
    """What an edit takes away and puts in, as words for a MinHash: the tokens of every changed line, three at a time,
    marked - or +. White space and comments do not count."""
    before, after = _lines(parent), _lines(child)
    words = []
    for mark, lines in (("-", before.keys() - after.keys()), ("+", after.keys() - before.keys())):
        for line in lines:
            found = _TOKEN.findall(line)
            words += [mark + " ".join(found[i : i + 3]) for i in range(max(1, len(found) - 2))]
    return words


def _lines(code: str) -> dict[str, None]:
    return dict.fromkeys(" ".join(line.split()) for line in uncommented(code).split("\n") if line.strip())
