"""From a search's logs to its result: every reply of the mutator is classified, whatever became of it.

The scaffold's logs say which replies became programs; those that it refused are applied again with `edits.apply` to the
parent that their prompt shows, which tells why. The gateway's journal adds tokens, seconds and finish reasons, and the
replies of iterations that the scaffold lost. So the denominator of every rate is all replies.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eft import edits, prompts
from eft.errors import EftError
from eft.records import Validity, code_hash
from eft.search.evaluator import Scorer
from eft.search.spec import Candidate, SearchResult, SearchSpec, finite
from eft.tasks import sandbox

TRACE, FAILURES = "evolution_trace.jsonl", "evolution_trace_failures.jsonl"
DIALECT = "openevolve@0.4"
STATUS = {
    edits.Why.NO_BLOCK: "no_edit",
    edits.Why.UNMATCHED: "unmatched",
    edits.Why.NO_OP: "no_op",
    edits.Why.EMPTY: "empty",
    edits.Why.MARKERS: "malformed",
}
GOOD = ("ok", "duplicate")
MAX_UNANSWERED = 0.1  # a search with more requests than this share unanswered did not have its budget

NO_ANSWER = "LLM generation failed"  # how OpenEvolve's failure records begin where the request failed
_REFUSED = re.compile(r"Error code: (400|413|422)\b")  # the model's server refuses this prompt: too long, mostly


def no_answer(error: str) -> bool:
    """Did this request fail for want of a mutator? A prompt that the server refuses (too long) is not such a case."""
    return error.startswith(NO_ANSWER) and not _REFUSED.search(error)


@dataclass(frozen=True)
class Attempt:
    """One iteration as the scaffold logged it. `response` None: there was no reply; `child` None: no program."""

    iteration: int
    prompt: str  # the user message, "" where it was not logged
    response: str | None
    child: str | None = None
    error: str = ""
    usage: dict[str, Any] = field(default_factory=dict)


def read_lines(path: Path | None) -> Iterable[dict[str, Any]]:
    """The JSON objects of a .jsonl file; a torn last line is left out, a missing file is empty.

    Raises EftError for a broken line before the last.
    """
    if path is None or not path.exists():
        return
    lines = path.read_bytes().splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield json.loads(line)
        except ValueError as e:
            if number == len(lines):
                return
            raise EftError("a line of this log is not JSON", where=f"{path}, line {number}", why=str(e)) from None


def read_openevolve(folder: Path) -> list[Attempt]:
    """What OpenEvolve logged of each iteration, in order: its trace, and the failures beside it."""
    found = {}
    for name in (TRACE, FAILURES):
        for r in read_lines(folder / name):
            usage = r.get("token_usage") or (r.get("metadata") or {}).get("token_usage") or {}
            found.setdefault(r["iteration"], Attempt(
                r["iteration"], (r.get("prompt") or {}).get("user") or "", r.get("llm_response"),
                r.get("child_code"), r.get("error") or "", usage,
            ))  # fmt: skip
    return [found[i] for i in sorted(found)]


def read_journal(path: str | None) -> list[dict[str, Any]]:
    """The reply records of a search's journal, in order; none where there is no journal."""
    return [r for r in read_lines(Path(path) if path else None) if r.get("kind") == "reply"]


class _Journal:
    """Finds the journal record of a reply: same prompt, same content, first come first served."""

    def __init__(self, records: list[dict[str, Any]]) -> None:
        self.waiting: dict[tuple[str, str], deque] = defaultdict(deque)
        for r in records:
            if r.get("status") == "ok":
                self.waiting[self._user(r), r.get("content") or ""].append(r)

    @staticmethod
    def _user(record: dict[str, Any]) -> str:
        return next((m["content"] for m in reversed(record.get("messages") or []) if m.get("role") == "user"), "")

    def of(self, prompt: str, response: str) -> dict[str, Any]:
        queue = self.waiting.get((prompt, response))
        return queue.popleft() if queue else {}

    def left(self) -> list[tuple[str, dict[str, Any]]]:
        """(prompt, record) of the replies that no attempt has claimed, in the journal's order."""
        rest = [(key[0], r) for key, queue in self.waiting.items() for r in queue]
        return sorted(rest, key=lambda item: item[1].get("index", 0))


