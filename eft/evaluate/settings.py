"""What an evaluation is asked to do: the options of `eft evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from eft import loops
from eft.config import Section, StageConfig
from eft.errors import nearest
from eft.search.spec import SCAFFOLDS


def own_options(loop: str, given: dict[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the options that every loop has, `role` and `iterations`; those that its module knows). Of programs, `role` is
    the suite's."""
    ours = ("iterations",) if loop == loops.FIRST else ("role", "iterations")
    options = dict(given or {})
    return {k: options.pop(k) for k in ours if k in options}, options


class Serving(Section):
    """How vLLM serves a model; see `eft serve --help`."""

    max_model_len: int | None = Field(
        None, ge=1, description="longest prompt + reply, in tokens; default: the model's own"
    )
    dtype: str = Field("auto", description="weights' type: auto, bfloat16, float32 (reproducible under load)")
    max_num_seqs: int = Field(32, ge=1, description="replies generated at once")
    kv_cache_gib: int = Field(1, ge=1, description="GiB of memory for the KV cache (CPU build only)")
    args: list[str] = Field(default_factory=list, description="further options of `vllm serve`")
    start_s: float = Field(300.0, gt=0, description="seconds that a server may take to start")


class Budget(Section):
    """What a served mutator may use up in an evaluation, over all searches; replies from the journal cost nothing."""

    replies: int | None = Field(None, ge=1, description="replies that may be asked for")
    tokens: int | None = Field(None, ge=1, description="tokens of prompts and replies, as the server bills them")
    seconds: float | None = Field(None, gt=0, description="seconds of asking, all requests added up")
    dollars: float | None = Field(None, gt=0, description="money, at the two prices")
    prompt_price: float = Field(0.0, ge=0, description="dollars for a million tokens of prompts")
    completion_price: float = Field(0.0, ge=0, description="dollars for a million tokens of replies")


class Mutator(Section):
    """One contender, by kind.

    served: `model` (a model folder under root, a hub id, `embedded:…` or `random:…`), for which a vLLM server is
    started and stopped; or `base_url` and `model` of a server that is up (several: requests are spread over them). ast:
    a mutator without a model; `lookahead` k > 0 evaluates k edits for each proposal and answers with the best.
    best_of_n: the replies of the served mutator `of`, all to the start program, at equal budget. replay: the replies
    that the mutator `of` of an earlier evaluation gave, from the folder of its journals, to the same searches. routed:
    at every step the policy in the file `policy` says which of the mutators in `among` answers.
    """

    kind: Literal["served", "ast", "best_of_n", "replay", "routed"] = Field(
        "served", description="served, ast, best_of_n, replay or routed"
    )
    model: str | None = Field(None, description="model folder, hub id, or the model's name at base_url")
    base_url: str | list[str] | None = Field(
        None, description="an OpenAI-compatible server that is up, with /v1 at the end; or several that serve `model`"
    )
    journal: Path | None = Field(None, description="replay: the journal folder of the earlier evaluation")
    edit: Literal["", "diff", "rewrite"] = Field("", description="form of its edits; default: the evaluation's")
    api_key_env: str = Field("", description="environment variable that holds the key of base_url")
    of: str | None = Field(None, description="best_of_n, replay: whose replies")
    policy: Path | None = Field(None, description="routed: a Python file with route(state) -> name of a mutator")
    among: list[str] = Field(default_factory=list, description="routed: the mutators that it chooses among")
    concurrency: int = Field(64, ge=1, description="served: requests in flight at once")
    requests_per_minute: float | None = Field(None, gt=0, description="served: no more requests than these a minute")
    budget: Budget = Field(default_factory=Budget, description="served: what the mutator may use up in all")
    lookahead: int = Field(0, ge=0, description="ast: edits evaluated for each proposal")
    role: Literal["", "baseline", "tuned", "control"] = Field("", description="default: by name and kind")
    serving: Serving | None = Field(None, description="instead of the shared serving options")

    @model_validator(mode="after")
    def _complete(self) -> Mutator:
        if self.kind == "served" and not self.model:
            raise ValueError("a served mutator needs `model`")
        if self.kind == "best_of_n" and not self.of:
            raise ValueError("best_of_n needs `of`: the served mutator whose replies it samples")
        if self.kind == "replay" and not (self.of and self.journal):
            raise ValueError("replay needs `journal`, the journals of an earlier evaluation, and `of`, a mutator there")
        if (self.kind == "routed") != bool(self.policy and self.among):
            raise ValueError("a routed mutator, and no other, needs `policy` and `among`")
        if self.kind != "served" and (self.model or self.base_url):
            raise ValueError(f"`model` and `base_url` belong to served mutators, not to {self.kind}")
        return self

    @property
    def servers(self) -> list[str]:
        """The base URLs of servers that are up already; none where one is to be started."""
        return [self.base_url] if isinstance(self.base_url, str) else self.base_url or []


