"""Clean: drop what must not be learned, with a reason for every row.

    eft clean IN -o OUT [--tokenizer NAME]

Reads the output of `eft label`; writes OUT/transitions.parquet (what stays), OUT/dropped.parquet (what does not, with a
column `reason`), OUT/tokens.parquet (tokens of every row that was counted) and OUT/manifest.json (drops by reason).

The rules are the paper's (EFT, arXiv 2606.29082: systematic errors, hard-negative breakages, overlong rows) and ours
(replies that do not explain their child, copies, held-out tasks). Each can be switched off by its config key. A row has
the first reason that applies, in the order of `REASONS`. Repairs stay: they are what a broken program needs.

Raises EftError where a length limit cannot be decided without a tokenizer.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from data_tools.counts import TOKENS, TokenCounter, token_schema
from data_tools.source import check, start
from eft import manifest
from eft.config import StageConfig
from eft.edits import parse_python
from eft.errors import EftError
from eft.records import TABLE, Label, Transition, Validity, code_hash, read_transitions, schema, writing

DROPPED = "dropped.parquet"
REASONS = {
    "heldout_role": "the task is held out or guards the gate",
    "unlabelled": "metrics of the parent or the child were not logged",
    "system_error": "the machine failed, not the program",
    "timeout": "the child's evaluation timed out",
    "syntax_error": "the edit broke the syntax",
    "breakage": "a valid parent became an invalid child",
    "unrecoverable": "neither parent nor child is valid",
    "identical": "the child is the parent",
    "replay_mismatch": "the child is not what the reply makes of the parent",
    "duplicate": "the same edit of the same parent is there already",
    "response_too_long": "the response has too many tokens",
    "too_long": "prompt and response together have too many tokens",
}


class Config(StageConfig):
    positional: ClassVar[str] = "source"

    source: Path = Field(Path("label"), description="Output folder of 'eft label'.")
    tokenizer: str = Field(
        "", description="Tokenizer of the model to train: a folder, a hub id, embedded:smollm2-135m or random:qwen3."
    )
    max_response_tokens: int | None = Field(16_384, gt=0, description="Longest response, in tokens.")
    max_tokens: int | None = Field(32_768, gt=0, description="Longest prompt and response together, in tokens.")
    drop_system_errors: bool = Field(True, description="Drop rows where the machine failed.")
    drop_syntax_errors: bool = Field(True, description="Drop children that do not parse.")
    drop_timeouts: bool = Field(True, description="Drop children that timed out.")
    drop_breakage: bool = Field(True, description="Drop valid parents with invalid children.")
    drop_unrecoverable: bool = Field(True, description="Drop rows with both ends invalid.")
    drop_identical: bool = Field(True, description="Drop children identical to their parent.")
    drop_duplicates: bool = Field(True, description="Drop exact duplicates of an edit.")
    drop_replay_mismatch: bool = Field(True, description="Drop children that their reply does not explain.")


def inputs(config: Config) -> list[Path]:
    return [config.path(config.source)]


def run(config: Config) -> Path:
    started, source, out = time.time(), config.path(config.source), config.out()
    check(source, out, "label")
    counter = TokenCounter(config.tokenizer)
    start(out)
    reasons: Counter[str] = Counter()
    labels: Counter[str] = Counter()
    seen: set[bytes] = set()
    files = [out / TABLE, out / DROPPED, out / TOKENS]
    with (
        writing(files[0], schema()) as kept,
        writing(files[1], schema(reason="str")) as dropped,
        writing(files[2], token_schema()) as tokens,
    ):
        for batch in _batched(read_transitions(source), 512):
            judged = [(row, reason_of(row, config, seen)) for row in batch]
            lengths = counter.count([row for row, reason in judged if not reason], _limits(config))
            for row, reason in judged:
                length = lengths.get(row.id)
                if length and counter.name:
                    tokens.add({"id": row.id, "tokenizer": counter.identity, "prompt_tokens": length[0],
                                "response_tokens": length[1]})  # fmt: skip
                reason = reason or (too_long(*length, config) if length else "")
                if reason:
                    reasons[reason] += 1
                    dropped.add(row, reason=reason)
                else:
                    labels[row.label] += 1
                    kept.add(row)
    total = kept.count + dropped.count
    if total == 0:
        raise EftError("there are no rows to clean", where=source)
    counts = {"rows": total, "kept": kept.count, "dropped": dropped.count,
              "reasons": {r: reasons[r] for r in REASONS if reasons[r]},
              **{str(k): labels[k] for k in Label}, "tokenizer": counter.name}  # fmt: skip
    _say(counts)
    manifest.write(out, "clean", config.model_dump(mode="json"), inputs(config), files, counts, started)
    return out


def _batched(rows: Iterator[Transition], size: int) -> Iterator[list[Transition]]:
    while batch := list(itertools.islice(rows, size)):
        yield batch


# ------------------------------------------------------------------------------------------------------------ reasons


def reason_of(row: Transition, config: Config, seen: set[bytes]) -> str:
    """Why this row must go, "" where it may stay (if it is not too long). `seen`: edits of the rows before it."""
    if row.suite_role in ("heldout", "gate"):
        return "heldout_role"
    if not row.label:
        return "unlabelled"
    if config.drop_system_errors and (machine_failed(row.child_artifacts) or _parent_failed_by_machine(row)):
        return "system_error"
    if config.drop_timeouts and row.child_validity == Validity.TIMEOUT:
        return "timeout"
    if config.drop_syntax_errors and row.child_validity != Validity.VALID and does_not_parse(row):
        return "syntax_error"
    if config.drop_breakage and row.label == Label.BREAKAGE:
        return "breakage"
    if config.drop_unrecoverable and row.label == Label.UNRECOVERABLE:
        return "unrecoverable"
    parent, child = code_hash(row.parent_code), code_hash(row.child_code)
    if config.drop_identical and parent == child:
        return "identical"
    if config.drop_replay_mismatch and row.replay == "mismatch":
        return "replay_mismatch"
    if config.drop_duplicates:
        edit = hashlib.sha256(f"{row.task}\0{parent}\0{child}".encode("utf-8", "replace")).digest()[:16]
        if edit in seen:
            return "duplicate"
        seen.add(edit)
    return ""


# What only the machine can be blamed for. A program's own MemoryError or ImportError is the program's.
_MACHINE = re.compile(
    r"No space left on device|Disk quota exceeded|Cannot allocate memory|Too many open files|BrokenProcessPool"
    r"|A process in the process pool was terminated|Connection (?:refused|reset)|Name or service not known"
    r"|CUDA error|CUDA out of memory|NCCL error|Stale file handle|Input/output error|Read-only file system"
)
_FAILURE_KEYS = ("stderr", "traceback", "error", "error_type", "exception", "failure_reason")


def machine_failed(artifacts: str) -> bool:
    """Do a program's logs (JSON object as text) show that the machine failed rather than the program?"""
    if not _MACHINE.search(artifacts):
        return False
    try:
        logs = json.loads(artifacts)
    except ValueError:
        return False
    return (
        any(_MACHINE.search(str(logs[key])) for key in _FAILURE_KEYS if key in logs)
        if isinstance(logs, dict)
        else False
    )


