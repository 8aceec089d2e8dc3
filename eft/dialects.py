"""Edits of other scaffolds: what ShinkaEvolve and CodeEvolve make of a reply. `eft.edits.apply` comes here by dialect.

| dialect      | every SEARCH text must be in      | an empty SEARCH means       | rewrite                             |
|--------------|-----------------------------------|-----------------------------|-------------------------------------|
| shinka@0     | an EVOLVE block; indentation is   | lines before the last END   | first fence of the language; what is|
|              | forgiven                          |                             | outside the EVOLVE blocks is kept   |
| shinka@0.0   | same                              | text glued to the last END  | same (releases up to 0.0.7)         |
| codeevolve@0 | an EVOLVE block of the parent     | text at the block's start   | (it knows none)                     |

Both work on strings anywhere in a line, unlike OpenEvolve, which replaces whole lines. ShinkaEvolve drops white space
at the ends of all lines of the parent first, so a child differs from its parent there too. The contract is that of
`eft.edits`: never raises on what a model can write, no regular expression that backtracks.

Limits: markers that a CodeEvolve config renames are not known here; ShinkaEvolve's Wolfram and Markdown rules (a marker
line must be one whole comment) are not checked.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator

from eft.edits import Edit, Reason, Why

START, END = "EVOLVE-BLOCK-START", "EVOLVE-BLOCK-END"
Span = tuple[int, int]


def shinka(parent: str, response: str, kind: str, language: str, *, glued: bool = False) -> Edit | Reason:
    """ShinkaEvolve: `diff`, and `rewrite` for its patch types full, cross and fix. `glued`: as it inserted before the
    repair of its pull request 185."""
    return _shinka_diff(parent, response, glued) if kind == "diff" else _shinka_full(parent, response, language)


def shinka_glued(parent: str, response: str, kind: str, language: str) -> Edit | Reason:
    return shinka(parent, response, kind, language, glued=True)


# ------------------------------------------------------------------------------------------------------ shinka: diff


def _shinka_diff(parent: str, response: str, glued: bool) -> Edit | Reason:
    text, reply = _trimmed(parent), _without_marker_lines(_trimmed(response))
    blocks = list(_shinka_blocks(reply))
    if not blocks:
        return Reason(Why.NO_BLOCK)
    for search, replace in blocks:
        search, replace = (_trimmed(_without_marker_lines(half)) for half in (search, replace))
        ranges = _mutable(text)
        if not search.strip():
            if not ranges:
                return Reason(Why.UNMATCHED, "the program has no EVOLVE block to add to")
            text = _inserted(text, replace, ranges[-1][1], glued)
            continue
        found, at = _indented(search, text)
        if at < 0:
            return Reason(Why.UNMATCHED, "a SEARCH text is not in the parent")
        if not any(a <= at and at + len(found) <= b for a, b in ranges):
            return Reason(Why.UNMATCHED, "a SEARCH text lies outside the EVOLVE blocks")
        if found != search:
            replace = _indent(replace, _leading(found.split("\n", 1)[0]))
        text = f"{text[:at]}{replace}{text[at + len(found) :]}"
    if START not in text or END not in text:
        return Reason(Why.MARKERS, "the child has lost its EVOLVE markers")
    return Edit("diff", text, len(blocks), len(blocks))


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines())


_OPEN = re.compile(r"<{7}\s*SEARCH")
_DIVIDER = re.compile(r"(?<!=)={7}(?!=)")
_CLOSE = re.compile(r">{7}\s*REPLACE\s*")


def _shinka_blocks(reply: str) -> Iterator[tuple[str, str]]:
    """(SEARCH, REPLACE) texts. Markers stand on lines of their own but for white space; a half ends at the newline
    before its marker, so an empty half needs an empty line, or else it reaches to the next marker of its kind."""
    dividers = []  # (newlines before, newlines behind) of each "=======" with a newline on both sides
    for m in _DIVIDER.finditer(reply):
        before, behind = _newlines_before(reply, m.start()), _newlines_behind(reply, m.end())
        if before and behind:
            dividers.append((before, behind))
    closers = []  # (newlines before, end of the marker)
    for m in _CLOSE.finditer(reply):
        if reply[m.start() - 1 : m.start()].isspace() and (before := _newlines_before(reply, m.start())):
            closers.append((before, m.end()))
    last_divider, last_closer = [d[0][-1] for d in dividers], [c[0][-1] for c in closers]
    position = 0
    while m := _OPEN.search(reply, position):
        position = m.start() + 1
        for newline in reversed(_newlines_behind(reply, m.end())):
            found = _rest_of_block(newline + 1, dividers, last_divider, closers, last_closer)
            if found:
                (a, b), (c, d), position = found
                yield reply[a:b], reply[c:d]
                break


def _rest_of_block(begin: int, dividers: list, last_divider: list[int], closers: list, last_closer: list[int]):
    """((SEARCH's span), (REPLACE's span), end) of the block whose SEARCH text starts at `begin`, or None."""
    i = bisect_left(last_divider, begin)
    if i == len(dividers):
        return None
    before, behind = dividers[i]
    for newline in reversed(behind):
        j = bisect_left(last_closer, newline + 1)
        if j < len(closers):
            newlines, end = closers[j]
            stop = newlines[bisect_left(newlines, newline + 1)]
            return (begin, before[bisect_left(before, begin)]), (newline + 1, stop), end
    return None


def _newlines_before(text: str, at: int) -> list[int]:
    """Where the newlines are in the white space that ends at `at`."""
    begin = at
    while begin and text[begin - 1].isspace():
        begin -= 1
    return [i for i in range(begin, at) if text[i] == "\n"]


def _newlines_behind(text: str, at: int) -> list[int]:
    end = at
    while end < len(text) and text[end].isspace():
        end += 1
    return [i for i in range(at, end) if text[i] == "\n"]


_MARKER_LINE = re.compile(r"[ \t]*(?:#|//|!|<!--|\(\*)?[ \t]*EVOLVE-BLOCK-(?:START|END)[ \t]*(?:-->|\*\))?[ \t]*")


def _without_marker_lines(text: str) -> str:
    """The text without lines that are an EVOLVE marker and nothing else; what is left of them is an empty line. White
    space in front of such a line goes with it, up to the end of the line before."""
    if "EVOLVE-BLOCK-" not in text:
        return text
    kept: list[str] = []
    lines = text.split("\n")
    floor, before = 0, ""  # of the last marker: where its empty line is, and which it was
    for number, line in enumerate(lines):
        if "EVOLVE-BLOCK-" in line and _MARKER_LINE.fullmatch(line):
            this = END if END in line else START
            while len(kept) > (floor if this == before else 0) and not kept[-1].strip():
                kept.pop()
            kept.append("")
            floor, before = len(kept), this
            rest = next((i for i in range(number + 1, len(lines)) if lines[i].strip()), len(lines))
            for i in range(number + 1, rest):  # and the empty lines behind it
                lines[i] = "\0"
        elif line != "\0":
            kept.append(line)
    return "\n".join(kept)


def _mutable(text: str) -> list[Span]:
    """The spans between EVOLVE markers, in the order in which they close; nested ones are spans too."""
    found, open_ = [], []
    for m in re.finditer(r"EVOLVE-BLOCK-(START|END)", text):
        if m[1] == "START":
            open_.append(_behind_marker(text, m.end()))
        elif open_:
            found.append((open_.pop(), _before_marker(text, m.start())))
    return found


_CLOSERS, _OPENERS = ("-->", "*)"), ("#", "//", "!", "<!--", "(*")


def _behind_marker(text: str, at: int) -> int:
    """The end of a START marker: blanks behind it belong to it, and the end of its comment."""
    while at < len(text) and text[at].isspace() and text[at] not in "\r\n":
        at += 1
    return next((at + len(c) for c in _CLOSERS if text.startswith(c, at)), at)


def _before_marker(text: str, at: int) -> int:
    """The beginning of an END marker: the blanks before it and its comment sign belong to it."""
    begin = at
    while begin and text[begin - 1].isspace() and text[begin - 1] not in "\r\n":
        begin -= 1
    return next((begin - len(o) for o in _OPENERS if text.endswith(o, 0, begin)), begin)


def _inserted(text: str, payload: str, at: int, glued: bool) -> str:
    """The text with `payload` before the END marker at `at`."""
    if glued:
        return f"{text[:at]}{payload}{text[at:]}"
    if not payload:
        return text
    begin = text.rfind("\n", 0, at) + 1
    code = text[begin:at]
    if not code.strip():
        return f"{text[:begin]}{payload}\n{text[begin:]}"
    return f"{text[:begin]}{code.rstrip()}\n{payload}\n{_leading(code)}{text[at:]}"


def _leading(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _indented(search: str, text: str) -> tuple[str, int]:
    """(the text found, where): `search`, or `search` indented like the line that its first line is; ("", -1): none."""
    at = text.find(search)
    if at >= 0:
        return search, at
    first, *others = search.splitlines()
    if not first.strip():
        return "", -1
    tried: set[str] = set()
    for line in text.splitlines():
        indent = _leading(line)
        if line.strip() != first.strip() or indent in tried:
            continue
        tried.add(indent)
        wanted = "\n".join([indent + first.strip()] + _indented_lines(others, indent))
        at = text.find(wanted)
        if at >= 0:
            return wanted, at
    return "", -1


def _indented_lines(lines: list[str], indent: str) -> list[str]:
    return [indent + " " * len(_leading(line)) + line.strip() if line.strip() else "" for line in lines]


def _indent(text: str, indent: str) -> str:
    return "\n".join(_indented_lines(text.splitlines(), indent)) if text.strip() else text


# ----------------------------------------------------------------------------------------------------- shinka: rewrite

_FENCES = {
    "python": ("python", "py"), "cpp": ("cpp", "c++", "cc", "cxx"), "cuda": ("cuda", "cu"), "rust": ("rust", "rs"),
    "go": ("go", "golang"), "julia": ("julia", "jl"), "json5": ("json5", "json"), "markdown": ("markdown", "md"),
    "fortran": ("fortran", "f90", "f95", "f03", "f08"), "wolfram": ("wolfram", "mathematica", "wl", "wls"),
}  # fmt: skip


def _shinka_full(parent: str, response: str, language: str) -> Edit | Reason:
    found = (_between(response, f"```{tag}") for tag in _FENCES.get(language, (language,)))
    code = next((code for code in found if code not in (None, "none")), None)
    if code is None:
        return Reason(Why.EMPTY, "no fenced program")
    ranges = _mutable(parent)
    if not ranges:
        return Reason(Why.UNMATCHED, "the parent has no EVOLVE block")
    has_start, has_end = START in code, END in code
    if has_start and has_end:
        child = _block_by_block(parent, code, ranges)
    elif len(ranges) > 1:
        return Reason(Why.MARKERS, "several EVOLVE blocks, and the reply does not say which it means")
    else:
        child = _one_block(parent, code, ranges[0], has_start, has_end)
    if START not in child or END not in child:
        return Reason(Why.MARKERS, "the child has lost its EVOLVE markers")
    return Edit("rewrite", child, 1, 1)


def _between(text: str, opener: str) -> str | None:
    begin = text.find(opener)
    end = text.find("```", begin + len(opener)) if begin >= 0 else -1
    return text[begin + len(opener) : end].strip() if end >= 0 else None


def _block_by_block(parent: str, code: str, ranges: list[Span]) -> str:
    """The n-th EVOLVE block of the reply takes the place of the parent's n-th."""
    theirs = _mutable(code)
    parts, last = [], 0
    for i, (a, b) in enumerate(ranges):
        parts.append(parent[last:a])
        parts.append(code[theirs[i][0] : theirs[i][1]] if i < len(theirs) else parent[a:b])
        last = b
    return "".join(parts) + parent[last:]


