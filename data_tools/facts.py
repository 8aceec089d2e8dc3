"""What `eft clean` knows of every row before it decides: found once, in parallel, row group by row group.

Four kinds, each a table with one line per row in the source's order:

- `facts`: hashes, lengths in bytes, whether the machine failed, whether the edit broke the syntax;
- `tokens`: tokens of prompt and response, by one tokenizer;
- `near`: a MinHash signature of the edit;
- `leaks`: signs of a held-out task (JSON).

Each is kept under a key of everything that it depends on, so a changed option re-does what it must and nothing else.
All are found on the redacted text where redaction is on.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_tools import leaks, lexing, shards
from data_tools.counts import OVERHEAD, TokenCounter
from data_tools.redact import redact_table
from eft import __version__, manifest
from eft.edits import parse_python
from eft.records import Transition, Validity, code_hash

PERMUTATIONS = 64
SEED = 20_261_130


@dataclass(frozen=True)
class Wanted:
    """Which kinds to find, and what they depend on. The key of a kind is the name of its file."""

    redact: bool
    tokenizers: tuple[str, ...] = ()
    near: bool = False
    suite: str = ""

    def kinds(self) -> list[str]:
        return ["facts", *(f"tokens:{name}" for name in self.tokenizers), *(["near"] if self.near else []),
                *(["leaks"] if self.suite else [])]  # fmt: skip

    def check(self) -> None:
        """Raises EftError for a tokenizer or a suite that cannot be read."""
        for kind in self.kinds():
            self.key(kind, "")

    def key(self, kind: str, source: str) -> str:
        parts = [__version__, source, str(self.redact), kind]  # another release may have other rules
        if kind.startswith("tokens:"):
            parts.append(_counter(kind[7:]).identity)
        if kind == "leaks":
            parts.append(leaks.guard_key(self.suite))
        digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
        return f"{kind.split(':')[0]}-{digest}.arrow"


def find(source: Path, folder: Path, wanted: Wanted, config: shards.Workers) -> tuple[dict[str, Any], list[str]]:
    """kind -> Arrow table, and the kinds that had to be found anew. `folder` keeps them.

    Raises EftError for a source that is no transitions table, a tokenizer or a suite that cannot be read.
    """
    import pyarrow as pa

    parts = shards.units(source)
    name = manifest.fingerprint(Path(parts[0].file)) if parts else ""
    files = {kind: folder / wanted.key(kind, name) for kind in wanted.kinds()}
    total = sum(part.rows for part in parts)
    tables = {kind: table for kind, file in files.items() if (table := _kept(file, total)) is not None}
    missing = [kind for kind in files if kind not in tables]
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(".*.arrow.*"):
            left.unlink(missing_ok=True)  # what a killed run was writing
        writers: dict[str, Any] = {}
        found: dict[str, list[Any]] = {kind: [] for kind in missing}
        for result in shards.mapped(functools.partial(_of_unit, wanted=wanted, kinds=tuple(missing)), parts, config):
            for kind, table in result.items():
                found[kind].append(table)
        for kind, blocks in found.items():
            with manifest.atomic_file(files[kind]) as temporary:
                table = pa.concat_tables(blocks) if blocks else pa.table({})
                with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writers[kind]:
                    writers[kind].write_table(table)
    for stale in set(folder.glob("*.arrow")) - set(files.values()):
        if stale.name.split("-")[0] in {f.name.split("-")[0] for f in files.values()}:
            stale.unlink(missing_ok=True)  # of other options or another source: it would only grow
    return {kind: tables[kind] if kind in tables else _kept(file, total) for kind, file in files.items()}, missing


def _kept(file: Path, rows: int) -> Any:
    """The table in a file that an earlier run left, None where there is none, or a damaged one."""
    import pyarrow as pa

    try:
        with pa.memory_map(str(file)) as mapped:
            table = pa.ipc.open_file(mapped).read_all()
    except (pa.ArrowException, OSError):
        return None
    return table if len(table) == rows else None


@functools.lru_cache(maxsize=4)
def _counter(name: str) -> TokenCounter:
    return TokenCounter(name)


def identity(tokenizer: str) -> str:
    """What the counts of a tokenizer are valid for (`eft.tokenizers.identity`)."""
    return _counter(tokenizer).identity


_seen_programs: dict[str, dict[str, list[leaks.Hit]]] = {}  # by guard: a parent was a child before


def _of_unit(unit: shards.Unit, *, wanted: Wanted, kinds: tuple[str, ...]) -> dict[str, Any]:
    """The kinds of one row group. Runs in a worker."""
    import pyarrow as pa

    table = unit.transitions()
    redacted: Counter[str] = Counter()
    if wanted.redact:
        table = redact_table(table, redacted)
    rows = [Transition(**values) for values in table.to_pylist()]
    out: dict[str, Any] = {}
    for kind in kinds:
        if kind == "facts":
            out[kind] = pa.Table.from_pylist([facts_of(row) for row in rows], schema=facts_schema())
        elif kind.startswith("tokens:"):
            prompts, responses = _counter(kind[7:]).lengths(rows)
            out[kind] = pa.table({"prompt_tokens": pa.array(prompts, pa.int64()),
                                  "response_tokens": pa.array(responses, pa.int64())})  # fmt: skip
        elif kind == "near":
            out[kind] = pa.table({"signature": pa.array(signatures(rows), pa.binary(PERMUTATIONS * 4))})
        else:
            key = leaks.guard_key(wanted.suite)
            guard, seen = leaks.guard(wanted.suite, key), _seen_programs.setdefault(key, {})
            out[kind] = pa.table({"hits": pa.array([_hits(guard, row, seen) for row in rows], pa.string())})
    return out


def _hits(guard: leaks.Guard, row: Transition, seen: dict[str, list[leaks.Hit]]) -> str:
    hits = guard.by_name(row.task) + guard.by_text(row) + guard.by_program(row, seen)
    return json.dumps(sorted({(h.kind, h.task, h.share) for h in hits})) if hits else ""


def signatures(rows: Iterable[Transition]) -> list[bytes]:
    """The MinHash signature of every row's edit: PERMUTATIONS 32-bit numbers. Equal edits have equal ones; the share
    of equal numbers estimates the Jaccard similarity of two edits (Broder, 1997)."""
    import numpy as np
    from rensa import RMinHash

    words = [lexing.edit_words(row.parent_code, row.child_code) or [""] for row in rows]
    if not words:
        return []
    return [np.asarray(d, np.uint32).tobytes() for d in RMinHash.digests_from_token_sets(words, PERMUTATIONS, SEED)]


# -------------------------------------------------------------------------------------------------------------- facts


def facts_schema() -> Any:
    import pyarrow as pa

    text = ("id", "run", "task", "domain", "language", "label", "suite_role", "child_validity", "parent_validity",
            "score_kind", "replay", "parent", "child", "edit_kind")  # fmt: skip
    return pa.schema([*((name, pa.string()) for name in text), ("delta", pa.float64()), ("parent_score", pa.float64()),
                      ("child_score", pa.float64()), ("system_error", pa.bool_()), ("syntax_error", pa.bool_()),
                      ("response_bytes", pa.int64()), ("both_bytes", pa.int64())])  # fmt: skip


def facts_of(row: Transition) -> dict[str, Any]:
    """What decides about a row, apart from its tokens, its likeness to others and its leaks. Lengths in bytes of UTF-8,
    with room for a chat template and an end token: never less than the tokens of any tokenizer."""
    response = len(row.response.encode("utf-8", "replace")) + 1
    prompt = len((row.prompt_system + row.prompt_user).encode("utf-8", "replace"))
    return {
        **{name: getattr(row, name) for name in (
            "id", "run", "task", "domain", "language", "label", "suite_role", "child_validity", "parent_validity",
            "score_kind", "replay", "edit_kind", "delta", "parent_score", "child_score")},
        "parent": code_hash(row.parent_code), "child": code_hash(row.child_code),
        "system_error": machine_failed(row.child_artifacts) or _parent_failed_by_machine(row),
        "syntax_error": row.child_validity != Validity.VALID and does_not_parse(row),
        "response_bytes": response, "both_bytes": response + prompt + OVERHEAD,
    }  # fmt: skip


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
