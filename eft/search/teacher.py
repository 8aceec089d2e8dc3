"""Who proposes the edits that are collected: a model behind an endpoint, or `ast`; and what it may cost.

`samples`: a model is asked so many times for every prompt, each reply is applied and evaluated, and the scaffold goes
on with the best one. Every sample is in the journal twice over: as the reply that it was, with tokens and reasoning,
and, where it made a program, as a `proposal` with what that program scored. So a teacher with samples leaves as many
transitions as `ast` with lookahead does.
"""

from __future__ import annotations

import concurrent.futures
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, model_validator

from eft import edits, prompts
from eft.config import Section
from eft.errors import EftError, UsageError
from eft.mutators.reply import Reply
from eft.search import executor

SAMPLES = "teacher"  # the name in the path under which samples are asked for; the scaffold sees another one
DIALECT = "openevolve@0.4"


class MutatorConfig(Section):
    """Who proposes the edits: `ast`, or the model behind `base_url`."""

    name: str = Field("", description="its name in logs; default: ast, or the model's name")
    lookahead: int = Field(8, ge=0, description="ast: edits evaluated per parent before one is answered; 0: none")
    kinds: Literal["all", "numbers"] = Field("all", description="ast: which edits it makes")
    guided: float | None = Field(None, ge=0, le=1, description="ast: share of edits that follow the history")
    base_url: str | None = Field(None, description="an OpenAI-compatible endpoint, up to and including /v1")
    model: str | None = Field(None, description="the model's name there")
    api_key_env: str = Field("", description="environment variable that holds the endpoint's key")
    samples: int = Field(1, ge=1, le=64, description="replies asked for each prompt; the best program goes on")
    reasoning: Literal["", "none", "minimal", "low", "medium", "high"] = Field(
        "", description="reasoning_effort, sent to the endpoint; default: the model's own"
    )
    params: dict[str, Any] = Field(
        default_factory=dict, description="further parameters that the endpoint knows, sent with every request"
    )
    concurrency: int = Field(64, ge=1, description="requests in flight at once")
    requests_per_minute: float | None = Field(None, gt=0, description="no more requests than these")
    timeout: float = Field(600.0, gt=0, description="seconds for one attempt of a request")
    retries: int = Field(4, ge=0, description="further attempts of a request")

    @model_validator(mode="after")
    def _complete(self) -> MutatorConfig:
        if (self.base_url is None) != (self.model is None):
            raise ValueError("an endpoint needs both base_url and model")
        if self.base_url is None and (self.samples > 1 or self.reasoning or self.params):
            raise ValueError("samples, reasoning and params are for a model behind base_url (ast has lookahead)")
        return self

    @property
    def label(self) -> str:
        return self.name or (executor.folder_name(self.model) if self.model else "ast")


class BudgetConfig(Section):
    """What a collection may use up, over all its runs: what was answered before an interruption counts."""

    replies: int | None = Field(None, ge=1, description="replies of the teacher")
    tokens: int | None = Field(None, ge=1, description="tokens of prompts and replies, as the endpoint bills them")
    dollars: float | None = Field(None, gt=0, description="money, at the two prices")
    prompt_price: float = Field(0.0, ge=0, description="dollars for a million tokens of prompts")
    completion_price: float = Field(0.0, ge=0, description="dollars for a million tokens of replies")
    hours: float | None = Field(None, gt=0, description="hours of collecting, by the clock on the wall")

    @model_validator(mode="after")
    def _priced(self) -> BudgetConfig:
        if self.dollars is not None and not (self.prompt_price or self.completion_price):
            raise ValueError("a budget in dollars needs prompt_price and completion_price (for a million tokens)")
        return self