def _one_block(parent: str, code: str, span: Span, has_start: bool, has_end: bool) -> str:
    """The parent with `code` in its one block. What the reply repeats of the text around the block is left out."""
    a, b = span
    marker = parent.rfind(START, 0, a)
    head = parent[: _before_marker(parent, marker)] if marker >= 0 else parent[:a]
    marker = parent.find(END, b)
    tail = parent[_behind_marker(parent, marker + len(END)) :] if marker >= 0 else parent[b:]
    tails = (tail, tail.rstrip("\r\n"))
    if has_start:
        code = code[_behind_marker(code, code.find(START) + len(START)) :]
        code = next((code[: -len(t)] for t in tails if t and code.endswith(t)), code)
    elif has_end:
        code = code[: _before_marker(code, code.find(END))]
        code = next((code[len(h) :] for h in (head, head.rstrip("\r\n")) if h and code.startswith(h)), code)
    elif code.startswith(head) and (t := next((t for t in tails if code.endswith(t)), None)) is not None:
        code = code[len(head) : len(code) - len(t)]
    if code and not code.startswith("\n"):
        code = "\n" + code
    if code and not code.endswith("\n"):
        code += "\n"
    return parent[:a] + code + parent[b:]


# ---------------------------------------------------------------------------------------------------------- codeevolve


