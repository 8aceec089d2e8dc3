"""Redact: keys, tokens, passwords and home folders do not belong into a training set.

Every text column of a row is redacted in the same way, so that an edit still fits its program. A secret becomes
`<SECRET>`, a home folder `/home/user`. What is looked for are forms that are unmistakable; a password that looks like a
word is not found. Redacting twice changes nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

SECRET, HOME = "<SECRET>", "/home/user"
TEXTS = ("prompt_system", "prompt_user", "response", "reasoning", "parent_code", "child_code", "parent_artifacts",
         "child_artifacts")  # fmt: skip

_SECRETS = {
    "private_key": r"-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----.{0,8000}?-----END [A-Z ]{0,20}PRIVATE KEY-----",
    "hub_token": r"\bhf_[A-Za-z0-9]{30,}",
    "github_token": r"\bgh[opsur]_[A-Za-z0-9]{36,}|\bgithub_pat_[A-Za-z0-9_]{50,}",
    "api_key": r"\bsk-(?:[a-z]+-){0,2}[A-Za-z0-9_-]{20,}|\bAIza[0-9A-Za-z_-]{35}|\bxox[abprs]-[A-Za-z0-9-]{10,}",
    "aws_key": r"\bA(?:KIA|SIA)[0-9A-Z]{16}\b",
    "bearer": r"\b[Bb]earer +(?=[A-Za-z._~+/-]*\d)[A-Za-z0-9._~+/-]{20,}=*",
    # a quoted value of letters and digits behind a telling name
    "assigned": r"(?i)(?<=key|ret|ken|ord)[\"']? ?[:=] ?[\"'](?=[^\"'\s]{0,64}\d)(?=[^\"'\s]{0,64}[a-z])[\w./+-]{16,128}=*[\"']",
}
_HOME = re.compile(r"(?:/home|/Users)/(?!user\b)[A-Za-z0-9._-]+|\b[A-Z]:(?:\\\\|\\|/)Users(?:\\\\|\\|/)[A-Za-z0-9._-]+")
_FOUND = {kind: re.compile(pattern, re.DOTALL) for kind, pattern in _SECRETS.items()}
# A cheap test that every match above passes (RE2's syntax: Arrow runs it over whole columns).
HINT = (r"PRIVATE KEY-----|hf_[A-Za-z0-9]{30}|gh[opsur]_|github_pat_|sk-|AIza|xox[abprs]-|AKIA|ASIA|[Bb]earer "
        r"|(?i:key|ret|ken|ord)[\"']? ?[:=] ?[\"'][\w./+-]{16}|/home/|/Users/|\\Users")  # fmt: skip
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
    before = re.match(r"[\"']? ?[:=] ?[\"']", match[0])
    return f"{before[0] if before else ''}{SECRET}{match[0][-1]}"


def redact_table(table: Any, counts: Counter[str]) -> Any:
    """The same for the text columns of an Arrow table. Rows without a hint are not touched (nor copied)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for name in TEXTS:
        column = table.column(name)
        hits = pc.match_substring_regex(column, HINT)
        if not pc.any(hits).as_py():
            continue
        values = [redact(v, counts) if hit and v else v
                  for v, hit in zip(column.to_pylist(), hits.to_pylist(), strict=True)]  # fmt: skip
        table = table.set_column(
            table.schema.get_field_index(name), table.schema.field(name), pa.array(values, pa.string())
        )
    return table
