"""Mutators that answer inside the evaluation's own process: without a model, or by choosing which other one answers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from eft.evaluate import plan as plans
from eft.evaluate.plan import Group, Plan
from eft.evaluate.servers import Served, served
from eft.evaluate.settings import Config
from eft.mutators.reply import Mutator
from eft.search.spec import CACHE, SearchSpec

ARMS = "arms"  # journals of what served mutators answered to routed ones

Factory = Callable[[str], Mutator]


@contextlib.contextmanager
def mutators(config: Config, plan: Plan, group: Group, server: Served | None) -> Iterator[dict[str, Factory]]:
    """Factories for the gateway, by name: one instance a search, with that search's seed. `server`: the group's.

    Served mutators that a routed one chooses among are asked through a gateway of their own, so that what is paid for
    is recorded, counted and limited as everywhere.
    """
    from eft.mutators.ast import AstMutator
    from eft.mutators.replay import Replay

    specs = {s.name: s for s in group.specs}
    tasks = {str(t.folder): t for t in plan.tasks.values()}
    names = sorted({s.mutator for s in group.specs if plan.mutators[s.mutator].kind in ("ast", "replay", "routed")})

    def ast(name: str, spec: SearchSpec) -> AstMutator:
        return AstMutator(spec.seed, plan.mutators[name].lookahead, spec.edit, tasks[spec.task])  # type: ignore[arg-type]

    with contextlib.ExitStack() as stack:
        upstreams = {}
        for n in dict.fromkeys(n for name in names for n in plan.mutators[name].among):
            if plan.mutators[n].kind == "served":
                there = server if n == group.server else stack.enter_context(served(config, plan, n))
                upstreams[n] = there.upstream  # type: ignore[union-attr]
        gateway = _gateway(config, upstreams, stack) if upstreams else None

        def arm(name: str, spec: SearchSpec) -> Mutator:
            from eft.mutators.arms import Served as Asked

            if name not in upstreams:
                return ast(name, spec)
            sampling = {"temperature": spec.temperature, "top_p": spec.top_p, "max_tokens": spec.max_tokens}
            return Asked(gateway.url(spec.name, name), name, spec.seed, spec.request_timeout_s, sampling)

        def factory(search: str) -> Mutator:
            spec = specs[search]
            mutator = plan.mutators[spec.mutator]
            if mutator.kind == "replay":
                return Replay(plans.recorded(config, mutator, spec, tasks[spec.task]), mutator.of)
            if mutator.kind == "ast":
                return ast(spec.mutator, spec)
            from eft.mutators.routed import Routed

            return Routed(
                config.path(mutator.policy or ""), {n: arm(n, spec) for n in mutator.among}, budget=spec.iterations,
                seed=spec.seed, task=tasks[spec.task], journal=Path(spec.journal or ""), cache=spec.folder / CACHE,
                name=spec.mutator,
            )  # fmt: skip

        yield {name: factory for name in names}


def _gateway(config: Config, upstreams: dict[str, Any], stack: contextlib.ExitStack) -> Any:
    from eft.mutators.gateway import Gateway, running

    return stack.enter_context(running(Gateway(config.out() / ARMS, upstreams)))