def codeevolve(parent: str, response: str, kind: str, language: str) -> Edit | Reason:
    """CodeEvolve: SEARCH/REPLACE inside the EVOLVE blocks; every SEARCH text must be in a block of the parent as it was
    before the edit. There are no rewrites."""
    if kind != "diff":
        return Reason(Why.NO_BLOCK, "CodeEvolve has no full rewrites")
    sign = next((s for s in ("# ", "// ") if s + START in parent), "# ")
    start, end = sign + START, sign + END
    blocks = [(_bare(s, start, end), _bare(r, start, end)) for s, r in _codeevolve_blocks(response)]
    if not blocks:
        return Reason(Why.NO_BLOCK)
    spans = _codeevolve_spans(parent, start, end)
    if not spans:
        return Reason(Why.UNMATCHED, "the parent has no EVOLVE block")
    bodies = [parent[a:b] for a, b in spans]
    originals = list(bodies)
    homes = []
    for search, replace in blocks:
        home = next((i for i, body in enumerate(originals) if search in body), None)
        if home is None:
            return Reason(Why.UNMATCHED, "a SEARCH text is in no EVOLVE block")
        homes.append((home, search, replace))
    for home, search, replace in homes:
        bodies[home] = bodies[home].replace(search, replace, 1)
    parts, last = [], 0
    for (a, b), body in zip(spans, bodies, strict=True):
        parts += [parent[last:a], body]
        last = b
    return Edit("diff", "".join(parts) + parent[last:], len(blocks), len(blocks))