def _parent_failed_by_machine(row: Transition) -> bool:
    """A parent that the machine broke makes a bogus repair; a valid parent's logs may say what they like."""
    return row.parent_validity != Validity.VALID and machine_failed(row.parent_artifacts)


def does_not_parse(row: Transition) -> bool:
    """Did the edit break the syntax? Python: the parent parses and the child does not (where neither does, the language
    is not Python, whatever the run's config called it). Other languages: by what the evaluator's logs say."""
    if row.language == "python":
        return parse_python(row.child_code) is None and parse_python(row.parent_code) is not None
    return bool(re.search(r"\bsyntax ?error\b|error: expected|parse error", row.child_artifacts, re.IGNORECASE))


# ------------------------------------------------------------------------------------------------------------- length


def _limits(config: Config) -> tuple[int | None, int | None]:
    return config.max_response_tokens, config.max_tokens


def too_long(prompt: int, response: int, config: Config) -> str:
    """Which length limit a row breaks, "" for none. Counts are tokens; -1, not counted, is known to be short enough."""
    if config.max_response_tokens is not None and response > config.max_response_tokens:
        return "response_too_long"
    if config.max_tokens is not None and prompt + response > config.max_tokens:
        return "too_long"
    return ""


def _say(counts: dict[str, Any]) -> None:
    share = counts["kept"] / counts["rows"]
    print(
        f"clean: {counts['kept']} of {counts['rows']} rows stay ({share:.1%}; the paper's Finch-Collection kept 90.6%)",
        file=sys.stderr,
    )
    for reason, number in counts["reasons"].items():
        print(f"  dropped x{number}: {reason} ({REASONS[reason]})", file=sys.stderr)
    if counts["reasons"].get("heldout_role"):
        print("warning: rows of held-out or gate tasks were harvested; they must never be trained on", file=sys.stderr)
