"""Screen and confirm: the order of what is written, kills at every point of it, and what must never be decided."""

from __future__ import annotations

from pathlib import Path

import killed
import made_up
import numpy as np
import pytest

from eft.errors import EftError, UsageError
from eft.gate import evidence
from eft.gate.audit import gather
from eft.gate.confirm import confirm, replay, screen, step
from eft.gate.decide import METHODS, Rule, Verdict
from eft.gate.evidence import Pool
from eft.gate.host import State

ROOT = made_up.state(0.5, "root")


@pytest.mark.parametrize("method", METHODS)
def test_better_is_committed_worse_is_not(tmp_path: Path, method: str) -> None:
    pool, host = made_up.pool(tmp_path / "p"), made_up.Coins()
    better = confirm(pool, "b", ROOT, made_up.state(0.95), Rule(method), host.evaluate, budget=200)
    worse = confirm(pool, "w", ROOT, made_up.state(0.2), Rule(method), host.evaluate, budget=200)
    assert better["verdict"] == Verdict.COMMIT or method == "bernstein"
    assert worse["verdict"] != Verdict.COMMIT
    if Rule(method).sequential:
        assert better["items"] < 200, "it stops when it knows"
    for name in ("b", "w"):
        assert replay(Pool(pool.folder), name) == pool.decided(name)


def test_the_same_question_gets_the_answer_that_stands(tmp_path: Path) -> None:
    pool, host = made_up.pool(tmp_path / "p"), made_up.Coins()

    def ask(budget: int = 64):
        return confirm(pool, "a", ROOT, made_up.state(0.7), Rule(), host.evaluate, budget=budget)

    first, asked = ask(), host.asked
    assert ask() == first and host.asked == asked == 128
    with pytest.raises(EftError, match="about something else"):
        ask(budget=65)


def test_screening_names_the_best_and_a_reused_screen_pays_for_the_choice(tmp_path: Path) -> None:
    pool, host = made_up.pool(tmp_path / "p"), made_up.Coins()
    branches = [made_up.state(p) for p in (0.3, 0.9, 0.6)]
    found = screen(pool, "s", ROOT, branches, host.evaluate, items=64)
    assert found["winner"] == 1 and found["verdict"] is None
    assert pool.left("confirmation") == Pool(pool.folder).left("confirmation")
    reused = screen(pool, "r", ROOT, branches, host.evaluate, items=64, rule=Rule("midp", branches=1))
    assert reused["rule"]["branches"] == 3 and reused["verdict"] == Verdict.COMMIT
    with pytest.raises(UsageError, match="no union bound"):
        confirm(pool, "c", ROOT, branches[0], Rule("midp", branches=3), host.evaluate, budget=10)
    assert replay(pool, "s") == found and replay(pool, "r") == reused
    spent = [set(e["items"]) for e in pool.ledger() if e["kind"] == "claim"]
    assert not spent[0] & spent[1], "two decisions never share an item"


def test_what_must_not_be_decided_is_not(tmp_path: Path) -> None:
    pool = made_up.pool(tmp_path / "p")
    good = made_up.Coins().evaluate

    def bad(how):
        return lambda state, items: how(good(state, items)) if state is not ROOT else good(state, items)

    def gone(state, items):
        if state is not ROOT:
            raise EftError("the server is gone")
        return good(state, items)

    for k, (evaluate, told) in enumerate(
        [
            (bad(lambda q: q[:-1]), "items are missing"),
            (bad(lambda q: [1.5, *q[1:]]), r"not in \[0, 1\]"),
            (bad(lambda q: [float("nan"), *q[1:]]), r"not in \[0, 1\]"),
            (gone, "server is gone"),
        ]
    ):
        with pytest.raises(EftError, match=told):
            confirm(pool, f"d{k}", ROOT, made_up.state(0.9), Rule(), evaluate, budget=40)
        assert pool.decided(f"d{k}") is None
        claimed = pool.claims(f"d{k}")[0]["items"]
        after = confirm(pool, f"d{k}", ROOT, made_up.state(0.9), Rule(), good, budget=40)
        assert after["verdict"] == Verdict.COMMIT and pool.claims(f"d{k}")[0]["items"] == claimed, (
            "its own items, again"
        )
    with pytest.raises(UsageError, match="same state"):
        confirm(pool, "same", ROOT, ROOT, Rule(), good, budget=10)
    with pytest.raises(EftError, match="at least"):
        confirm(pool, "large", ROOT, made_up.state(0.9), Rule("betting"), good, budget=5000)
    assert not pool.claims("large")