def parse_teacher(teacher: str) -> dict[str, str | None]:
    """`ast`, or MODEL@BASE_URL, as fields of MutatorConfig. Raises ValueError for anything else."""
    if teacher == "ast":
        return {"base_url": None, "model": None}
    model, at, url = teacher.rpartition("@")
    if not at or not model or not url.startswith(("http://", "https://")):
        raise ValueError(f"a teacher is 'ast' or MODEL@BASE_URL, as in big@http://127.0.0.1:8000/v1; got '{teacher}'")
    return {"base_url": url, "model": model}


def upstream(m: MutatorConfig, budget: BudgetConfig) -> Any:
    """The endpoint as the gateway asks it. Raises UsageError where its key is not set."""
    from eft.mutators.budget import Budget
    from eft.mutators.upstream import Upstream

    key = os.environ.get(m.api_key_env) if m.api_key_env else None
    if m.api_key_env and not key:
        raise UsageError(f"the environment variable {m.api_key_env} is not set", way_out="export the key in it")
    force = {**m.params, **({"reasoning_effort": m.reasoning} if m.reasoning else {})}
    limits = Budget(**budget.model_dump(exclude={"hours"}))
    return Upstream(
        m.base_url, m.model, key, timeout=m.timeout, retries=m.retries, concurrency=m.concurrency, force=force,
        requests_per_minute=m.requests_per_minute, vary_seed=True, budget=limits,
    )  # fmt: skip


@dataclass(frozen=True)
class Sampler:
    """A mutator that asks the model several times, evaluates what comes back and answers with the best.

    url: gives the gateway's base URL of a search for the model itself. task: evaluates the programs. params: sampling
    parameters of every request. A pure function of the messages and the journal: a search that starts over gets the
    same samples from the journal, and evaluating them again gives the same choice.
    """

    url: Callable[[], str]
    model: str
    task: Any
    samples: int
    params: dict[str, Any]
    timeout: float

    def propose(self, messages: list[dict[str, str]], call: int) -> Reply:
        """Raises EftError where not one of the samples came back."""
        from eft.mutators.client import Client
        from eft.tasks.evaluate import evaluate

        user = next((m["content"] for m in reversed(messages) if m.get("role") == "user"), "")
        parent, kind = prompts.current_program(user), prompts.edit_kind(user) or "diff"
        answers, error = [], None
        with Client(self.url(), self.model, timeout=self.timeout, retries=0) as client:
            with concurrent.futures.ThreadPoolExecutor(self.samples) as pool:
                asked = [pool.submit(client.chat, messages, **self.params) for _ in range(self.samples)]
            for one in asked:
                try:
                    answers.append(one.result())
                except EftError as e:  # the gateway has retried and journaled it
                    error = e
        if not answers:
            raise error or EftError("the teacher gave no reply")
        # Which of equal requests was answered with which sample depends on the moment: their texts decide the order.
        answers.sort(key=lambda a: (a["content"], a["reasoning"] or ""))
        before = evaluate(self.task, parent) if parent is not None else None
        language = self.task.language
        best, tried = (float("-inf"), answers[0]), []
        for answer in answers:
            edit = before and edits.apply(parent, answer["content"], kind=kind, dialect=DIALECT, language=language)
            if not edit or edit.child == parent or any(edit.child == t[1] for t in tried):
                continue
            result = evaluate(self.task, edit.child)
            tried.append((answer, edit.child, result))
            if result.score is not None and result.score > best[0]:
                best = result.score, answer
        if best[0] == float("-inf") and tried:
            best = best[0], tried[0][0]  # none is valid: at least one that can be applied
        proposals = tuple(
            {"parent_code": parent, "child_code": child, "response": answer["content"], "model": self.model,
             "reasoning": answer["reasoning"], "language": language, "usage": answer["usage"],
             "parent_metrics": before.metrics, "parent_artifacts": before.artifacts, "child_metrics": result.metrics,
             "child_artifacts": result.artifacts, "chosen": answer is best[1]} for answer, child, result in tried
        )  # fmt: skip
        return Reply(best[1]["content"], proposals, best[1]["reasoning"])