def tally(
    spec: SearchSpec, attempts: list[Attempt], journal: list[dict[str, Any]], scorer: Scorer, release: str,
    seconds: float, note: str = "", dialect: str = DIALECT,
) -> SearchResult:  # fmt: skip
    """The result of a search, its best program evaluated on the task's hidden instances where there are some.

    `seconds`: of this attempt at it (a replayed one is quicker than the search was). `dialect`: how the scaffold reads
    edits. Raises EftError where the search did not come to its end, or too many requests were left without an answer.
    """
    last = max((a.iteration for a in attempts), default=0)
    if last < spec.iterations:
        raise EftError(f"the search ended after {last} of {spec.iterations} iterations", where=spec.folder)
    unanswered = [a.error for a in attempts if no_answer(a.error)]
    if len(unanswered) > MAX_UNANSWERED * spec.iterations:
        raise EftError(f"{len(unanswered)} of {spec.iterations} requests had no answer", where=spec.base_url,
                       why=unanswered[-1], way_out="see that the mutator's server runs, then run it again")  # fmt: skip

    records = _Journal(journal)
    paired = [(a, records.of(a.prompt, a.response) if a.response is not None else {}) for a in attempts]
    # Iterations that the scaffold lost (its worker died, say): their replies are in the journal all the same.
    spare = iter(records.left())
    for iteration in sorted(set(range(1, spec.iterations + 1)) - {a.iteration for a in attempts}):
        prompt, record = next(spare, ("", {}))
        paired.append((Attempt(iteration, prompt, record.get("content"), error="lost by the scaffold"), record))
    paired.sort(key=lambda pair: pair[0].iteration)

    book = _Book(spec, scorer, dialect)
    candidates = [book.enter(index, a, r) for index, (a, r) in enumerate(paired)]
    good = [c for c in candidates if c.valid_edit]
    failures = Counter(c.status for c in candidates if c.status not in GOOD)
    if not any(c.applied and c.valid for c in candidates):
        note = note or "no reply could be used: the result is the seed program"
    final_score, final_raw, seed_final_raw = book.final()
    return SearchResult(
        name=spec.name, task=scorer.task.name, domain=spec.domain or scorer.task.domain, role=spec.role,
        mutator=spec.mutator, model=spec.model, seed=spec.seed, scaffold=spec.scaffold, scaffold_release=release,
        prompt_format=spec.prompt_format, edit=spec.edit, iterations=spec.iterations, iterations_done=len(candidates),
        seed_score=book.seed_score, seed_raw=book.seed_raw, best_score=book.best[0], best_raw=book.best[1],
        best_code=book.best[2], best_curve=tuple(book.curve), raw_curve=tuple(book.raw_curve),
        candidates=tuple(candidates), replies=len(candidates), valid_edits=len(good),
        distinct_valid_edits=len({c.code_hash for c in good} - {book.seed_hash}),
        failures=dict(sorted(failures.items())),
        prompt_tokens=sum(max(c.prompt_tokens, 0) for c in candidates),
        completion_tokens=sum(max(c.completion_tokens, 0) for c in candidates),
        seconds=round(seconds, 3), note=note, spec=spec.identity(),
        final_score=final_score, final_raw=final_raw, seed_final_raw=seed_final_raw,
        sandbox=sandbox.describe(), isolation=scorer.task.isolation,
    )  # fmt: skip


