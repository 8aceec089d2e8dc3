"""`eft gateway`: stand in front of one or several model endpoints and record whatever search is run through them.

    eft gateway --upstream http://127.0.0.1:8000/v1 --model my-model --journal journal --port 8100
    # then, in the search's config:  api_base: http://127.0.0.1:8100/s/<a name for this search>/model/v1

Every request, reply and failure is on disk before the search sees it; a search that starts over is answered from there.
Several --upstream are replicas of one model. `--set models.NAME=MODEL` serves more models of the same endpoints by
name (LoRA adapters that vLLM has loaded, say). `--set budget.tokens=…` (replies, seconds, dollars) is counted from the
journals, so it holds over restarts. /stats tells what went through, and how much of the prompts vLLM had cached.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, field_validator

from eft.config import Section, StageConfig
from eft.errors import UsageError
from eft.mutators import metrics
from eft.mutators.budget import Budget
from eft.mutators.gateway import Gateway
from eft.mutators.upstream import Upstream


class Limits(Section):
    """What a model may use up, over all searches in the journal folder; replies from the journal cost nothing."""

    replies: int | None = Field(None, ge=1, description="Replies that may be asked for.")
    tokens: int | None = Field(None, ge=1, description="Tokens of prompts and replies, as the endpoint bills them.")
    seconds: float | None = Field(None, gt=0, description="Seconds of asking, all requests added up.")
    dollars: float | None = Field(None, gt=0, description="Money, at the two prices.")
    prompt_price: float = Field(0.0, ge=0, description="Dollars for a million tokens of prompts.")
    completion_price: float = Field(0.0, ge=0, description="Dollars for a million tokens of replies.")


class Config(StageConfig):
    """Options of `eft gateway`."""

    positional: ClassVar[str | None] = None

    upstream: list[str] = Field(description="Base URL of the model endpoint, up to and including /v1.")
    model: str | None = Field(None, description="Model name to send; without it the scaffold's own is passed on.")
    models: dict[str, str] = Field(default_factory=dict, description="More models there: name in the path -> its own.")
    journal: Path = Field(Path("journal"), description="Folder of the journals, one file per search.")
    port: int = Field(8100, ge=0, le=65535, description="Port to listen on; 0 takes any free one.")
    host: str = Field("127.0.0.1", description="Address to listen on. There is no authentication: keep it on loopback.")
    name: str = Field("model", description="Name of the mutator in the path.")
    api_key_env: str = Field("", description="Variable that holds the endpoint's key; else the scaffold's is used.")
    timeout: float = Field(600.0, gt=0, description="Seconds for one attempt.")
    retries: int = Field(4, ge=0, description="Further attempts after a failed one.")
    concurrency: int = Field(64, ge=1, description="Requests in flight at once at each endpoint.")
    requests_per_minute: float | None = Field(None, gt=0, description="No more requests than these; default: no limit.")
    max_tokens: int | None = Field(None, ge=1, description="Cap on the length of a reply, in tokens.")
    budget: Limits = Field(default_factory=Limits, description="What each model may use up.")
    defaults: dict[str, Any] = Field(default_factory=dict, description="Parameters sent where the scaffold gives none.")
    force: dict[str, Any] = Field(default_factory=dict, description="Parameters sent whatever the scaffold gives.")

    @field_validator("upstream", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value


def inputs(config: Config) -> list[Path]:
    """Nothing on disk: a gateway reads requests."""
    return []


def upstreams(config: Config) -> dict[str, Upstream]:
    """The mutators by their names in the path. Raises UsageError for URLs and keys that cannot be used."""
    key = os.environ.get(config.api_key_env) if config.api_key_env else None
    if config.api_key_env and not key:
        raise UsageError(f"the environment variable {config.api_key_env} is not set", way_out="export the key in it")
    if config.name in config.models:
        raise UsageError(f"two models are named '{config.name}'", way_out="give --name another one")
    return {
        name: Upstream(
            tuple(config.upstream), model, key, config.timeout, config.retries, config.concurrency, config.defaults,
            config.force, config.max_tokens, requests_per_minute=config.requests_per_minute,
            budget=Budget(**config.budget.model_dump()),
        )
        for name, model in {config.name: config.model, **config.models}.items()
    }  # fmt: skip


def run(config: Config) -> dict[str, Any]:
    """Serve until SIGINT or SIGTERM. Prints the base URLs on standard output. Returns the counts of the session."""
    gateway = Gateway(config.path(config.journal), upstreams(config), host=config.host, port=config.port)
    before = metrics.prefix_cache(config.upstream)

    async def serve() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        async with gateway:
            for name in gateway.mutators:
                print(gateway.url("search", name), flush=True)
            print(f"gateway: recording to {gateway.journal.folder}; give every search a name of its own in place of "
                  "'search'; Ctrl-C stops", file=sys.stderr)  # fmt: skip
            await stop.wait()

    asyncio.run(serve())
    total = gateway.stats()["total"]
    print("gateway: " + ", ".join(f"{total[k]} {k}" for k in ("answered", "replayed", "failed")), file=sys.stderr)
    if shared := metrics.shared(before, metrics.prefix_cache(config.upstream)):
        print(f"gateway: {shared}", file=sys.stderr)
    return total
