"""Mutators that say what was written down: a script for tests and demos, a journal for searches run once more."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from eft.errors import EftError
from eft.mutators import journal
from eft.mutators.reply import Reply


class Scripted:
    """Answers call k with the k-th of `replies`, whatever was asked. `cycle`: starts over after the last one."""

    def __init__(self, replies: Sequence[str | Reply], *, cycle: bool = True) -> None:
        if not replies:
            raise ValueError("a script needs at least one reply")
        self.replies, self.cycle = [r if isinstance(r, Reply) else Reply(r) for r in replies], cycle

    def propose(self, messages: list[dict[str, str]], call: int) -> Reply:
        """The reply for `call`. Raises EftError at the end of a script that does not cycle."""
        if call >= len(self.replies) and not self.cycle:
            raise EftError(f"the script has {len(self.replies)} replies, and this is call {call + 1}")
        return self.replies[call % len(self.replies)]


class Replay:
    """Answers from a gateway's journal of one search (`file`: <search>.jsonl).

    The recorded reply number `call` where it answered the same messages: a search that runs again in the same order
    gets the same replies. Else one of those recorded for the same messages, in turn by `call`. Messages that were never
    recorded raise EftError, which the gateway turns into a failure: a replay never makes anything up. `mutator`: only
    its replies, where the journal holds several.
    """

    def __init__(self, file: Path, mutator: str | None = None) -> None:
        self.file = file
        self._replies: list[tuple[str, Reply]] = []
        self._by_messages: dict[str, list[Reply]] = {}
        for record in journal.read(file):
            if record["kind"] != "reply" or record.get("status") != "ok":
                continue
            if mutator is not None and record.get("mutator") != mutator:
                continue
            reply = Reply(record["content"], reasoning=record.get("reasoning"))
            key = _key(record["messages"])
            self._replies.append((key, reply))
            self._by_messages.setdefault(key, []).append(reply)
        if not self._replies:
            raise EftError("the journal holds no replies to replay", where=file)

    def propose(self, messages: list[dict[str, str]], call: int) -> Reply:
        """The recorded reply (see the class). Raises EftError for messages that are not in the journal."""
        key = _key(messages)
        if call < len(self._replies) and self._replies[call][0] == key:
            return self._replies[call][1]
        recorded = self._by_messages.get(key)
        if not recorded:
            raise EftError("these messages were never answered in the journal", where=self.file)
        return recorded[call % len(recorded)]


def _key(messages: list[dict[str, str]]) -> str:
    return json.dumps([[m.get("role"), m.get("content")] for m in messages])
