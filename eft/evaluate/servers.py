"""Where the served mutators of an evaluation answer: a vLLM server of ours while it is needed, or somebody's."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from eft import manifest
from eft.errors import EftError, UsageError
from eft.evaluate.plan import Plan
from eft.evaluate.settings import Config, Mutator
from eft.models.load import ADAPTER, locate
from eft.mutators import engine

if TYPE_CHECKING:
    from eft.mutators.upstream import Upstream

REACH_S = 10.0  # seconds that a server which is said to be up may take to say so


def _get(url: str, key: str | None = None) -> dict:
    """The JSON object at `url`. Raises OSError or ValueError."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    with urllib.request.urlopen(request, timeout=REACH_S) as reply:
        value = json.load(reply)
    return value if isinstance(value, dict) else {}


def _key(mutator: Mutator) -> str | None:
    """The key of somebody's server. Raises UsageError where the environment does not hold it."""
    if not mutator.api_key_env:
        return None
    key = os.environ.get(mutator.api_key_env)
    if not key:
        raise UsageError(
            f"the environment variable {mutator.api_key_env} is not set", way_out="export the server's key in it"
        )
    return key


def _reach(name: str, mutator: Mutator) -> None:
    """Raises EftError where somebody's server does not answer or does not serve the model."""
    for base in mutator.servers:
        url = f"{base.rstrip('/')}/models"
        try:
            served = [m.get("id") for m in _get(url, _key(mutator)).get("data", [])]
        except (OSError, ValueError, AttributeError, TypeError) as e:
            way_out = "start it, or give `model` without `base_url` to have one started"
            why = str(getattr(e, "reason", e))
            raise EftError(f"the server of '{name}' does not answer", where=url, why=why, way_out=way_out) from None
        if served and mutator.model not in served:
            raise EftError(f"the server of '{name}' does not serve '{mutator.model}'", where=url,
                           way_out=f"it serves: {', '.join(map(str, served[:8]))}")  # fmt: skip


def check(config: Config, plan: Plan) -> None:
    """Raises EftError, before anything is started, where a server that is still needed cannot be had."""
    for group in plan.groups:
        if group.server is None or not group.pending():
            continue
        mutator = plan.mutators[group.server]
        if mutator.servers:
            _reach(group.server, mutator)
            continue
        engine.build(engine.python())
        place = Path(locate(mutator.model or "", config.root))
        if place.is_dir() and not (place / ADAPTER).exists():
            engine.check_model(place)


def _made(config: Config, plan: Plan, name: str, model: str) -> Path | str:
    """The folder (or hub id) that vLLM is given for `model`.

    The embedded model, random ones and adapters are written as a plain model folder first, once for every set of
    weights, by a process of its own: what it loads is not kept in memory while the server runs.
    """
    place = locate(model, config.root)
    adapter = (Path(place) / ADAPTER).exists()
    if Path(place).is_dir() and not adapter:
        return Path(place)
    if ":" not in place and not adapter:
        return place  # a hub id
    folder = config.out() / "models" / name
    stamp = {"model": model, "fingerprint": plan.fingerprints[name]}
    with contextlib.suppress(OSError, ValueError):
        if json.loads((folder / "made.json").read_text()) == stamp:
            return folder
    print(f"evaluate: writing {model} to {folder}", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "eft.models.materialise", str(place), str(folder)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise EftError(
            f"the model '{model}' cannot be written for serving", where=folder, why=done.stderr.strip()[-1500:]
        )
    manifest.write_json(folder / "made.json", stamp)
    return folder


@dataclass(frozen=True)
class Served:
    """Where a mutator answers. `version`: the server's. `check` raises EftError where the server has died since."""

    upstream: Upstream
    version: str
    check: Callable[[], None]


@contextlib.contextmanager
def served(config: Config, plan: Plan, name: str) -> Iterator[Served]:
    """The server of mutator `name` while the block lasts. Raises EftError where vLLM does not start."""
    from eft.mutators.budget import Budget
    from eft.mutators.server import serving
    from eft.mutators.upstream import Upstream

    mutator = plan.mutators[name]
    # vary_seed: a search asks the same prompt twice to get another draw; seeds stay the search's own.
    shared = {
        "timeout": config.request_timeout_s, "vary_seed": True, "identity": plan.fingerprints[name],
        "concurrency": mutator.concurrency, "requests_per_minute": mutator.requests_per_minute,
        "budget": Budget(**mutator.budget.model_dump()),
    }  # fmt: skip
    if mutator.servers:
        upstream = Upstream(tuple(mutator.servers), mutator.model, _key(mutator), **shared)
        yield Served(upstream, _version(mutator.servers[0]), lambda: _reach(name, mutator))
        return
    model = _made(config, plan, name, mutator.model or "")
    options = mutator.serving or config.serving
    log = (config.out() / "logs" / f"{name}.log").resolve()
    with serving(
        model, name=name, max_model_len=options.max_model_len, dtype=options.dtype, max_num_seqs=options.max_num_seqs,
        kv_cache_gib=options.kv_cache_gib, hub=isinstance(model, str), log=log, timeout=options.start_s,
        args=tuple(options.args),
    ) as server:  # fmt: skip
        yield Served(Upstream(server.base_url, server.name, **shared), _version(server.base_url), server.check)


def _version(base_url: str) -> str:
    """The version that a vLLM server tells; "" for any other server."""
    try:
        return str(_get(f"{base_url.rstrip('/').removesuffix('/v1')}/version").get("version", ""))
    except (OSError, ValueError):
        return ""
