"""Replies: everything that a model was asked and said in a search, joined to the programs that came of it.

A transition exists where a scaffold made a program. Most failures leave none: the reply that no SEARCH text matched,
the request that was never answered. The gateway's journal has them all, and so has OpenEvolve's failures file; they go
into `replies.parquet`, one row each, with what became of it (`outcome`):

| outcome | meaning |
|---|---|
| child | the scaffold made a program of it: `transition_id`, `child_id` |
| again | the same child as another reply's, which the scaffold made only once |
| no_block, unmatched, no_op, empty, markers, outside, pattern | the scaffold refused it, and why (`eft.edits.Why`) |
| lost | it can be applied, and yet the scaffold recorded nothing |
| unused | a scaffold whose rules are not replayed here made nothing of it |
| no_reply | the request failed; `reason` says how |
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_tools.readers.files import Problems, Unreadable, integer, mapping, opened, parse, raw_lines, real, text
from data_tools.readers.gateway import messages_of
from data_tools.readers.openevolve_rows import dialects
from data_tools.readers.search import Refused, Search
from eft import edits, prompts
from eft.records import Transition, code_hash

TABLE = "replies.parquet"
COLUMNS = {
    "run": "str", "scaffold": "str", "task": "str", "suite_role": "str", "index": "int", "iteration": "int",
    "mutator": "str", "model": "str", "outcome": "str", "reason": "str", "transition_id": "str", "child_id": "str",
    "prompt_system": "str", "prompt_user": "str", "response": "str", "reasoning": "str", "finish_reason": "str",
    "prompt_tokens": "int", "response_tokens": "int", "seconds": "float",
}  # fmt: skip


def schema() -> Any:
    """The Arrow schema of `replies.parquet`. -1 and null: not told."""
    import pyarrow as pa

    types = {"str": pa.string(), "int": pa.int64(), "float": pa.float64()}
    return pa.schema([(name, types[kind]) for name, kind in COLUMNS.items()])


def _digest(*texts: str) -> bytes:
    return hashlib.blake2b("\0".join(texts).encode("utf-8", "replace"), digest_size=12).digest()


@dataclass
class Journal:
    """One gateway journal, held against the rows of its search. Offsets are in memory, texts are not.

    `of` gives the record of the reply that a row was made of: the one with its text and prompt; else with its text (a
    scaffold may word its prompts otherwise in its log); else, for a row without a reply, the one that makes its child.
    Equal replies are used in the journal's order, each once.
    """

    path: Path
    _exact: dict[bytes, deque[int]] = field(default_factory=lambda: defaultdict(deque))
    _by_text: dict[bytes, deque[int]] = field(default_factory=lambda: defaultdict(deque))
    _by_child: dict[str, deque[int]] | None = None
    _spans: list[tuple[int, int]] = field(default_factory=list)  # of every reply: (offset, length)
    _taken: dict[int, tuple[str, str]] = field(default_factory=dict)  # reply -> (transition id, child id)
    _children: set[str] = field(default_factory=set)  # code hashes of the rows

    def __post_init__(self) -> None:
        for number, record in self._records():
            if record.get("status") == "ok":
                content = text(record.get("content"))
                self._exact[_digest(content, messages_of(record)[1])].append(number)
                self._by_text[_digest(content)].append(number)

    def _records(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """(number, record) of every reply."""
        number = 0
        first = not self._spans
        for _, offset, raw in raw_lines(self.path, Problems()):  # the reader of the proposals names what is wrong
            if b'"reply"' not in raw:
                continue
            try:
                record = parse(raw)
            except Unreadable:
                continue
            if isinstance(record, dict) and record.get("kind") == "reply":
                if first:
                    self._spans.append((offset, len(raw)))
                yield number, record
                number += 1

    def of(self, row: Transition) -> dict[str, Any] | None:
        """The record of the row's reply, None where the journal has none. Remembers that it was used."""
        self._children.add(code_hash(row.child_code))
        if row.response:
            queue = self._exact.get(_digest(row.response, row.prompt_user)) or self._by_text.get(_digest(row.response))
        else:
            queue = self._makes(row)
        if not queue:
            return None
        while len(queue) > 1 and queue[0] in self._taken:
            queue.popleft()
        number = queue[0]
        self._taken.setdefault(number, (row.id, row.child_id))
        with opened(self.path) as f:
            f.seek(self._spans[number][0])
            return parse(f.read(self._spans[number][1]))

    def _makes(self, row: Transition) -> deque[int] | None:
        if self._by_child is None:
            self._by_child = defaultdict(deque)
            for number, record in self._records():
                user = messages_of(record)[1]
                parent = prompts.current_program(user)
                for kind in ("diff", "rewrite") if parent is not None and record.get("status") == "ok" else ():
                    if edit := edits.apply(parent, text(record.get("content")), kind=kind):
                        self._by_child[code_hash(edit.child)].append(number)
                        break
        return self._by_child.get(code_hash(row.child_code))

    def replies(self, search: Search) -> Iterator[dict[str, Any]]:
        """All replies as rows of the table, once every row of the search has been asked for."""
        for number, record in self._records():
            system, user = messages_of(record)
            usage, content = mapping(record.get("usage")), text(record.get("content"))
            transition, child = self._taken.get(number, ("", ""))
            if transition:
                outcome, reason = "child", ""
            elif record.get("status") != "ok":
                outcome, reason = "no_reply", text(record.get("error"))
            else:
                outcome, reason = self._unused(user, content, search)
            yield {
                **_of(search), "index": integer(record.get("index"), number), "iteration": -1,
                "mutator": text(record.get("mutator")), "model": text(record.get("model")), "outcome": outcome,
                "reason": reason[:2000], "transition_id": transition, "child_id": child, "prompt_system": system,
                "prompt_user": user, "response": content,
                "reasoning": text(record.get("reasoning")) or prompts.inline_reasoning(content),
                "finish_reason": text(record.get("finish_reason")),
                "prompt_tokens": integer(usage.get("prompt_tokens"), -1),
                "response_tokens": integer(usage.get("completion_tokens"), -1), "seconds": real(record.get("seconds")),
            }  # fmt: skip

    def _unused(self, user: str, content: str, search: Search) -> tuple[str, str]:
        """(outcome, reason) of a reply that no row was made of."""
        parent = prompts.current_program(user)
        dialect = dialect_of(search)
        if parent is None or not dialect:
            return "unused", ""
        return judged(user, content, dialect, self._children)


