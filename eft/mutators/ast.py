"""A mutator without a model: edits on the syntax tree of the program in the prompt.

Two uses. Plain (`lookahead: 0`) it answers with one random edit and sees nothing but the program: the control that any
trained mutator has to beat. With `lookahead: k` it makes k distinct edits of the one parent — half of them follow the
history in the prompt (eft/mutators/ast_history.py), the rest are random (eft/mutators/ast_edits.py) — evaluates all,
reports all as proposals and answers with the best: a teacher that knows more than any student can see. `guided: 1.0`
without lookahead is the hand rule: go on with what improved, else turn round what did not, else at random.

A pure function of (seed, call number, messages, task): a search that is replayed gets the same answers.

Programs in other languages than Python (the task's language, or the tag on the prompt's fence) are edited by their
tokens (eft/mutators/text_edits.py) instead of their tree; everything else is the same.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Literal

from eft import edits
from eft.errors import EftError, UsageError, nearest
from eft.mutators import ast_edits, ast_history, text_edits
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
        if task is not None and task.language not in ("python", *text_edits.LANGUAGES):
            raise UsageError(f"the ast mutator cannot edit {task.language}", where=task.folder,
                             why=f"it knows python, {', '.join(text_edits.LANGUAGES)}")  # fmt: skip
        self.seed, self.lookahead, self.form, self.task = seed, lookahead, form, task
        self.kinds = kinds
        self.guided = (0.5 if lookahead else 0.0) if guided is None else guided

    def propose(self, messages: list[dict[str, str]], call: int) -> Reply:
        """Answer the last user message. Raises EftError where it shows no program, or one that cannot be edited."""
        user = next((m["content"] for m in reversed(messages) if m.get("role") == "user"), "")
        parent = current_program(user)
        if parent is None:
            raise EftError("the prompt shows no program", why="no fence follows a '# Current Program' line",
                           way_out="use a prompt format with that line (openevolve@…, eft@1)")  # fmt: skip
        language = self.task.language if self.task else _language(user)
        if language == "python" and edits.parse_python(parent) is None:
            raise EftError("the ast mutator cannot edit this program", why="it does not parse as Python")
        form = self.form or edit_kind(user) or "diff"
        rng = random.Random(f"{self.seed}:{call}")
        candidates = self._candidates(parent, user, form, language, rng)
        if self.lookahead == 0:
            first = next(candidates, None)
            if first is None:
                raise EftError("the ast mutator found nothing to change in this program")
            return Reply(first[1])
        return self._look_ahead(parent, candidates)

    def _candidates(
        self, parent: str, user: str, form: str, language: str, rng: random.Random
    ) -> Iterator[tuple[str, str]]:
        """Distinct (child, response); guided ones come first, as many as their share says."""
        seen = {parent}
        count = max(self.lookahead, 1)
        wanted = int(self.guided * count) + (rng.random() < self.guided * count % 1)
        if wanted:
            followed = self._guided(parent, user, language, rng)
            for child in followed:
                if wanted and child not in seen and (response := _render(parent, child, form, language)):
                    seen.add(child)
                    wanted -= 1
                    yield child, response
        repeats = 0
        if language == "python":
            changes = ast_edits.stream(parent, rng, ast_edits.KINDS[self.kinds])
        else:
            changes = text_edits.stream(parent, rng, language, text_edits.KINDS[self.kinds])
        for change in changes:
            repeats = repeats + 1 if change.child in seen else 0
            if repeats > 100:  # a program with few possible edits: all of them are known
                return
            if change.child not in seen and (response := _render(parent, change.child, form, language)):
                seen.add(change.child)
                yield change.child, response

    def _guided(self, parent: str, user: str, language: str, rng: random.Random) -> list[str]:
        """What follows from the history: in random order when looking ahead, else continuations before opposites."""
        allowed = ast_edits.allowed_lines(parent.split("\n"))
        followed = ast_history.follow(parent, allowed, ast_history.read(user))
        followed = [(name, child) for name, child in followed if edits.changes_syntax(parent, child, language)]
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


def _language(user: str) -> str:
    """The language of the prompt's program by the tag on its fence; Python where it has none that is known."""
    tags = re.findall(r"^# Current [Pp]rogram\b[^`]*```[ \t]*([\w+#.-]*)", user, re.MULTILINE)
    tag = tags[-1].lower() if tags else ""
    tag = text_edits.FENCES.get(tag, tag)
    return tag if tag in text_edits.LANGUAGES else "python"


def _render(parent: str, child: str, form: str, language: str) -> str | None:
    """The reply that says this edit, None where the form cannot (a program with a fence in it, say)."""
    try:
        reply = edits.render_diff(parent, child) if form == "diff" else edits.render_rewrite(child, language)
    except ValueError:
        return None
    return reply
