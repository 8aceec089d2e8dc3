"""Screening, confirmation, one step of inheritance: from claims over scores to decisions in the ledger.

Order, and what a kill between any two of these leaves: claim (the items are spent and belong to this decision) →
scores, batch by batch, both states on the same items → the decision, one line. The same call again continues after the
last of them that is on disk. `replay` computes a decision from what is on disk: it must come out the same, bit by bit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from eft.errors import EftError, UsageError
from eft.gate import bounds
from eft.gate.decide import Decision, Rule, Verdict, decide
from eft.gate.evidence import Item, Pool, digest
from eft.gate.host import Evaluate, Host, State

BATCH = 32


def _about(
    kind: str, root: State, candidates: Sequence[State], rule: Rule | None, budget: int, batch: int
) -> dict[str, Any]:
    return {
        "kind": kind,
        "root": root.to_json(),
        "candidates": [c.to_json() for c in candidates],
        "budget": budget,
        "batch": batch,
        "rule": dataclasses.asdict(rule) if rule else None,
    }


def measure(pool: Pool, decision: str, state: State, items: Sequence[Item], evaluate: Evaluate) -> np.ndarray:
    """q of `state` on `items`, (n,): from the disk where it is there, else asked of the host and kept.

    Raises EftError for scores that are missing, not finite or outside [0, 1]; then none of the batch is kept.
    """
    known = pool.scores(decision).get(state.fingerprint, {})
    missing = [item for item in items if item.id not in known]
    for start in range(0, len(missing), BATCH):
        part = missing[start : start + BATCH]
        found = np.asarray(list(evaluate(state, part)), float)
        if found.shape != (len(part),):
            raise EftError(
                f"the host scored {len(found)} of {len(part)} items of '{state.name}'",
                where=pool.folder,
                why="items are missing on one side",
                way_out="return one q per item, in order",
            )
        bounds.check_scores(found, f"'{state.name}'", where=pool.folder)
        scores = {item.id: float(q) for item, q in zip(part, found, strict=True)}
        pool.keep_scores(decision, state.fingerprint, scores)
        known = {**known, **scores}
    return np.array([known[item.id] for item in items])


def confirm(
    pool: Pool,
    decision: str,
    root: State,
    candidate: State,
    rule: Rule,
    evaluate: Evaluate,
    *,
    budget: int,
    batch: int = BATCH,
    role: str = "confirmation",
) -> dict[str, Any]:
    """Decide about one frozen candidate on fresh items of `role`, at most `budget` of them, and write it down.

    Fixed methods take all of the budget; sequential ones portions of `batch`, until they know. Returns the result as in
    the ledger: verdict, items, mean, numbers, rule, states, digest of the evidence. Raises EftError, with nothing
    decided, where items run out or the host cannot measure.
    """
    if root.fingerprint == candidate.fingerprint:
        raise UsageError("root and candidate are the same state", why=f"'{root.name}' and '{candidate.name}'")
    if rule.branches > 1:
        raise UsageError("fresh evidence needs no union bound", way_out="branches: 1 (see confirm_on_screening)")
    about = _about("confirm", root, [candidate], rule, budget, batch)
    if (known := _known(pool, decision, about)) is not None:
        return known
    with pool.deciding(decision):
        claimed = sum(len(c["items"]) for c in pool.claims(decision))
        if (left := pool.left(role)) < budget - claimed:  # before anything is spent
            raise pool.exhausted(role, budget - claimed, left)
        portions = _portions(rule, budget, batch)
        items: list[Item] = []
        for k, size in enumerate(portions):
            items += pool.claim(decision, role, size, about, batch=k)
            a, b = (measure(pool, decision, state, items, evaluate) for state in (root, candidate))
            found = decide(bounds.differences(a, b), rule, last=k == len(portions) - 1)
            if found.verdict is not Verdict.UNDECIDED:
                break
        return pool.decide(decision, _result("confirm", root, candidate, found, items, a, b))


def _portions(rule: Rule, budget: int, batch: int) -> list[int]:
    if not rule.sequential:
        return [budget]
    return [min(batch, budget - start) for start in range(0, budget, batch)]


def _result(
    kind: str, root: State, candidate: State, found: Decision, items: Sequence[Item], a: Any, b: Any
) -> dict[str, Any]:
    return {
        "kind": kind,
        "verdict": str(found.verdict),
        "root": root.to_json(),
        "candidate": candidate.to_json(),
        "rule": dataclasses.asdict(found.rule),
        "items": found.items,
        "used": found.used,
        "mean": found.mean,
        "numbers": found.numbers,
        "root_mean": float(np.mean(a)),
        "candidate_mean": float(np.mean(b)),
        "evidence": digest([[i.id for i in items], a.tolist(), b.tolist()]),
    }


def _known(pool: Pool, decision: str, about: dict[str, Any]) -> dict[str, Any] | None:
    """The decision of this name where it stands already. Raises EftError where it is about something else."""
    for claim in pool.claims(decision)[:1]:
        pool.same(claim, about, claim["role"], decision)
    return pool.decided(decision)


def screen(
    pool: Pool,
    decision: str,
    root: State,
    candidates: Sequence[State],
    evaluate: Evaluate,
    *,
    items: int,
    rule: Rule | None = None,
) -> dict[str, Any]:
    """Measure all candidates on the same screening items and name the best one (the first of equals).

    Returns {winner: index, means, verdict: None}. With `rule` the winner is also decided about on this very evidence,
    at alpha / K: where no fresh items can be had. Its `branches` is filled in here, so it cannot be forgotten.
    """
    if not candidates:
        raise UsageError("there is no candidate to screen")
    if rule is not None:
        rule = dataclasses.replace(rule, branches=len(candidates))
    about = _about("screen", root, candidates, rule, items, BATCH)
    if (known := _known(pool, decision, about)) is not None:
        return known
    with pool.deciding(decision):
        taken = pool.claim(decision, "screening", items, about)
        a = measure(pool, decision, root, taken, evaluate)
        found = [bounds.differences(a, measure(pool, decision, c, taken, evaluate)) for c in candidates]
        return pool.decide(decision, _screened(root, candidates, rule, taken, a, found))


def _screened(
    root: State, candidates: Sequence[State], rule: Rule | None, items: Sequence[Item], a: Any, found: list
) -> dict[str, Any]:
    means = [float(np.mean(d)) for d in found]
    winner = int(np.argmax(means))
    result = {
        "kind": "screen",
        "verdict": None,
        "root": root.to_json(),
        "candidates": [c.to_json() for c in candidates],
        "winner": winner,
        "means": means,
        "items": len(items),
        "root_mean": float(np.mean(a)),
        "evidence": digest([[i.id for i in items], a.tolist(), [d.tolist() for d in found]]),
    }
    if rule is not None:
        decided = decide(found[winner], rule)
        result |= {
            "verdict": str(decided.verdict),
            "rule": dataclasses.asdict(rule),
            "used": decided.used,
            "mean": decided.mean,
            "numbers": decided.numbers,
            "candidate": candidates[winner].to_json(),
        }
    return result


def replay(pool: Pool, decision: str) -> dict[str, Any]:
    """The decision computed again from claims and scores on disk. Raises EftError unless it is what the ledger says."""
    recorded, claims = pool.decided(decision), pool.claims(decision)
    if recorded is None or not claims:
        raise EftError(f"'{decision}' is not decided", where=pool.folder)
    about, scores = claims[0]["about"], pool.scores(decision)
    if about["kind"] == "audit":
        items = claims[0]["items"]
        q = [[scores.get(s["fingerprint"], {}).get(i) for i in items] for s in about["states"]]
        found = {"kind": "audit", "states": len(q), "items": len(items), "evidence": digest(q)}
        return _compared(pool, decision, found, recorded)
    rule = Rule(**about["rule"]) if about["rule"] else None
    root, *candidates = (State(**s) for s in (about["root"], *about["candidates"]))
    items = [pool.items[i] for c in claims for i in c["items"]]
    try:
        q = [np.array([scores[s.fingerprint][i.id] for i in items]) for s in (root, *candidates)]
    except KeyError as e:
        raise EftError(f"scores of '{decision}' are missing", where=pool.folder, why=str(e)) from None
    if about["kind"] == "screen":
        found = _screened(root, candidates, rule, items, q[0], [bounds.differences(q[0], x) for x in q[1:]])
    else:
        last = len(items) == about["budget"]
        made = decide(bounds.differences(q[0], q[1]), rule, last=last)
        found = _result("confirm", root, candidates[0], made, items, q[0], q[1])
    return _compared(pool, decision, found, recorded)


def _compared(pool: Pool, decision: str, found: dict[str, Any], recorded: dict[str, Any]) -> dict[str, Any]:
    if digest(found) != digest(recorded):
        raise EftError(
            f"'{decision}' does not come out again as it was written down",
            where=pool.folder,
            why="scores or ledger were changed, or this is another version of the gate",
        )
    return found


def step(
    pool: Pool,
    name: str,
    root: State,
    host: Host,
    rule: Rule,
    *,
    screening: int = 64,
    budget: int = 256,
    fresh: bool = True,
) -> tuple[State, dict[str, Any]]:
    """One round for any host: propose, screen where there are several, confirm the winner, inherit or keep the root.

    `name` names the round; the same name again continues it, or repeats its answer. Returns (the next root, the last
    decision). `fresh` False: decide on the screening evidence, at alpha over the number of candidates.
    """
    candidates = list(host.propose())
    winner, result = 0, {"verdict": Verdict.REJECT}
    if not candidates:
        return root, {**result, "why": "there was no candidate"}
    if len(candidates) > 1 or not fresh:
        result = screen(
            pool, f"{name}.screen", root, candidates, host.evaluate, items=screening, rule=None if fresh else rule
        )
        winner = result["winner"]
    if fresh:
        result = confirm(pool, f"{name}.confirm", root, candidates[winner], rule, host.evaluate, budget=budget)
    return (candidates[winner] if result["verdict"] == Verdict.COMMIT else root), result