def dialect_of(search: Search) -> str:
    """How the scaffold of this search reads edits, "" where it is not known."""
    return next(iter(search.dialects), dialects(search.release)[0] if search.scaffold == "openevolve" else "")


def judged(user: str, content: str, dialect: str, children: set[str]) -> tuple[str, str]:
    """(outcome, reason) of a reply that the scaffold made no program of, as far as replaying it tells."""
    parent = prompts.current_program(user)
    if parent is None or not dialect:
        return "unused", ""
    edit = edits.apply(parent, content, kind=prompts.edit_kind(user) or "diff", dialect=dialect)
    if not edit:
        return str(edit.why), edit.detail
    made = code_hash(edit.child)
    if made == code_hash(parent):
        return "no_op", ""
    return ("again", "") if made in children else ("lost", "")


def with_reply(row: Transition, reply: dict[str, Any] | None) -> Transition:
    """The row with what the journal knows of its reply and the row does not: reasoning, model, tokens; prompt and reply
    themselves where the scaffold did not log them."""
    if not reply:
        return row
    usage = mapping(reply.get("usage"))
    prompt, response = integer(usage.get("prompt_tokens"), -1), integer(usage.get("completion_tokens"), -1)
    row = row.replace(
        reasoning=text(reply.get("reasoning")) or row.reasoning, model=row.model or text(reply.get("model")),
        prompt_tokens=prompt if row.prompt_tokens < 0 else row.prompt_tokens,
        response_tokens=response if row.response_tokens < 0 else row.response_tokens,
    )  # fmt: skip
    if not row.response:
        content, (system, user) = text(reply.get("content")), messages_of(reply)
        kind = prompts.edit_kind(user)
        row = row.replace(response=content, edit_kind=row.edit_kind or kind, prompt_system=system, prompt_user=user,
                          prompt_format=prompts.detect_format(system, user, release=row.scaffold_release),
                          prompt_source="logged",
                          replay=_state(row, content, kind))  # fmt: skip
    elif not row.prompt_user:  # a scaffold that keeps replies and not what it asked (CodeEvolve)
        system, user = messages_of(reply)
        row = row.replace(prompt_system=system or row.prompt_system, prompt_user=user, prompt_source="logged",
                          prompt_format=prompts.detect_format(system, user, release=row.scaffold_release))  # fmt: skip
    return row


def _state(row: Transition, content: str, kind: str) -> str:
    """Does the journal's reply make the child? It was found by that, under the newest dialect."""
    for form in (kind or "diff", "rewrite" if kind == "diff" else "diff"):
        for dialect in dialects(row.scaffold_release):
            edit = edits.apply(row.parent_code, content, kind=form, dialect=dialect, language=row.language)
            if edit and edit.child == row.child_code:
                return "match"
    return "mismatch"


def refused(replies: Iterable[Refused], search: Search) -> Iterator[dict[str, Any]]:
    """The scaffold's own record of failed iterations, as rows of the table."""
    for index, reply in enumerate(replies):
        outcome = "no_reply"
        if reply.response is not None:
            outcome = judged(reply.user, reply.response, dialect_of(search), set())[0]
        yield {
            **_of(search), "index": index, "iteration": reply.iteration, "mutator": "", "model": reply.model,
            "outcome": outcome, "reason": reply.reason[:2000], "transition_id": "", "child_id": "",
            "prompt_system": reply.system, "prompt_user": reply.user, "response": reply.response or "",
            "reasoning": prompts.inline_reasoning(reply.response or ""), "finish_reason": "",
            "prompt_tokens": reply.prompt_tokens, "response_tokens": reply.response_tokens, "seconds": None,
        }  # fmt: skip


def _of(search: Search) -> dict[str, str]:
    ours = search.about
    return {"run": search.name, "scaffold": search.scaffold, "task": text(ours.get("task")) or search.name,
            "suite_role": text(ours.get("role"))}  # fmt: skip


def outcomes(counts: Counter[str]) -> str:
    """In words, the most frequent first."""
    return ", ".join(f"{number} {name}" for name, number in counts.most_common())