class _Book:
    """Classifies the attempts of one search in order, and keeps the best so far."""

    def __init__(self, spec: SearchSpec, scorer: Scorer, dialect: str) -> None:
        self.spec, self.scorer, self.dialect = spec, scorer, dialect
        code = scorer.task.initial_program.read_text(encoding="utf-8")
        seed = scorer.evaluate(code)
        self.seed_hash = code_hash(code)
        self.seed_score, self.seed_raw = self._score(seed)
        self.best = (self.seed_score, self.seed_raw, code)
        self.scores = {self.seed_hash: self.seed_score}  # every program of this search, by the hash of its code
        self.curve: list[float | None] = []
        self.raw_curve: list[float | None] = []

    def final(self) -> tuple[float | None, float | None, float | None]:
        """(score, raw) of the best program and raw of the seed on the hidden instances, if the task has such."""
        if not self.scorer.task.has_hidden:
            return self.best[0], self.best[1], self.seed_raw
        seed = self.scorer.evaluate(self.scorer.task.seed(), hidden=True)
        return *self._score(self.scorer.evaluate(self.best[2], hidden=True)), self._score(seed)[1]

    @staticmethod
    def _score(evaluation: Any) -> tuple[float | None, float | None]:
        if evaluation.validity != Validity.VALID:
            return None, None
        return finite(evaluation.score), finite(evaluation.raw)

    def enter(self, index: int, attempt: Attempt, record: dict[str, Any]) -> Candidate:
        """The candidate of one attempt; `record`: its line of the journal, {} where there is none."""
        usage = record.get("usage") or attempt.usage or {}
        parent = prompts.current_program(attempt.prompt) if attempt.prompt else None
        parent_hash = code_hash(parent) if parent is not None else ""
        candidate = Candidate(
            index=index, iteration=attempt.iteration, status="lost", detail=attempt.error[:500],
            parent_hash=parent_hash, parent_score=self.scores.get(parent_hash),
            prompt_tokens=int(usage.get("prompt_tokens") or -1),
            completion_tokens=int(usage.get("completion_tokens") or (0 if usage else -1)),
            seconds=finite(record.get("seconds")), finish_reason=record.get("finish_reason") or "",
        )  # fmt: skip
        candidate = dataclasses.replace(candidate, **self._judge(attempt, parent))
        self.curve.append(self.best[0])
        self.raw_curve.append(self.best[1])
        return candidate

    def _judge(self, attempt: Attempt, parent: str | None) -> dict[str, Any]:
        """status and what goes with it: what became of this reply?"""
        if attempt.response is None:
            return {"status": "request_error" if attempt.error.startswith(NO_ANSWER) else "lost"}
        child = attempt.child
        if child is None:  # refused, or lost after it was applied
            edit = edits.apply(parent or "", attempt.response, kind=self.spec.edit, dialect=self.dialect,
                               language=self.scorer.task.language)  # fmt: skip
            if not edit:
                return {"status": STATUS[edit.why], "detail": str(edit)}
            child = edit.child
            if "exceeds maximum length" in attempt.error:
                return {"status": "too_long", "applied": True}
            if code_hash(child) != code_hash(parent or ""):
                return {"applied": True, "code_hash": code_hash(child)}  # status: lost
        return self._judge_child(child, parent or "")

    def _judge_child(self, child: str, parent: str) -> dict[str, Any]:
        key = code_hash(child)
        changed = edits.changes_syntax(parent, child, self.scorer.task.language)
        found = {"applied": True, "changes_syntax": changed, "code_hash": key}
        if key == code_hash(parent):
            return {**found, "changes_syntax": False, "status": "no_op", "detail": "the child is the parent"}
        evaluation = self.scorer.evaluate(child)  # from the cache: the scaffold has evaluated it
        score, raw = self._score(evaluation)
        valid = evaluation.validity == Validity.VALID
        found |= {"valid": valid, "score": score, "raw": raw}
        seen, self.scores[key] = key in self.scores, score
        if not valid:
            return {**found, "status": "invalid", "detail": str(evaluation.validity)}
        if score is not None and (self.best[0] is None or score > self.best[0]):
            self.best = (score, raw, child)
        if not changed:
            return {**found, "status": "no_op", "detail": "only layout or comments differ"}
        return {**found, "status": "duplicate" if seen else "ok", "detail": ""}