class Config(StageConfig):
    """Options of `eft evaluate`. Defaults: the paper's 100 proposals, temperature 0.7, top-p 0.95, 30,000 tokens."""

    positional: ClassVar[str | None] = None

    output: Path | None = Field(Path("evaluate"), description="output folder")
    suite: str = Field("embedded", description="a shipped suite, or a suite's YAML file")
    role: str = Field("heldout", description="which tasks of the suite")
    tasks: list[str] = Field(default_factory=list, description="these tasks (names or folders) instead of the suite's")
    loops: dict[str, dict[str, Any] | Literal[False] | None] = Field(
        default_factory=dict,
        description="loops by name with their options (false: not this one): programs, merge, routing; default: programs",
    )  # fmt: skip
    mutators: dict[str, Mutator] = Field(default_factory=dict, description="contenders by name")
    baseline: str = Field("base", description="name of the untuned mutator")
    iterations: int = Field(100, ge=1, description="proposals a search")
    seeds: int | list[int] = Field(3, description="how many searches of every mutator on every task, or their seeds")
    temperature: float = Field(0.7, ge=0, description="sampling temperature")
    top_p: float = Field(0.95, gt=0, le=1, description="nucleus sampling")
    max_tokens: int = Field(30_000, ge=1, description="most tokens of a reply")
    prompt_format: str = Field("openevolve@0.4", description="openevolve@0.4 or eft@1")
    edit: Literal["diff", "rewrite"] = Field("diff", description="form of an edit: diff or rewrite")
    scaffold: list[str] = Field(
        default_factory=lambda: ["openevolve"], min_length=1,
        description="engines of the searches, each over the whole plan: openevolve, tournament, shinka",
    )  # fmt: skip
    sandbox: Literal["auto", "bubblewrap", "rlimits", "none"] = Field(
        "auto", description="how candidates are contained; auto: bubblewrap, or it is said that it is missing"
    )
    executor: Literal["local", "ray"] = Field("local", description="local processes, or the machines of a Ray cluster")
    gateway_host: str = Field("127.0.0.1", description="ray: this machine's address, as the other machines see it")
    workers: int = Field(4, ge=1, description="searches in flight")
    request_timeout_s: float = Field(600.0, gt=0, description="seconds that one reply may take")
    search_timeout_s: float | None = Field(
        None, gt=0, description="seconds that one search may take; default: no limit"
    )
    serving: Serving = Field(default_factory=Serving, description="how vLLM serves the models")

    @field_validator("scaffold", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("scaffold")
    @classmethod
    def _known(cls, value: list[str]) -> list[str]:
        engines = [s for s in SCAFFOLDS if s != "best_of_n"]  # that is a contender: mutators of kind best_of_n
        for name in value:
            if name not in engines:
                raise ValueError(f"there is no scaffold '{name}': {nearest(name, engines)}")
        if len(set(value)) < len(value):
            raise ValueError("a scaffold is named twice")
        return value

    @field_validator("loops")
    @classmethod
    def _known_loops(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name, given in value.items():
            loops.load(name)
            if given is not False:
                loops.section(name, own_options(name, given)[1])
        return value

    @field_validator("seeds")
    @classmethod
    def _some_seeds(cls, value: int | list[int]) -> int | list[int]:
        if value == [] or (isinstance(value, int) and value < 1):
            raise ValueError("at least one seed is needed")
        if isinstance(value, list) and len(set(value)) != len(value):
            raise ValueError("a seed is named twice")
        return value

    def seed_list(self) -> list[int]:
        """The seeds of every mutator's searches: the same for all, so that searches are paired."""
        return list(range(self.seeds)) if isinstance(self.seeds, int) else self.seeds
