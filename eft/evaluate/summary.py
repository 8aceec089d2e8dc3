"""From one search's own result (and its journal) to the summary that an evaluation keeps of it.

A result holds every candidate; the summary holds what comparison and report need, in a few kilobytes.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from eft.evaluate import lineage
from eft.evaluate.metrics import gap_closed
from eft.evaluate.results import BROKEN, IMPROVED, NO_OP, NOT_IMPROVED, REPAIRED, Search
from eft.records import Validity
from eft.search.spec import CACHE, Candidate, SearchResult, SearchSpec
from eft.tasks.task import Task

EXAMPLE = 1200  # characters kept of one reply that failed
_BROKEN = re.compile(r"(?:evaluator_error: )?(?:(?:Syntax|Indentation|Tab)Error\b|it does not compile|it is not valid YAML)")
DIFF_LINES = 160  # lines kept of the way from the start program to the best one


def outcome(c: Candidate, broken: Collection[str] = ()) -> str:
    """What became of one proposal: a word of `results.py`, or the reason why it was no valid edit. `broken`: hashes of
    the programs that do not compile."""
    if c.valid_edit:
        if c.parent_score is None:
            return REPAIRED
        return IMPROVED if c.score is not None and c.score > c.parent_score else NOT_IMPROVED
    if c.status == "invalid" and c.code_hash in broken:
        return BROKEN
    if c.status == "invalid":
        return f"invalid:{c.detail}" if c.detail in set(Validity) else "invalid"
    if c.finish_reason == "length" and c.status in ("no_edit", "malformed", "empty"):
        return "cut_off"
    return (
        NO_OP if c.status in ("ok", "duplicate") else c.status
    )  # applied and valid, but the syntax tree is the parent's


def gain(result: SearchResult, task: Task) -> float | None:
    """The sum of what improving proposals won over their parents, in units of the gap; None where that is undefined."""
    if gap_closed(task.best_known, result.seed_raw, task.best_known) is None:
        return None
    raw = {c.code_hash: c.raw for c in result.candidates if c.raw is not None}
    total = 0.0
    for c in result.candidates:
        if outcome(c) == IMPROVED:
            parent = raw.get(c.parent_hash, result.seed_raw)  # a parent that no candidate made is the start program
            child, before = (gap_closed(v, result.seed_raw, task.best_known) for v in (c.raw, parent))
            if child is None or before is None:
                return None
            total += max(0.0, child - before)
    return total


def _lines(journal: Path) -> Iterable[dict[str, Any]]:
    """The journal's records; a torn line is left out."""
    try:
        text = journal.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record


def broken_programs(cache: Path, task: str) -> frozenset[str]:
    """The hashes of the programs that did not compile (C++) or parse (Python), by what the evaluations in a search's
    cache say; hidden instances are left out."""
    found = set()
    for record in _lines(cache):
        name, _, key = str(record.get("key", "")).partition("\0")
        parts = [record.get(k) for k in ("artifacts", "metrics")]
        if name == task and any(isinstance(p, dict) and _BROKEN.match(str(p.get("error"))) for p in parts):
            found.add(key)
    return frozenset(found)


def examples(result: SearchResult, replies: list[str], broken: Collection[str] = ()) -> dict[str, str]:
    """The first reply of every kind of failure. `replies`: the journal's, in order; they pair with the candidates only
    where every candidate has one."""
    if len(replies) != len(result.candidates):
        return {}
    found: dict[str, str] = {}
    for c, reply in zip(result.candidates, replies, strict=True):
        if not c.valid_edit:
            text = reply if len(reply) <= EXAMPLE else reply[:EXAMPLE] + f"\n[… {len(reply) - EXAMPLE} more characters]"
            found.setdefault(outcome(c, broken), text)
    return found


def best_diff(result: SearchResult, task: Task) -> str:
    """The way from the start program to the best one, as a unified diff; "" where nothing better was found."""
    start = task.seed()
    if result.best_code.strip() == start.strip():
        return ""
    return lineage.unified(start, result.best_code, ("start", "best"), DIFF_LINES)


def of(spec: SearchSpec, result: SearchResult, task: Task) -> Search:
    """The summary of a finished search."""
    records = list(_lines(Path(spec.journal))) if spec.journal else []
    replies = [r.get("content") or "" for r in records if r.get("kind") == "reply" and r.get("status") == "ok"]
    tried = {(r.get("index"), r.get("child_code")) for r in records if r.get("kind") == "proposal"}
    ran = {c.code_hash for c in result.candidates if c.valid or c.status == "invalid"}
    broken = broken_programs(spec.folder / CACHE, task.name)
    billed = any(c.completion_tokens >= 0 for c in result.candidates)
    return Search(
        mutator=spec.mutator, task=task.name, seed=spec.seed, iterations=result.iterations,
        reason=result.note, best_score=result.best_score, best_raw=result.best_raw,
        curve=(result.seed_raw, *result.raw_curve), proposals=result.replies,
        outcomes=dict(sorted(Counter(outcome(c, broken) for c in result.candidates).items())),
        distinct=result.distinct_valid_edits,
        evaluations=max(len(ran), len(tried)), gain=gain(result, task),
        prompt_tokens=result.prompt_tokens if billed else None,
        completion_tokens=result.completion_tokens if billed else None,
        seconds=max(result.seconds, sum(c.seconds or 0.0 for c in result.candidates)),  # a replay takes no time
        examples=examples(result, replies, broken), best_diff=best_diff(result, task), scaffold=result.scaffold,
        final_score=result.final_score, final_raw=result.final_raw, start_final_raw=result.seed_final_raw,
        sandbox=result.sandbox, lineage=lineage.steps(result, records, task),
    )  # fmt: skip


def failed(spec: SearchSpec, task: Task, reason: str) -> Search:
    """The summary of a search that could not be finished, and why."""
    return Search(
        spec.mutator, task.name, spec.seed, status="failed", reason=reason, iterations=spec.iterations,
        scaffold=spec.scaffold,
    )  # fmt: skip
