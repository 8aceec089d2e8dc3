"""What an evaluation is asked to do: the options of `eft evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from eft.config import Section, StageConfig


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


class Mutator(Section):
    """One contender, by kind.

    served: `model` (a model folder under root, a hub id, `embedded:…` or `random:…`), for which a vLLM server is
    started and stopped; or `base_url` and `model` of a server that is up. ast: a mutator without a model; `lookahead`
    k > 0 evaluates k edits for each proposal and answers with the best. best_of_n: the replies of the served mutator
    `of`, all to the start program, at equal budget.
    """

    kind: Literal["served", "ast", "best_of_n"] = Field("served", description="served, ast or best_of_n")
    model: str | None = Field(None, description="model folder, hub id, or the model's name at base_url")
    base_url: str | None = Field(None, description="an OpenAI-compatible server that is up, up to and including /v1")
    api_key_env: str = Field("", description="environment variable that holds the key of base_url")
    of: str | None = Field(None, description="best_of_n: whose replies")
    lookahead: int = Field(0, ge=0, description="ast: edits evaluated for each proposal")
    role: Literal["", "baseline", "tuned", "control"] = Field("", description="default: by name and kind")
    serving: Serving | None = Field(None, description="instead of the shared serving options")

    @model_validator(mode="after")
    def _complete(self) -> Mutator:
        if self.kind == "served" and not self.model:
            raise ValueError("a served mutator needs `model`")
        if self.kind == "best_of_n" and not self.of:
            raise ValueError("best_of_n needs `of`: the served mutator whose replies it samples")
        if self.kind != "served" and (self.model or self.base_url):
            raise ValueError(f"`model` and `base_url` belong to served mutators, not to {self.kind}")
        return self


class Config(StageConfig):
    """Options of `eft evaluate`. Defaults: the paper's 100 proposals, temperature 0.7, top-p 0.95, 30,000 tokens."""

    positional: ClassVar[str | None] = None

    output: Path | None = Field(Path("evaluate"), description="output folder")
    suite: str = Field("embedded", description="a shipped suite, or a suite's YAML file")
    role: str = Field("heldout", description="which tasks of the suite")
    tasks: list[str] = Field(default_factory=list, description="these tasks (names or folders) instead of the suite's")
    mutators: dict[str, Mutator] = Field(default_factory=dict, description="contenders by name")
    baseline: str = Field("base", description="name of the untuned mutator")
    iterations: int = Field(100, ge=1, description="proposals a search")
    seeds: int | list[int] = Field(3, description="how many searches of every mutator on every task, or their seeds")
    temperature: float = Field(0.7, ge=0, description="sampling temperature")
    top_p: float = Field(0.95, gt=0, le=1, description="nucleus sampling")
    max_tokens: int = Field(30_000, ge=1, description="most tokens of a reply")
    prompt_format: str = Field("openevolve@0.4", description="openevolve@0.4 or eft@1")
    edit: Literal["diff", "rewrite"] = Field("diff", description="form of an edit: diff or rewrite")
    workers: int = Field(4, ge=1, description="searches in flight")
    request_timeout_s: float = Field(600.0, gt=0, description="seconds that one reply may take")
    search_timeout_s: float | None = Field(
        None, gt=0, description="seconds that one search may take; default: no limit"
    )
    serving: Serving = Field(default_factory=Serving, description="how vLLM serves the models")

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