def test_changed_scores_do_not_replay(tmp_path: Path) -> None:
    pool, host = made_up.pool(tmp_path / "p"), made_up.Coins()
    confirm(pool, "a", ROOT, made_up.state(0.9), Rule(), host.evaluate, budget=30)
    file = pool.folder / evidence.SCORES / "a.jsonl"
    file.write_text(file.read_text().replace('"q":1.0', '"q":0.0', 1))
    with pytest.raises(EftError, match="does not come out again"):
        replay(pool, "a")


def _rounds(folder: Path, evaluate=None) -> list[str]:
    """Three rounds of a host; returns the roots."""
    pool, root, roots = Pool(folder), ROOT, []
    for number in range(3):
        host = made_up.Coins(
            *(made_up.state(min(0.99, 0.35 + 0.1 * k + 0.15 * number), f"r{number}-{k}") for k in range(3))
        )
        host.evaluate = evaluate or host.evaluate
        root, _ = step(pool, f"round-{number}", root, host, Rule("gsprt", effect=0.2), screening=24, budget=64)
        roots.append(root.name)
    return roots


def test_killed_at_every_write_it_ends_the_same(tmp_path: Path) -> None:
    """Every append to ledger and scores is killed before, in the middle and after it, once each, in one long story."""
    made_up.pool(tmp_path / "calm")
    made_up.pool(tmp_path / "p")
    expected = _rounds(tmp_path / "calm")
    kills = killed.until_it_ends(lambda: _rounds(tmp_path / "p"), evidence)
    assert kills > 20
    assert _rounds(tmp_path / "p") == expected
    for folder in ("p", "calm"):
        pool = Pool(tmp_path / folder)
        names = [e["decision"] for e in pool.ledger() if e["kind"] == "decision"]
        assert len(names) == len(set(names)) == 6, "no decision twice"
        assert [replay(pool, n) for n in names] == [pool.decided(n) for n in names]
    one, other = (Pool(tmp_path / f) for f in ("p", "calm"))
    assert [e for e in one.ledger()] == [e for e in other.ledger()], "and the kills left no trace at all"


def test_an_audit_measures_all_states_on_the_same_items(tmp_path: Path) -> None:
    pool, host = made_up.pool(tmp_path / "p"), made_up.Coins()
    states = [ROOT, made_up.state(0.2), made_up.state(0.9)]
    q = gather(pool, "audit.audit", states, host.evaluate, "audit", 100)
    assert q.shape == (3, 100) and host.asked == 300
    assert (gather(pool, "audit.audit", states, host.evaluate, "audit", 100) == q).all() and host.asked == 300
    assert replay(pool, "audit.audit")["states"] == 3
    assert len({i for e in pool.ledger() if e["kind"] == "claim" for i in e["items"]}) == 100


def test_two_processes_cannot_work_on_one_decision(tmp_path: Path) -> None:
    pool = made_up.pool(tmp_path / "p")
    with pool.deciding("a"), pytest.raises(EftError, match="another process"):
        confirm(pool, "a", ROOT, made_up.state(0.9), Rule(), made_up.Coins().evaluate, budget=30)


def test_error_rate_of_the_whole_path(tmp_path: Path) -> None:
    """Candidates that are no better, through claims, scores and decisions: at most alpha of them get through."""
    pool, host = made_up.pool(tmp_path / "p", 12_000), made_up.Coins()
    rng = np.random.default_rng(0)

    def same(state, items):
        return [float(np.random.default_rng(int(i.id[:8], 16) + state.payload).random() < 0.5) for i in items]

    made = [
        confirm(
            pool,
            f"d{k}",
            State("r", "r", 0),
            State(f"c{k}", f"c{k}", int(rng.integers(1, 10**9))),
            Rule("midp", alpha=0.2),
            same,
            budget=40,
        )["verdict"]
        for k in range(60)
    ]
    assert sum(v == Verdict.COMMIT for v in made) <= 0.2 * 60 + 3 * (0.2 * 0.8 * 60) ** 0.5
    assert host.asked == 0
