"""Models as states, and how they score on items: the host that `eft gate` and the inheritance loop use.

A state is a model folder, an adapter folder, `embedded:…`, `random:…`, a hub id, or a server's model as
`http://HOST:PORT/v1#NAME`. Served models answer behind an OpenAI-compatible endpoint: somebody's, or a vLLM server of
ours that is started when it is first asked and ended with the host. `judge` items need no server: the weights are
loaded here.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pydantic import Field

from eft import edits
from eft.config import Section
from eft.errors import EftError, UsageError
from eft.gate.evidence import Item
from eft.gate.host import State

REFUSED = re.compile(r"(400|413|422):")  # the server refuses this prompt (too long): the model has no reply to give
LOADED = 2  # models kept in memory for `judge` items: the root and one candidate


class Serving(Section):
    """How models are served and asked. Both sides alike: anything else would be compared with it."""

    max_model_len: int = Field(4096, ge=1, description="tokens of prompt and reply")
    dtype: str = Field("auto", description="auto, bfloat16, float16, float32")
    max_num_seqs: int = Field(32, ge=1, description="replies in flight at once")
    kv_cache_gib: int = Field(1, ge=1, description="GiB for the KV cache (CPU build)")
    start_s: float = Field(300.0, gt=0, description="seconds until a server must answer")
    args: list[str] = Field(
        default_factory=list,
        description="further options of vllm serve; on one GPU give each "
        "side its share: ['--gpu-memory-utilization', '0.45']",
    )
    request_timeout_s: float = Field(600.0, gt=0)
    api_key_env: str = Field("", description="environment variable with the key of somebody's server")
    temperature: float = Field(0.7, ge=0)
    top_p: float = Field(0.95, gt=0, le=1)
    max_tokens: int = Field(512, ge=1, description="longest reply, in tokens")
    workers: int = Field(8, ge=1, description="items asked and evaluated at once")


def model_state(name: str, root: Path = Path(".")) -> State:
    """The state called `name` (see above). Raises UsageError where there is no such model."""
    if name.startswith(("http://", "https://")):
        base_url, _, model = name.partition("#")
        if not model:
            raise UsageError(f"which model of {base_url}?", way_out="write it behind a #: http://HOST:PORT/v1#NAME")
        key = hashlib.sha256(name.encode()).hexdigest()[:16]
        return State(name, key, {"base_url": base_url.rstrip("/"), "model": model})
    from eft.models.identity import fingerprint
    from eft.models.load import locate

    place = locate(name, root)
    place = str(Path(place).resolve()) if Path(place).is_dir() else place
    return State(name, fingerprint(place), {"place": place})


def check_comparable(root: State, candidate: State) -> None:
    """Raises EftError where the two are known to be of other architectures or prompt formats."""
    from eft.models import identity

    if "place" in root.payload and "place" in candidate.payload:
        identity.check_comparable(root.payload["place"], candidate.payload["place"])


class ModelHost:
    """Scores models on the items of one pool. A context manager: servers that it started end with it."""

    def __init__(
        self, work: Path, serving: Serving | None = None, propose: Callable[[], Sequence[State]] = tuple
    ) -> None:
        self.work, self.serving, self._propose = work, serving or Serving(), propose
        self._stack = contextlib.ExitStack()
        self._endpoints: dict[str, tuple[str, str, Callable[[], None]]] = {}  # fingerprint -> url, model, check
        self._models: dict[str, tuple[Any, Any]] = {}

    def __enter__(self) -> ModelHost:
        return self

    def __exit__(self, *exc: object) -> None:
        self._endpoints.clear()
        self._stack.close()

    def propose(self) -> Sequence[State]:
        return self._propose()

    def evaluate(self, state: State, items: Sequence[Item]) -> list[float]:
        """q per item, by the items' kind. Raises EftError where the state cannot be asked."""
        kind = items[0].kind
        if kind == "judge":
            return self._judge(state, items)
        url, model, check = self.endpoint(state)
        check()
        try:
            return self._mutate(url, model, items) if kind == "mutation" else self._search(state, url, model, items)
        except EftError:
            check()  # a server that has died is the reason to name
            raise

    # ---- endpoints

    def endpoint(self, state: State) -> tuple[str, str, Callable[[], None]]:
        """(base URL, model name, a check that raises EftError where its server ended). Starts one if need be."""
        if state.fingerprint not in self._endpoints:
            self._endpoints[state.fingerprint] = self._start(state)
        return self._endpoints[state.fingerprint]

    def _start(self, state: State) -> tuple[str, str, Callable[[], None]]:
        if "base_url" in state.payload:
            return state.payload["base_url"], state.payload["model"], lambda: None
        from eft.models.materialise import servable
        from eft.mutators.server import serving

        s, name = self.serving, f"state-{state.fingerprint}"
        target, hub = servable(state.payload["place"], self.work / "models" / state.fingerprint)
        server = self._stack.enter_context(
            serving(
                target if hub else Path(target),
                name=name,
                max_model_len=s.max_model_len,
                dtype=s.dtype,
                max_num_seqs=s.max_num_seqs,
                kv_cache_gib=s.kv_cache_gib,
                hub=hub,
                timeout=s.start_s,
                args=tuple(s.args),
                log=(self.work / "logs" / f"{name}.log").resolve(),
            )
        )
        return server.base_url, server.name, server.check

    def _key(self) -> str | None:
        import os

        name = self.serving.api_key_env
        if name and not os.environ.get(name):
            raise UsageError(f"the environment variable {name} is not set", way_out="export the key in it")
        return os.environ.get(name) if name else None

    # ---- mutation: one reply, applied and run

    def _mutate(self, url: str, model: str, items: Sequence[Item]) -> list[float]:
        from eft.mutators.client import chat
        from eft.tasks.evaluate import evaluate
        from eft.tasks.task import load_task

        s, key = self.serving, self._key()

        def one(item: Item) -> float:
            p = item.payload
            try:
                reply = chat(
                    url,
                    model,
                    p["messages"],
                    timeout=s.request_timeout_s,
                    retries=2,
                    api_key=key,
                    temperature=s.temperature,
                    top_p=s.top_p,
                    max_tokens=s.max_tokens,
                    seed=int(item.id[:8], 16) >> 1,
                )["content"]
            except EftError as e:
                if REFUSED.match(e.why or ""):
                    return 0.0
                raise
            task = load_task(p["folder"])
            edit = edits.apply(p["parent_code"], reply, kind=p["edit"], language=task.language)
            if not edit or not edits.changes_syntax(p["parent_code"], edit.child, task.language):
                return 0.0
            score = evaluate(task, edit.child).score
            return float(score is not None and score > p["parent_score"])

        with ThreadPoolExecutor(s.workers) as pool:
            return list(pool.map(one, items))

    # ---- search: a short one, by its normalised score

    def _search(self, state: State, url: str, model: str, items: Sequence[Item]) -> list[float]:
        from eft.search.executor import run_all
        from eft.search.spec import SearchSpec
        from eft.tasks.task import gap_closed, load_task

        s = self.serving
        specs = [
            SearchSpec(
                task=i.payload["folder"],
                base_url=url,
                out=str((self.work / "searches" / state.fingerprint / i.id).resolve()),
                model=model,
                mutator=state.fingerprint,
                seed=i.payload["seed"],
                iterations=i.payload["iterations"],
                edit=i.payload["edit"],
                prompt_format=i.payload["prompt_format"],
                temperature=s.temperature,
                top_p=s.top_p,
                max_tokens=s.max_tokens,
                request_timeout_s=s.request_timeout_s,
                role="gate",
                api_key_env=s.api_key_env,
            )
            for i in items
        ]
        found = []
        for outcome, item in zip(run_all(specs, s.workers, title="gate"), items, strict=True):
            if outcome.result is None:
                raise EftError(
                    f"a search of '{state.name}' failed, nothing is decided",
                    where=outcome.spec.folder,
                    why=outcome.error,
                    way_out="run the same command again",
                )
            task, r = load_task(item.payload["folder"]), outcome.result
            hidden = task.has_hidden and r.seed_final_raw is not None
            share = gap_closed(task, r.final_raw if hidden else r.best_raw, hidden=hidden)
            found.append(min(1.0, max(0.0, share or 0.0)))
        return found

    # ---- judge: by log-likelihood

    def _judge(self, state: State, items: Sequence[Item]) -> list[float]:
        if "place" not in state.payload:
            raise UsageError(
                "judge items need the model's weights",
                where=state.name,
                way_out="give a model folder, or use --kind mutation",
            )
        from eft.models.logprob import completions

        model, tokenizer = self._loaded(state)
        found = []
        for item in items:
            p = item.payload
            better, worse = completions(
                model, tokenizer, p["messages"], [p["better"], p["worse"]], max_tokens=self.serving.max_model_len
            )
            found.append(1.0 if better > worse else 0.5 if better == worse else 0.0)
        return found

    def _loaded(self, state: State) -> tuple[Any, Any]:
        if state.fingerprint not in self._models:
            from eft import tokenizers
            from eft.models.identity import tokenizer_place
            from eft.models.load import load_model

            while len(self._models) >= LOADED:
                self._models.pop(list(self._models)[-1])  # the newest goes: the root was first, and comes again
            print(f"gate: loading {state.name}", file=sys.stderr, flush=True)
            place = state.payload["place"]
            self._models[state.fingerprint] = (load_model(place).eval(), tokenizers.load(tokenizer_place(place)))
        return self._models[state.fingerprint]
