"""A mutator that is a choice among others: before every step a policy says which of them answers.

The policy, a Python file `route(state) -> name` (eft/tasks/policy.py), runs in the sandbox; its state is made of what
the search's journal tells: which mutator answered each earlier request, what its child scored, how long it took. Every
decision is journaled with its reply and the state that it was made from (`about` of the record), so a search that was
killed goes on with the history that it had; what is in the journal already is replayed by the gateway without asking
anybody.

Children of earlier steps are looked up in the search's own cache of evaluations; one that is not there yet is evaluated
into it, so the search finds it there.

Honest limits: costs are wall seconds of asking, so a run that is made anew (not replayed) may decide otherwise; the score
of the start program and of every program in hand come from evaluations, which must be deterministic.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from eft import edits
from eft.errors import EftError, UsageError
from eft.mutators import journal as journals
from eft.mutators.reply import Mutator, Reply
from eft.mutators.step_state import step_state
from eft.prompts import current_program, edit_kind
from eft.records import Validity
from eft.tasks import policy as policies
from eft.tasks.evaluate import evaluate
from eft.tasks.task import Task


def read(file: Path) -> str:
    """The policy's text. Raises UsageError for a file that is missing, is no UTF-8 text, or breaks a policy's rules."""
    try:
        code = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError("there is no such policy", where=file) from None
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError("the policy cannot be read", where=file, why=str(e)) from None
    if why := policies.refusal(code):
        raise UsageError("this is no policy", where=file, why=why)
    return code


def check(file: Path, names: Sequence[str]) -> None:
    """Raises UsageError where the policy cannot be used with mutators of these names: it is asked for the first step of
    a made-up search, and for a later one."""
    code = read(file)
    if not names:
        raise UsageError("a routed mutator needs mutators to choose among", where=file)
    done = [{"arm": n, "before": 1.0, "after": 1.0 + i, "cost": 1.0} for i, n in enumerate(names)]
    states = [step_state("task", "domain", list(names), 100, 1.0, 1000, steps) for steps in ([], done, done * 5)]
    found = policies.ask(code, states, names)
    if found.validity is not Validity.VALID:
        raise UsageError("the policy cannot choose among these mutators", where=file, why=found.error)


class Routed:
    """Implements eft.mutators.reply.Mutator for one search.

    policy      the policy's file
    arms        name -> mutator; the names are what route() returns
    budget      steps of the search
    task        what children are evaluated by
    journal     the search's journal, whose records of `name` are the history; None: kept in this object alone
    cache       the search's cache of evaluations
    name        this mutator's own name in the journal
    dialect     how the scaffold reads replies (eft.edits.apply)
    """

    def __init__(
        self, policy: Path, arms: Mapping[str, Mutator], *, budget: int, seed: int, task: Task,
        journal: Path | None = None, cache: Path | None = None, name: str = "routed", dialect: str = edits.DEFAULT_DIALECT,
    ) -> None:  # fmt: skip
        self.code, self.file, self.arms = read(policy), policy, dict(arms)
        self.budget, self.seed, self.task = budget, seed, task
        self.journal, self.cache, self.name, self.dialect = journal, cache, name, dialect
        self._history: list[dict[str, Any]] = []
        self._read = 0  # bytes of the journal that are in the history

    def propose(self, messages: list[dict[str, str]], call: int) -> Reply:
        """The reply of the mutator that the policy chooses. Raises EftError where the policy fails, or that mutator."""
        user = _user(messages)
        parent = current_program(user)
        if parent is None:
            raise EftError("the prompt shows no program", why="no fence follows a '# Current Program' line")
        state = self.state(parent)
        found = policies.ask(self.code, [state], list(self.arms), again=0)
        if found.validity is not Validity.VALID:
            raise EftError("the policy made no choice", where=self.file, why=found.error)
        arm, started = found.names[0], time.monotonic()
        reply = self.arms[arm].propose(messages, call)
        seconds = round(time.monotonic() - started, 3)
        if self.journal is None:
            self._note(arm, seconds, user, reply.content)
        return replace(reply, about={"arm": arm, "seconds": seconds, "state": state})

    def state(self, parent: str) -> dict[str, Any]:
        """What the policy is told before the next step, with `parent` in hand."""
        self._catch_up()
        start = self._score(self.task.seed())
        return step_state(
            self.task.name, self.task.domain, list(self.arms), self.budget, 0.0 if start is None else start,
            len(parent), self._history,
        )  # fmt: skip

    def _catch_up(self) -> None:
        """Take the records that the journal has got since the last step into the history. A torn line waits."""
        if self.journal is None or not self.journal.exists():
            return
        with open(self.journal, "rb") as f:
            f.seek(self._read)
            data = f.read()
        whole = data.rfind(b"\n") + 1
        self._read += whole
        for line in data[:whole].splitlines():
            record = journals.parse_line(line)
            if not record or record["kind"] != "reply" or record.get("mutator") != self.name:
                continue
            about = record.get("about")
            if record.get("status") == "ok" and isinstance(about, dict) and about.get("arm") in self.arms:
                self._note(about["arm"], float(about["seconds"]), _user(record["messages"]), record["content"])

    def _note(self, arm: str, seconds: float, user: str, content: str) -> None:
        parent = current_program(user) or ""
        edit = edits.apply(
            parent, content, kind=edit_kind(user) or "diff", dialect=self.dialect, language=self.task.language
        )
        after = self._score(edit.child) if edit else None
        before = self._score(parent)
        self._history.append(
            {"arm": arm, "before": before if before is not None else 0.0, "after": after, "cost": seconds}
        )

    def _score(self, code: str) -> float | None:
        return evaluate(self.task, code, cache=self.cache).score


def _user(messages: list[dict[str, str]]) -> str:
    return next((m["content"] for m in reversed(messages) if m.get("role") == "user"), "")
