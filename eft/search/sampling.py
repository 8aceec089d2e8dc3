"""What our own scaffolds share: asking a mutator for replies and applying them to the program that they are about."""

from __future__ import annotations

import hashlib
import json
import os
import re
from typing import Any

from eft import edits
from eft.errors import EftError
from eft.manifest import clear_disk_errors
from eft.mutators.client import Client
from eft.prompts import current_program
from eft.search.spec import SearchSpec
from eft.search.tally import DIALECT, NO_ANSWER, Attempt, no_answer

SAMPLES = "samples.jsonl"
PATIENCE = 5  # consecutive requests without an answer after which the mutator counts as gone


def client(spec: SearchSpec) -> Client:
    """The line to the search's mutator, kept open for all of its requests."""
    key = os.environ.get(spec.api_key_env) if spec.api_key_env else None
    return Client(spec.base_url, spec.model, timeout=spec.request_timeout_s, retries=0, api_key=key)


def ask(
    line: Client, spec: SearchSpec, task: Any, messages: list[dict[str, str]], first: int, count: int
) -> list[Attempt]:
    """`count` replies to one prompt, as the iterations `first`, `first` + 1, …, each applied to the program that the
    prompt shows. A request that fails is `count` attempts without a reply: it has used up their budget."""
    user = messages[-1]["content"]
    digest = hashlib.sha256(f"{spec.seed}:{first}".encode()).digest()
    params: dict[str, Any] = {"temperature": spec.temperature, "top_p": spec.top_p, "max_tokens": spec.max_tokens,
                              "seed": int.from_bytes(digest[:4], "big") >> 1}  # fmt: skip
    if count > 1:  # one request: the prompt travels, and is read by the model, once
        params["n"] = count
    try:
        reply = line.chat(messages, **params)
    except EftError as e:
        why = e.why or e.what
        code = "Error code: " if re.match(r"\d{3}: ", why) else ""  # as OpenEvolve's log words it
        return [Attempt(first + i, user, None, error=f"{NO_ANSWER}: {code}{why}") for i in range(count)]
    parent = current_program(user) or ""
    attempts = []
    for i, choice in enumerate(reply["choices"][:count]):
        edit = edits.apply(parent, choice["content"], kind=spec.edit, dialect=DIALECT, language=task.language)
        usage = reply["usage"] or {} if i == 0 else {}  # of all replies together: counted once
        child, error = (edit.child, "") if edit else (None, str(edit))
        attempts.append(Attempt(first + i, user, choice["content"], child, error, usage))
    return attempts


class Log:
    """`samples.jsonl`: one line for every iteration that is done; for progress and for readers. A context manager."""

    def __init__(self, spec: SearchSpec) -> None:
        self.spec, self.unanswered = spec, 0

    def __enter__(self) -> Log:
        with clear_disk_errors(self.spec.folder):
            self.file = open(self.spec.folder / SAMPLES, "a", encoding="utf-8", errors="backslashreplace")
        return self

    def __exit__(self, *exc: object) -> None:
        self.file.close()

    def write(self, messages: list[dict[str, str]], attempts: list[Attempt]) -> None:
        """Log the attempts of one request. Raises EftError once PATIENCE requests in a row had no answer."""
        with clear_disk_errors(self.spec.folder / SAMPLES):
            for a in attempts:
                self.file.write(json.dumps({"iteration": a.iteration, "prompt": messages, "response": a.response,
                                            "child_code": a.child, "error": a.error}) + "\n")  # fmt: skip
            self.file.flush()
        self.unanswered = self.unanswered + 1 if attempts and no_answer(attempts[0].error) else 0
        if self.unanswered == PATIENCE:
            raise EftError("the mutator does not answer", where=self.spec.base_url, why=attempts[0].error,
                           way_out="see that its server runs, then run the same command again")  # fmt: skip
