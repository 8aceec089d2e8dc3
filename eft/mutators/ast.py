"""A mutator without a model: edits on the syntax tree of the program in the prompt.

Two uses. Plain (`lookahead: 0`) it answers with one random edit and sees nothing but the program: the control that any
trained mutator has to beat. With `lookahead: k` it makes k distinct edits of the one parent — half of them follow the
history in the prompt (eft/mutators/ast_history.py), the rest are random (eft/mutators/ast_edits.py) — evaluates all,
reports all as proposals and answers with the best: a teacher that knows more than any student can see. `guided: 1.0`
without lookahead is the hand rule: go on with what improved, else turn round what did not, else at random.

A pure function of (seed, call number, messages, task): a search that is replayed gets the same answers.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Literal

from eft import edits
from eft.errors import EftError, UsageError, nearest
from eft.mutators import ast_edits, ast_history
from eft.mutators.reply import Reply
from eft.prompts import current_program, edit_kind
from eft.tasks.evaluate import Evaluation, evaluate
from eft.tasks.task import Task


class AstMutator:
    """Implements eft.mutators.reply.Mutator.

    seed        two mutators with different seeds give different edits
    lookahead   how many edits of one parent are evaluated before answering; 0: none, answer with the first
    form        "diff" or "rewrite"; None: what the prompt asks for, else diff
    task        what lookahead evaluates by
    kinds       "all", or "numbers": constants only
    guided      share of edits that follow the history; None: half with lookahead, none without
    """

    def __init__(
        self, seed: int, lookahead: int = 0, form: Literal["diff", "rewrite"] | None = None, task: Task | None = None,
        kinds: str = "all", guided: float | None = None,
    ) -> None:  # fmt: skip
        if kinds not in ast_edits.KINDS:
            raise UsageError(f"the ast mutator has no kinds '{kinds}'", way_out=nearest(kinds, ast_edits.KINDS))
        if form not in (None, "diff", "rewrite"):
            raise UsageError(f"the ast mutator has no form '{form}'", way_out=nearest(str(form), ("diff", "rewrite")))
        if lookahead < 0:
            raise UsageError(f"lookahead must not be negative (it is {lookahead})")
        if lookahead and task is None:
            raise UsageError("the ast mutator needs a task to look ahead", way_out="give the task, or lookahead: 0")
        if task is not None and task.language != "python":
            raise UsageError(
                f"the ast mutator cannot edit {task.language}", where=task.folder, why="it edits Python only"
            )
        self.seed, self.lookahead, self.form, self.task = seed, lookahead, form, task
        self.kinds = ast_edits.KINDS[kinds]
        self.guided = (0.5 if lookahead else 0.0) if guided is None else guided

    def propose(self, messages: list[dict[str, str]], call: int) -> Reply:
        """Answer the last user message. Raises EftError where it shows no Python program, or one that cannot be
        edited."""
        user = next((m["content"] for m in reversed(messages) if m.get("role") == "user"), "")
        parent = current_program(user)
        if parent is None:
            raise EftError("the prompt shows no program", why="no fence follows a '# Current Program' line",
                           way_out="use a prompt format with that line (openevolve@…, eft@1)")  # fmt: skip
        if edits.parse_python(parent) is None:
            raise EftError("the ast mutator cannot edit this program", why="it does not parse as Python")
        form = self.form or edit_kind(user) or "diff"
        rng = random.Random(f"{self.seed}:{call}")
        candidates = self._candidates(parent, user, form, rng)
        if self.lookahead == 0:
            first = next(candidates, None)
            if first is None:
                raise EftError("the ast mutator found nothing to change in this program")
            return Reply(first[1])
        return self._look_ahead(parent, candidates)

    def _candidates(self, parent: str, user: str, form: str, rng: random.Random) -> Iterator[tuple[str, str]]:
        """Distinct (child, response); guided ones come first, as many as their share says."""
        seen = {parent}
        count = max(self.lookahead, 1)
        wanted = int(self.guided * count) + (rng.random() < self.guided * count % 1)
        if wanted:
            followed = self._guided(parent, user, rng)
            for child in followed:
                if wanted and child not in seen and (response := _render(parent, child, form)):
                    seen.add(child)
                    wanted -= 1
                    yield child, response
        repeats = 0
        for change in ast_edits.stream(parent, rng, self.kinds):
            repeats = repeats + 1 if change.child in seen else 0
            if repeats > 100:  # a program with few possible edits: all of them are known
                return
            if change.child not in seen and (response := _render(parent, change.child, form)):
                seen.add(change.child)
                yield change.child, response

    def _guided(self, parent: str, user: str, rng: random.Random) -> list[str]:
        """What follows from the history: in random order when looking ahead, else continuations before opposites."""
        tree = edits.parse_python(parent)
        source = ast_edits.Source(parent, tree)
        followed = ast_history.follow(parent, source.allowed, ast_history.read(user))
        followed = [(name, child) for name, child in followed if edits.changes_syntax(parent, child)]
        if self.lookahead:
            rng.shuffle(followed)
            return [child for _, child in followed]
        return [child for _, child in sorted(followed, key=lambda f: f[0] != "cont")]

    def _look_ahead(self, parent: str, candidates: Iterator[tuple[str, str]]) -> Reply:
        """Evaluate up to `lookahead` edits and answer with the best; the first of equals wins."""
        tried: list[tuple[str, str, Evaluation]] = []
        for child, response in candidates:
            tried.append((child, response, evaluate(self.task, child)))
            if len(tried) == self.lookahead:
                break
        if not tried:
            raise EftError("the ast mutator found nothing to change in this program")
        before = evaluate(self.task, parent)
        best = max(tried, key=lambda t: float("-inf") if t[2].score is None else t[2].score)
        proposals = tuple(
            {
                "parent_code": parent, "child_code": child, "response": response, "parent_metrics": before.metrics,
                "child_metrics": result.metrics, "child_artifacts": result.artifacts, "chosen": child == best[0],
            }
            for child, response, result in tried
        )  # fmt: skip
        return Reply(best[1], proposals)


def _render(parent: str, child: str, form: str) -> str | None:
    """The reply that says this edit, None where the form cannot (a program with a fence in it, say)."""
    try:
        reply = edits.render_diff(parent, child) if form == "diff" else edits.render_rewrite(child)
    except ValueError:
        return None
    return reply