_CLOSE_ANYWHERE = re.compile(r">{7}\s*REPLACE")


def _codeevolve_blocks(reply: str) -> Iterator[tuple[str, str]]:
    position = 0
    while m := _OPEN.search(reply, position):
        middle = reply.find("=======", m.end())
        close = _CLOSE_ANYWHERE.search(reply, middle + 7) if middle >= 0 else None
        if close is None:  # nor will a later block find what is missing here
            return
        yield reply[m.end() : middle], reply[middle + 7 : close.start()]
        position = close.end()


def _bare(half: str, start: str, end: str) -> str:
    """A half of a block without the markers that a model copied along."""
    return half.strip().removeprefix(start).removesuffix(end).strip()


def _codeevolve_spans(text: str, start: str, end: str) -> list[Span]:
    """The bodies of the EVOLVE blocks, without white space at their ends."""
    spans, position = [], 0
    while (at := text.find(start, position)) >= 0:
        begin = at + len(start)
        stop = text.find(end, begin)
        if stop < 0:
            break
        position = stop + len(end)
        while begin < stop and text[begin].isspace():
            begin += 1
        while stop > begin and text[stop - 1].isspace():
            stop -= 1
        spans.append((begin, stop))
    return spans


DIALECTS: dict[str, Callable[[str, str, str, str], Edit | Reason]] = {
    "shinka@0": shinka,
    "shinka@0.0": shinka_glued,
    "codeevolve@0": codeevolve,
}
