"""May the candidate replace the root? Fresh paired evidence, a rule with an error rate, one answer.

    eft gate ROOT CANDIDATE --suite embedded                     COMMIT, REJECT or UNDECIDED
    eft gate sft/final kto/final --kind judge --method midp --budget 256
    eft gate --replay --pool gate/pool                           all decisions again, from what is on disk
    eft gate http://127.0.0.1:8000/v1#old http://127.0.0.1:8001/v1#new --method betting

ROOT and CANDIDATE: model folders, adapters, embedded:…, random:…, hub ids, or a model of a running server as
http://HOST:PORT/v1#NAME. Items come from the pool in --pool; where there is none, searches on the suite's gate tasks
are recorded first. Items are spent by a decision and never used again; a killed run continues with its own. The same
question again gets the answer that stands.

Exit status: 0 COMMIT, 3 REJECT, 4 UNDECIDED (keep the root; more items might tell), 1 it could not be measured (nothing
is decided), 2 the request was wrong. OUT/decision.json says the same with all numbers, for `eft export --require-gate`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from eft import manifest
from eft.config import StageConfig
from eft.errors import UsageError
from eft.gate import items as recording
from eft.gate.confirm import confirm, replay
from eft.gate.decide import Rule, Verdict
from eft.gate.evidence import Pool, digest
from eft.gate.score import ModelHost, Serving, check_comparable, model_state

EXIT = {Verdict.COMMIT: 0, Verdict.REJECT: 3, Verdict.UNDECIDED: 4}
DECISION = "decision.json"


class Recording(StageConfig):
    """How the items of a new pool are recorded."""

    extend: bool = Field(False, description="record more items into a pool that is there")
    seeds: int = Field(30, ge=1, description="searches per gate task and batch; as many batches as the pool needs")
    iterations: int = Field(12, ge=1, description="candidates per search")
    lookahead: int = Field(4, ge=0, description="edits that the recording mutator evaluates per parent")
    seed: int = Field(0, ge=0)
    per_program: int = Field(1, ge=1, description="items of one program; more than one depend on each other")
    prompt_format: str = Field("eft@1", description="of the prompts in the items")
    edit: Literal["diff", "rewrite"] = "diff"
    shares: tuple[float, float, float] = Field((0.25, 0.5, 0.25), description="of screening, confirmation, audit")


class Config(StageConfig):
    """Options of `eft gate`."""

    positional: ClassVar[str] = "states"

    states: list[str] = Field(default_factory=list, description="the root and the candidate")
    suite: str = Field("embedded", description="a shipped suite, or a suite's YAML file: its gate tasks give the items")
    pool: Path = Field(Path("gate/pool"), description="folder of the pool of items; made where it is not there")
    kind: Literal["mutation", "judge", "search"] = Field(
        "mutation", description="mutation: one reply, applied and run; judge: log-likelihoods; search: short searches"
    )
    method: str = Field("gsprt", description="tau, hoeffding, bernstein, bootstrap, mcnemar, midp, betting or gsprt")
    budget: int = Field(256, ge=1, description="items at most")
    alpha: float = Field(0.05, description="chance to commit a candidate that is not better (tau: none is promised)")
    beta: float = Field(0.05, description="chance to reject a better one")
    margin: float = Field(0.0, description="advantage that it must exceed, in units of q")
    effect: float = Field(0.05, description="gsprt: advantage beyond the margin that it looks for")
    undecided: Literal["keep", "tau"] = Field("keep", description="sequential, budget spent: keep, or go by the mean")
    batch: int = Field(32, ge=1, description="sequential: items between two looks")
    replay: bool = Field(
        False, description="compute all decisions of --pool again from disk, bit by bit; decide nothing"
    )
    decision: str = Field("", description="name in the ledger; default: from states, rule and budget")
    record: Recording = Recording()
    serving: Serving = Serving()
    sandbox: Literal["auto", "bubblewrap", "rlimits", "none"] = "auto"
    output: Path | None = Field(Path("gate"), description="folder for decision.json")

    def rule(self) -> Rule:
        """Raises UsageError for what cannot be."""
        return Rule(
            method=self.method,
            alpha=self.alpha,
            beta=self.beta,
            margin=self.margin,
            effect=self.effect,
            undecided=self.undecided,
        )


def inputs(config: Config) -> list[Path]:
    return []


def open_pool(config: Any, need: dict[str, int]) -> Pool:
    """The pool of a config with suite, pool, kind and record; recorded where it is not there yet, until each part has
    the unspent items that it `need`s."""
    r = config.record
    return recording.record(
        config.path(config.pool),
        config.suite,
        config.kind,
        need=need,
        root=config.root,
        **r.model_dump(exclude={"root", "output"}),
    )


def run(config: Config) -> dict[str, Any]:
    """Decide. Returns what --json prints, with `exit_code`. Raises EftError, nothing decided, where it cannot."""
    from eft.tasks import sandbox

    started = time.time()
    if config.replay:
        return _replay(Pool(config.path(config.pool)))
    if len(config.states) != 2:
        raise UsageError(
            "a gate compares two states", why=f"{len(config.states)} were given", way_out="eft gate ROOT CANDIDATE"
        )
    rule = config.rule()
    root, candidate = (model_state(name, config.root) for name in config.states)
    check_comparable(root, candidate)
    for state in (root, candidate):
        if config.kind == "judge" and "place" not in state.payload:
            raise UsageError(
                "judge items need the model's weights",
                where=state.name,
                way_out="give a model folder, or use --kind mutation",
            )
    if config.kind != "judge":
        sandbox.choose(config.sandbox)
    pool = open_pool(config, {"confirmation": config.budget})
    _check_format(config, pool)
    out = config.out()
    name = (
        config.decision
        or "gate-" + digest([root.fingerprint, candidate.fingerprint, config.rule().__dict__, config.budget])[:16]
    )
    earlier = [
        e["decision"]
        for e in pool.ledger()
        if e["kind"] == "decision"
        and e["decision"] != name
        and e["result"].get("candidate", {}).get("fingerprint") == candidate.fingerprint
    ]
    if earlier:
        print(
            f"gate: warning: this candidate was decided about {len(earlier)} times before on this pool; an error rate "
            "holds for one decision, not for the best of several",
            file=sys.stderr,
        )
    stands = pool.decided(name) is not None
    with ModelHost(out / "work", config.serving) as host:
        result = confirm(pool, name, root, candidate, rule, host.evaluate, budget=config.budget, batch=config.batch)
    report = {
        "verb": "gate",
        "decision": name,
        **result,
        "suite": config.suite,
        "item_kind": config.kind,
        "pool": str(pool.folder),
        "earlier_decisions": len(earlier),
        "stands_since_before": stands,
        "left": pool.left("confirmation"),
        "exit_code": EXIT[Verdict(result["verdict"])],
    }
    manifest.write_json(out / DECISION, report)
    print(
        words(result) + (" (it stands from before)" if stands else f"; {time.time() - started:.0f} s"), file=sys.stderr
    )
    print(f"gate: {out / DECISION}; {report['left']} confirmation items left", file=sys.stderr)
    return report


def _replay(pool: Pool) -> dict[str, Any]:
    """All decisions of a pool, computed again. Raises EftError for the first that does not come out the same."""
    names = [e["decision"] for e in pool.ledger() if e["kind"] == "decision"]
    for name in names:
        found = replay(pool, name)
        print(f"gate: {name}: {found.get('verdict') or found['kind']}, as written down", file=sys.stderr)
    return {"verb": "gate", "replayed": names, "pool": str(pool.folder)}


def words(result: dict[str, Any]) -> str:
    """A decision in one line."""
    rule, numbers = result["rule"], result["numbers"]
    shown = ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{v} {k}" for k, v in numbers.items())
    rate = "" if rule["method"] == "tau" else f", alpha {rule['alpha']:g}"
    return (
        f"{result['verdict']}: q {result['root_mean']:.3f} → {result['candidate_mean']:.3f}, advantage "
        f"{100 * result['mean']:+.2f} points on {result['used']} items ({rule['method']}{rate}; {shown})"
    )


def _check_format(config: Config, pool: Pool) -> None:
    """Raises UsageError where the pool's prompts are in another format than a model was trained on."""
    from eft.models.identity import prompt_format

    known = {str(i.payload.get("format") or i.payload.get("prompt_format") or "") for i in pool.items.values()} - {""}
    for name in config.states:
        told = "" if name.startswith("http") else prompt_format(str(config.path(name)))
        if told and known and known != {told}:
            raise UsageError(
                "the pool's prompts are in another format than the model was trained on",
                where=name,
                why=f"model: {told}, pool: {', '.join(sorted(known))}",
                way_out=f"--set record.prompt_format={told} and another --pool",
            )
