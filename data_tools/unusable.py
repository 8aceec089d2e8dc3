"""Replies that a scaffold refused, as transitions from a program to itself.

A model's own failures are what it should learn to avoid: a SEARCH text that is not in the program, a reply without an
edit, an edit that changes nothing. A search does not move on such a reply, so the row's child is its parent, with the
parent's scores; everything after that (labels, redaction, leaks, lengths) is done by the stages that do it for all rows.
`eft build --negatives on_policy` takes these rows as undesirable.

Left out: replies cut at their length limit (that they end is not the model's doing), requests that failed, replies whose
prompt shows a program that the search did not record, and the same reply to the same program a second time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from data_tools.readers.files import text
from data_tools.readers.search import Search
from eft import edits, prompts
from eft.records import Transition, code_hash, to_json, transition_id

REFUSED = frozenset({"no_op", *(str(why) for why in edits.Why)})  # outcomes of replies.py that are the reply's fault


class Programs:
    """The programs of one search by their text, as its rows tell them."""

    def __init__(self) -> None:
        self._known: dict[str, Transition] = {}

    def add(self, row: Transition) -> None:
        """Remember both ends of a row, each as a row that leads nowhere. Texts of prompts and replies are not kept."""
        for ours in (False, True):
            code = row.child_code if ours else row.parent_code
            key = code_hash(code)
            if key in self._known and not ours:
                continue
            name = "child" if ours else "parent"
            here = {f"{end}_{what}": getattr(row, f"{name}_{what}") for end in ("parent", "child")
                    for what in ("id", "code", "metrics", "artifacts")}  # fmt: skip
            self._known[key] = row.replace(
                **here, generation=row.generation + ours, iteration=-1, prompt_system="", prompt_user="", response="",
                reasoning="", inspirations="[]", origin_id="",
            )  # fmt: skip

    def of(self, code: str) -> Transition | None:
        """The program with this text, as such a row."""
        return self._known.get(code_hash(code))


def rows(replies: Iterable[dict[str, Any]], programs: Programs, search: Search) -> Iterator[Transition]:
    """A transition for every reply (a row of `replies.parquet`) that the scaffold refused; see the module."""
    seen: set[tuple[str, str]] = set()
    for reply in replies:
        if reply["outcome"] not in REFUSED or reply["finish_reason"] == "length" or not text(reply["response"]).strip():
            continue
        code = prompts.current_program(reply["prompt_user"])
        program = programs.of(code) if code is not None else None
        if program is None or (program.parent_id, reply["response"]) in seen:
            continue
        seen.add((program.parent_id, reply["response"]))
        child = f"{program.parent_id}/refused-{reply['index']}"
        yield program.replace(
            id=transition_id(program.run, program.parent_id, child), child_id=child,
            child_artifacts=to_json({"refused": reply["outcome"], "reason": reply["reason"]}),
            prompt_system=reply["prompt_system"], prompt_user=reply["prompt_user"], prompt_source="logged",
            prompt_format=prompts.detect_format(reply["prompt_system"], reply["prompt_user"], release=search.release),
            response=reply["response"], reasoning=reply["reasoning"], edit_kind=prompts.edit_kind(reply["prompt_user"]),
            replay="unknown", model=reply["model"], prompt_tokens=reply["prompt_tokens"],
            response_tokens=reply["response_tokens"],
        )  # fmt: skip
