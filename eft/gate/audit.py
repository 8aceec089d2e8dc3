"""What would gates have done? Many real updates of one root, each measured on a large pool that no gate has seen.

    eft audit ROOT UPDATE… --pool gate/pool --kind judge --items 128 --audit-items 512 -o audit

All states are scored on the same confirmation items (what a gate would see) and on the same audit items (what is taken
for the truth). The rules then decide on the former and are judged by the latter, against inheriting everything, the
acceptance of the host itself (native.json beside an update, see eft/gate/native.py) and chance at the gate's own rate.
One audit is one entry in the ledger: its items are spent. Killed, it continues. Writes OUT/audit.json, prints a table.

The truth is a measurement too: `resolved` counts the updates whose audited value is two standard errors from zero.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from eft import manifest
from eft.config import StageConfig
from eft.errors import EftError, UsageError
from eft.gate import bounds
from eft.gate.confirm import measure
from eft.gate.decide import Rule, Verdict, decide
from eft.gate.evidence import Pool, digest
from eft.gate.host import Evaluate, State
from eft.gate.run import Recording, open_pool
from eft.gate.score import ModelHost, Serving, check_comparable, model_state

NATIVE = "native.json"


class Config(StageConfig):
    """Options of `eft audit`."""

    positional: ClassVar[str] = "states"

    states: list[str] = Field(default_factory=list, description="the root, then its updates")
    suite: str = Field("embedded", description="a shipped suite, or a suite's YAML file")
    pool: Path = Field(Path("gate/pool"), description="folder of the pool of items; made where it is not there")
    kind: Literal["mutation", "judge", "search"] = "judge"
    items: int = Field(128, ge=1, description="confirmation items: what every gate may see of an update")
    audit_items: int = Field(512, ge=2, description="audit items: what its value is measured on")
    methods: list[str] = Field(default_factory=lambda: ["tau", "midp", "betting", "gsprt"], description="gates")
    alpha: float = 0.05
    effect: float = 0.05
    name: str = Field("audit", description="of this audit in the pool's ledger")
    record: Recording = Recording()
    serving: Serving = Serving()
    sandbox: Literal["auto", "bubblewrap", "rlimits", "none"] = "auto"
    output: Path | None = Field(Path("audit"), description="folder for audit.json")


def inputs(config: Config) -> list[Path]:
    return []


def gather(pool: Pool, name: str, states: Sequence[State], evaluate: Evaluate, role: str, count: int) -> np.ndarray:
    """q of all states (root first) on `count` items of a part, (states, items); one entry of the ledger."""
    about = {"kind": "audit", "states": [s.to_json() for s in states], "items": count}
    with pool.deciding(name):
        items = pool.claim(name, role, count, about)
        rows = []
        for k, state in enumerate(states):
            started = time.time()
            rows.append(measure(pool, name, state, items, evaluate))
            if (seconds := time.time() - started) > 1:
                print(
                    f"audit: {role}, {k + 1} of {len(states)} states, {seconds:.0f} s each", file=sys.stderr, flush=True
                )
        q = np.array(rows)
        pool.decide(name, {"kind": "audit", "states": len(states), "items": count, "evidence": digest(q.tolist())})
    return q


def outcome(committed: np.ndarray, value: np.ndarray) -> dict[str, float | None]:
    """What a policy did, given which of the updates it committed (shares in [0, 1] for chance) and their values.

    commit_rate; harmful: share with value ≤ 0 among the committed; useful_kept: share committed of those with value
    > 0; gain: mean value that is inherited, per update. None where a share has no denominator.
    """
    w, useful = np.asarray(committed, float), value > 0
    return {
        "commit_rate": float(w.mean()),
        "harmful": float(w[~useful].sum() / w.sum()) if w.sum() else None,
        "useful_kept": float(w[useful].sum() / useful.sum()) if useful.any() else None,
        "gain": float((w * value).mean()),
    }


def compare(
    confirmation: np.ndarray, audit: np.ndarray, rules: dict[str, Rule], native: Sequence[bool] | None
) -> dict[str, Any]:
    """The table of an audit. `confirmation`, `audit`: q (states, items), the root first. Pure."""
    d = [bounds.differences(audit[0], row) for row in audit[1:]]
    value = np.array([x.mean() for x in d])
    error = np.array([x.std(ddof=1) / math.sqrt(len(x)) for x in d])
    policies: dict[str, dict[str, Any]] = {"inherit all": outcome(np.ones(len(value)), value)}
    if native is not None:
        policies["native acceptance"] = outcome(np.array(native), value)
    for name, rule in rules.items():
        made = [decide(bounds.differences(confirmation[0], row), rule) for row in confirmation[1:]]
        done = np.array([m.verdict is Verdict.COMMIT for m in made])
        policies[name] = {**outcome(done, value), "mean_items": float(np.mean([m.used for m in made]))}
        policies[f"chance, at the rate of {name}"] = outcome(np.full(len(value), done.mean()), value)
    return {
        "updates": len(value),
        "harmful": float((value <= 0).mean()),
        "resolved": int((np.abs(value) > 2 * error).sum()),
        "value": value.tolist(),
        "error": error.tolist(),
        "policies": policies,
    }


def table(report: dict[str, Any]) -> str:
    """The policies as Markdown; gains in points (0.01) per update."""

    def share(x: float | None) -> str:
        return "–" if x is None else f"{100 * x:.0f} %"

    rows = [
        "| policy | committed | harmful among them | useful kept | gain per update | items |",
        "|---|---|---|---|---|---|",
    ]
    for name, p in report["policies"].items():
        items = f"{p['mean_items']:.0f}" if "mean_items" in p else ""
        rows.append(
            f"| {name} | {share(p['commit_rate'])} | {share(p['harmful'])} | {share(p['useful_kept'])} | "
            f"{100 * p['gain']:+.2f} | {items} |"
        )
    return "\n".join(rows)


def run(config: Config) -> dict[str, Any]:
    """Measure and compare. Raises EftError where a state cannot be measured; what was measured stays."""
    from eft.tasks import sandbox

    started = time.time()
    if len(config.states) < 2:
        raise UsageError("an audit needs a root and at least one update", way_out="eft audit ROOT UPDATE…")
    rules = {m: Rule(method=m, alpha=config.alpha, effect=config.effect) for m in config.methods}
    states = [model_state(name, config.root) for name in config.states]
    twice = [s.name for s in states if [x.fingerprint for x in states].count(s.fingerprint) > 1]
    if twice:
        raise UsageError("two of the states are the same model", why=" and ".join(twice[:2]))
    for state in states[1:]:
        check_comparable(states[0], state)
    if config.kind != "judge":
        sandbox.choose(config.sandbox)
    need = {"confirmation": config.items, "audit": config.audit_items}
    pool, out = open_pool(config, need), config.out()
    with ModelHost(out / "work", config.serving) as host:
        q = [
            gather(pool, f"{config.name}.{role}", states, host.evaluate, role, count)
            for role, count in (("confirmation", config.items), ("audit", config.audit_items))
        ]
    native = _native(config)
    report = compare(q[0], q[1], rules, [n["accepted"] for n in native] if native else None)
    report |= {
        "verb": "audit",
        "root": states[0].to_json(),
        "states": [s.to_json() for s in states[1:]],
        "native": native,
        "items": config.items,
        "audit_items": config.audit_items,
        "pool": str(pool.folder),
        "root_q": float(q[1][0].mean()),
        "seconds": round(time.time() - started, 1),
    }
    manifest.write_json(out / "audit.json", report)
    print(
        f"audit: {report['updates']} updates, {report['harmful']:.0%} harmful by {config.audit_items} audit items "
        f"({report['resolved']} resolved); root q {report['root_q']:.3f}\n{table(report)}",
        file=sys.stderr,
    )
    return report


def _native(config: Config) -> list[dict[str, Any]] | None:
    """native.json of all updates; None where none has one. Raises EftError where only some have."""
    files = [config.path(name) / NATIVE for name in config.states[1:]]
    there = [f for f in files if f.is_file()]
    if not there:
        return None
    if len(there) < len(files):
        raise EftError(
            f"{len(files) - len(there)} updates have no {NATIVE}", where=next(f for f in files if f not in there)
        )
    return [json.loads(f.read_text()) for f in files]
