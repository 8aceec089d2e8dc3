"""Redact: keys, tokens, passwords and home folders do not belong into a training set.

Every text column of a row is redacted in the same way, so that an edit still fits its program: a secret that one of
them shows goes from all, in whatever form it stands there (printed by the program, half of it in a diff). A secret
becomes `<SECRET>`, a home folder `/home/user`. What is looked for are forms that are unmistakable; a password that
looks like a word is not found. Redacting twice changes nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

SECRET, HOME = "<SECRET>", "/home/user"
TEXTS = ("prompt_system", "prompt_user", "response", "reasoning", "parent_code", "child_code", "parent_artifacts",
         "child_artifacts", "parent_metrics", "child_metrics", "sources")  # fmt: skip

_TELLING = r"\\?[\"']? ?(?:: ?[A-Za-z]{1,12} ?=|[:=]) ?\\?[\"']"  # between a name and its quoted value, in JSON too
_SECRETS = {
    "private_key": r"-----BEGIN [A-Z ]{0,20}PRIVATE KEY(?: BLOCK)?-----.{0,8000}?"
                   r"-----END [A-Z ]{0,20}PRIVATE KEY(?: BLOCK)?-----",
    "hub_token": r"\bhf_[A-Za-z0-9]{30,}",
    "github_token": r"\bgh[opsur]_[A-Za-z0-9]{36,}|\bgithub_pat_[A-Za-z0-9_]{50,}|\bglpat-[A-Za-z0-9_-]{20,}",
    "api_key": r"\bsk-(?=[A-Za-z_-]{0,64}\d)(?:[a-z]+-){0,2}[A-Za-z0-9_-]{20,}|\bAIza[0-9A-Za-z_-]{35}"
               r"|\bxox[abprs]-[A-Za-z0-9-]{10,}",
    "aws_key": r"\bA(?:KIA|SIA)[0-9A-Z]{16}\b",
    "web_token": r"\beyJ[A-Za-z0-9_-]{10,200}\.eyJ[A-Za-z0-9_-]{10,4000}\.[A-Za-z0-9_-]{10,}",
    "bearer": r"\b[Bb]earer +(?=[A-Za-z._~+/-]{0,64}\d)[A-Za-z0-9._~+/-]{20,}=*",
    # a quoted value of letters and digits behind a telling name
    "assigned": rf"(?i)(?<=key|ret|ken|ord)(?P<before>{_TELLING})(?=[^\"'\s]{{0,64}}\d)(?=[^\"'\s]{{0,64}}[a-z])"
                r"(?P<value>[\w./+-]{16,128}=*)(?P<after>\\?[\"'])",
}  # fmt: skip
_HOME = re.compile(
    r"(?:/home|/Users)/(?!user(?![\w.-]))[\w.-]+|\b[A-Z]:(?:\\\\|\\|/)Users(?:\\\\|\\|/)[\w.-]+"
)
_FOUND = {kind: re.compile(pattern, re.DOTALL) for kind, pattern in _SECRETS.items()}
# A cheap test that every match above passes (RE2's syntax: Arrow runs it over whole columns).
HINT = (r"PRIVATE KEY|hf_[A-Za-z0-9]{30}|gh[opsur]_|github_pat_|glpat-|sk-|AIza|xox[abprs]-|AKIA|ASIA|[Bb]earer |eyJ"
        rf"|(?i:key|ret|ken|ord){_TELLING}[\w./+-]{{16}}|/home/|/Users/|\\Users")  # fmt: skip
_HINT = re.compile(HINT)


def redact(text: str, counts: Counter[str] | None = None) -> str:
    """`text` without secrets and home folders; `counts` is told how many of each kind there were."""
    if not _HINT.search(text):
        return text
    for kind, pattern in _FOUND.items():
        text, found = pattern.subn(_assigned if kind == "assigned" else SECRET, text)
        if counts is not None and found:
            counts[kind] += found
    text, found = _HOME.subn(HOME, text)
    if counts is not None and found:
        counts["home_folder"] += found
    return text


def _assigned(match: re.Match) -> str:
    return f"{match['before']}{SECRET}{match['after']}"


def secrets(text: str) -> set[str]:
    """The secrets in a text, by themselves. Of a private key its lines: a diff may show some of them only."""
    found: set[str] = set()
    if not _HINT.search(text):
        return found
    for kind, pattern in _FOUND.items():
        for match in pattern.finditer(text):
            if kind == "private_key":
                found |= {line for line in re.split(r"\s+|\\n", match[0]) if len(line) >= 32}
            elif kind == "assigned":
                found.add(match["value"])
            else:
                found.add(match[0].split()[-1])
    return found


def redact_together(texts: list[str], counts: Counter[str]) -> list[str]:
    """The texts of one row. What is a secret in one of them is a secret in all."""
    known = sorted(set().union(*map(secrets, texts)), key=lambda s: (-len(s), s))
    out = [redact(text, counts) for text in texts]
    for secret in known:
        for i, text in enumerate(out):
            if secret in text:
                counts["repeated"] += text.count(secret)
                out[i] = text.replace(secret, SECRET)
    return out


def redact_table(table: Any, counts: Counter[str]) -> Any:
    """The same for the text columns of an Arrow table. Rows without a hint are not touched, nor are columns that no row
    changes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    hits = None
    for name in TEXTS:
        found = pc.match_substring_regex(table.column(name), HINT)
        hits = found if hits is None else pc.or_(hits, found)
    numbers = [i for i, hit in enumerate(hits.to_pylist()) if hit]
    if not numbers:
        return table
    some = table.select(list(TEXTS)).take(pa.array(numbers, pa.int64()))
    before = {name: some.column(name).to_pylist() for name in TEXTS}
    after = [redact_together(list(texts), counts) for texts in zip(*before.values(), strict=True)]
    for name, values in zip(TEXTS, map(list, zip(*after, strict=True)), strict=True):
        if values == before[name]:
            continue
        whole = table.column(name).to_pylist()
        for i, value in zip(numbers, values, strict=True):
            whole[i] = value
        table = table.set_column(
            table.schema.get_field_index(name), table.schema.field(name), pa.array(whole, pa.string())
        )
    return table
