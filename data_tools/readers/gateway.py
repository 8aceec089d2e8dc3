"""The gateway's journals: what every mutator was asked and said, whatever scaffold asked.

A `proposal` record (an edit that a lookahead teacher evaluated) is a transition of its own, scaffold "gateway": the
scaffold's logs know only the proposal that was sent back to it. A `reply` record is joined to the child that the
scaffold made of it (data_tools/replies.py).

A chosen proposal that the scaffold turned into a program is the same transition as the scaffold's: left out here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data_tools.readers.files import TOO_DEEP, first_object, integer, json_lines, mapping, text
from data_tools.readers.search import Options, Search, about
from eft import edits, prompts
from eft.records import Transition, code_hash, to_json, transition_id

KINDS = {"reply", "proposal"}
Pair = tuple[str, str]  # code hashes of parent and child


def is_journal(path: Path) -> bool:
    """Is this file a gateway journal? By its first record."""
    if path.suffix != ".jsonl":
        return False
    first = first_object(path)
    return text(first.get("kind")) in KINDS and "search" in first


def pair(row: Transition) -> Pair:
    """What makes two transitions the same edit, whoever logged them."""
    return code_hash(row.parent_code), code_hash(row.child_code)


def read(journal: Path, options: Options, *, ours: dict[str, Any] | None = None, known: set[Pair] = frozenset(),
         name: str = "") -> Search:  # fmt: skip
    """The proposals of one journal. `known`: edits that the scaffold's logs have; `ours`: the search's run.json."""
    ours = ours or about(journal) or about(journal.parent.parent / journal.stem)  # as `eft collect` lays them out
    search = Search(name or text(journal.stem), [journal], "gateway", about=ours)
    search.rows = _proposals(journal, search, options, known)
    return search


def _proposals(journal: Path, search: Search, options: Options, known: set[Pair]) -> Iterator[Transition]:
    counts: Counter[str] = Counter()
    numbers: Counter[int] = Counter()
    for record in json_lines(journal, search.problems):
        counts["replies"] += record.get("kind") == "reply"
        counts["failed_replies"] += record.get("kind") == "reply" and record.get("status") == "error"
        if record.get("kind") != "proposal":
            continue
        counts["proposals"] += 1
        index = integer(record.get("index"), 0)
        numbers[index] += 1
        try:
            row = _row(record, index, numbers[index], search, options)
        except RecursionError:
            search.problems.add(f"{journal}, proposal of reply {index}", TOO_DEEP)
            continue
        if row is None:
            search.problems.add(f"{journal}, proposal of reply {index}", "no parent or child code in it")
        elif record.get("chosen") is True and pair(row) in known:
            counts["in_scaffold"] += 1
        else:
            counts["children"] += 1
            counts["with_prompt"] += bool(row.prompt_user)
            counts["with_response"] += bool(row.response)
            counts[f"replay_{row.replay}"] += 1
            yield row
    search.counts = {
        "children": counts["children"], "with_prompt": counts["with_prompt"], "with_response": counts["with_response"],
        "replies": counts["replies"], "failed_replies": counts["failed_replies"], "proposals": counts["proposals"],
        "proposals_in_scaffold": counts["in_scaffold"], "replay_match": counts["replay_match"],
        "replay_mismatch": counts["replay_mismatch"], "replay_unknown": counts["replay_unknown"],
        "bad_files": len(search.problems),
    }  # fmt: skip


def _row(record: dict[str, Any], index: int, number: int, search: Search, options: Options) -> Transition | None:
    parent, child = record.get("parent_code"), record.get("child_code")
    if not isinstance(parent, str) or not isinstance(child, str):
        return None
    parent, child, ours = text(parent), text(child), search.about
    system, user = messages_of(record)
    response = text(record.get("response"))
    kind, state, child = _replay(parent, child, response, user)
    ids = f"code:{code_hash(parent)}", f"{search.name}:{index}:{number}"
    usage = mapping(record.get("usage"))
    return Transition(
        id=transition_id(search.name, *ids), run=search.name, scaffold="gateway", scaffold_release="",
        task=text(ours.get("task")) or text(record.get("task")) or options.task or search.name,
        domain=text(ours.get("domain")) or options.domain, suite_role=text(ours.get("role")) or options.role,
        iteration=index, island=-1, generation=0, parent_id=ids[0], child_id=ids[1],
        language=text(record.get("language")) or "python", parent_code=parent, child_code=child,
        parent_metrics=_metrics(record, "parent_metrics"), child_metrics=_metrics(record, "child_metrics"),
        parent_artifacts=text(to_json(mapping(record.get("parent_artifacts")))),
        child_artifacts=text(to_json(mapping(record.get("child_artifacts")))), prompt_system=system, prompt_user=user,
        prompt_format=(text(ours.get("prompt_format")) or prompts.detect_format(system, user)) if user else "",
        response=response, reasoning=text(record.get("reasoning")), edit_kind=kind, replay=state,
        model=text(record.get("model")) or text(record.get("mutator")),
        prompt_tokens=integer(usage.get("prompt_tokens"), -1),
        response_tokens=integer(usage.get("completion_tokens"), -1), sources=to_json([text(search.roots[0].name)]),
        prompt_source="logged" if user else "", origin_id=ids[0],
    )  # fmt: skip


def _metrics(record: dict[str, Any], name: str) -> str:
    return text(to_json(record[name])) if isinstance(record.get(name), dict) else ""


def messages_of(record: dict[str, Any]) -> tuple[str, str]:
    """(system, user) of a request. Longer conversations keep their last user turn; content parts are joined."""
    system = user = ""
    for message in record.get("messages") if isinstance(record.get("messages"), list) else []:
        message = mapping(message)
        content = message.get("content")
        if isinstance(content, list):
            content = "".join(text(mapping(part).get("text")) for part in content)
        if message.get("role") == "system":
            system = text(content)
        elif message.get("role") == "user":
            user = text(content)
    return system, user


def _replay(parent: str, child: str, response: str, user: str) -> tuple[str, str, str]:
    """(edit kind, replay state, child) under the newest dialect, which is what the gateway's searches run.

    A mutator may have evaluated its child with other white space at the ends than the scaffold keeps (a rewrite is
    stripped); the row holds what the scaffold makes of the reply.
    """
    asked = prompts.edit_kind(user)
    for kind in [asked, "rewrite" if asked == "diff" else "diff"] if asked else ["diff", "rewrite"]:
        edit = edits.apply(parent, response, kind=kind) if response else None
        if edit and code_hash(edit.child) == code_hash(child):
            return kind, "match", edit.child
    return (asked if response else ""), ("mismatch" if response else "unknown"), child
