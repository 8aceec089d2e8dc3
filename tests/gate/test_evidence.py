"""Pools and their ledger: parts that never meet, items that decide once, files that tell when they were touched."""

from __future__ import annotations

import json
from pathlib import Path

import made_up
import pytest

from eft.errors import EftError, UsageError
from eft.gate import evidence
from eft.gate.evidence import ROLES, Item, Pool


def test_the_parts_are_disjoint_and_stay_when_the_pool_grows(tmp_path: Path) -> None:
    twice = [Item("coin", made_up.TASK, f"{made_up.TASK}:{i // 3}", {"number": i}) for i in range(900)]
    pool = Pool.create(tmp_path / "p", twice, tasks=[made_up.TASK], kind="coin")
    roles = {i.group: pool.role(i) for i in pool.items.values()}
    assert all(pool.role(i) == roles[i.group] for i in pool.items.values()), "states of one program stay together"
    assert sum(pool.left(r) for r in ROLES) == 900
    assert [abs(pool.left(r) / 900 - s) < 0.1 for r, s in zip(ROLES, evidence.SHARES, strict=True)] == [True] * 3
    claimed = pool.claim("a", "confirmation", 50, {})
    assert pool.extend(made_up.items(100, first=5000)) == 100 and pool.extend(made_up.items(100, first=5000)) == 0
    again = Pool(tmp_path / "p")
    assert again.claim("a", "confirmation", 50, {}) == claimed
    assert {i.group: again.role(i) for i in claimed} == {i.group: roles[i.group] for i in claimed}


def test_an_item_is_handed_out_once(tmp_path: Path) -> None:
    pool = made_up.pool(tmp_path / "p", 400)
    seen: set[str] = set()
    for k in range(5):
        got = {i.id for i in Pool(tmp_path / "p").claim(f"d{k}", "confirmation", 20, {"k": k})}
        assert len(got) == 20 and not got & seen
        assert got == {i.id for i in pool.claim(f"d{k}", "confirmation", 20, {"k": k})}, "the claimant gets them again"
        seen |= got
    with pytest.raises(EftError, match="begun about something else"):
        pool.claim("d1", "confirmation", 20, {"k": 7})


def test_exhaustion_says_how_many_more(tmp_path: Path) -> None:
    pool = made_up.pool(tmp_path / "p", 100)
    left = pool.left("screening")
    with pytest.raises(EftError, match="at least 7 more screening items"):
        pool.claim("a", "screening", left + 7, {})
    assert pool.left("screening") == left, "what was refused spends nothing"


def test_pools_of_training_tasks_twins_and_nothing_are_refused(tmp_path: Path) -> None:
    strange = [*made_up.items(3), Item("coin", "train/task", "g", {})]
    for bad, told in ((strange, "not a gate task"), (made_up.items(3) * 2, "overlap"), ([], "without items")):
        with pytest.raises(EftError, match=told):
            Pool.create(tmp_path / "bad", bad, tasks=[made_up.TASK], kind="coin")
        assert not (tmp_path / "bad").exists()
    pool = made_up.pool(tmp_path / "p", 10)
    with pytest.raises(UsageError, match="already"):
        made_up.pool(tmp_path / "p", 10)
    with pytest.raises(UsageError, match="add up to 1"):
        made_up.pool(tmp_path / "q", 10, shares=(0.5, 0.5, 0.5))
    other = Pool.create(tmp_path / "o", made_up.items(5, first=8), tasks=[made_up.TASK], kind="coin")
    with pytest.raises(EftError, match="the pools overlap"):
        evidence.disjoint(pool, other)
    evidence.disjoint(pool, Pool.create(tmp_path / "r", made_up.items(5, 90), tasks=[made_up.TASK], kind="coin"))
    with pytest.raises(EftError, match="a task of the gate's pool"):
        evidence.refuse_training_on(pool, ["a", made_up.TASK], "build")
    with pytest.raises(EftError, match="no pool"):
        Pool(tmp_path / "nowhere")


def test_a_changed_ledger_or_item_is_told(tmp_path: Path) -> None:
    pool = made_up.pool(tmp_path / "p", 100)
    for k in range(3):
        pool.claim(f"d{k}", "confirmation", 5, {})
    file = pool.folder / evidence.LEDGER
    lines = file.read_text().splitlines(keepends=True)
    for broken in (lines[1:], lines[:1] + lines[2:], [lines[0], lines[1].replace('"d1"', '"dX"'), lines[2]], ["{}\n"]):
        file.write_text("".join(broken))
        with pytest.raises(EftError, match="changed or is damaged"):
            pool.ledger()
    file.write_text("".join(lines) + lines[2][:20])  # a torn last line was never handed out
    assert len(pool.ledger()) == 3
    pool.claim("d3", "confirmation", 5, {})
    assert len(pool.ledger()) == 4
    items = pool.folder / evidence.ITEMS
    first = json.loads(items.read_text().splitlines()[0])
    first["payload"]["number"] = 77
    items.write_text(json.dumps(first) + "\n")
    with pytest.raises(EftError, match="not what was put in"):
        Pool(pool.folder)


def test_a_decision_is_written_once(tmp_path: Path) -> None:
    pool = made_up.pool(tmp_path / "p", 50)
    pool.claim("a", "screening", 3, {})
    first = pool.decide("a", {"verdict": "COMMIT", "mean": 0.1})
    assert pool.decide("a", {"verdict": "COMMIT", "mean": 0.1}) == first and len(pool.ledger()) == 2
    with pytest.raises(EftError, match="decided already"):
        pool.decide("a", {"verdict": "REJECT"})
    with pytest.raises(EftError, match="cannot spend more"):
        pool.claim("a", "screening", 3, {}, batch=1)
