"""The loop with a host whose states are numbers: what is inherited, what is kept, and kills at every write."""

from __future__ import annotations

import json
import random
import xml.dom.minidom
from collections.abc import Sequence
from pathlib import Path

import killed
from hypothesis import given, settings
from hypothesis import strategies as st

from eft.errors import EftError
from eft.gate import evidence, lineage
from eft.gate.confirm import replay
from eft.gate.decide import Rule
from eft.gate.evidence import Item, Pool
from eft.gate.host import State
from eft.loops import archive
from eft.loops.archive import Archive, Entry
from eft.loops.rounds import inherit

TASK = "games/coins"
ROUNDS = 3
ROOT = State("root", "fp-root", 0.5)


def pool(folder: Path, count: int = 1500) -> Pool:
    items = [Item("coin", TASK, f"{TASK}:{i}", {"number": i}) for i in range(count)]
    return Pool.create(folder, items, tasks=[TASK], kind="coin")


class Coins:
    """Each round's branches are the root's value and a step up or down; experience is one archived line by the root."""

    def __init__(self, folder: Path) -> None:
        self.archive, self.recovered = Archive(folder), []

    def begin(self, number: int, root: State) -> None:
        self.number, self.root = number, root
        self.archive.add(Entry(f"r{number}", number, root.fingerprint, root.name, f"runs/{number}", 10, float(number)))

    def propose(self) -> Sequence[State]:
        values = [min(0.99, self.root.payload + step) for step in (-0.2, 0.25, 0.05)]
        return [State(f"r{self.number}-{k}", f"fp-{self.number}-{k}-{v:.4f}", v) for k, v in enumerate(values)]

    def evaluate(self, state: State, items: Sequence[Item]) -> list[float]:
        return [float(random.Random(item.id).random() < state.payload) for item in items]

    def recover(self, number: int, root: State, winner: State) -> State:
        self.recovered.append((number, winner.name))
        return winner

    def end(self, number: int, root: State, branches: Sequence[State], result) -> None:
        for s in branches:
            self.archive.add(
                Entry(f"{number}.{s.name}", number, s.fingerprint, s.name, f"runs/{s.name}", 5, float(number))
            )


def loop(folder: Path, fresh: bool = True) -> State:
    method = "tau" if fresh else "midp"
    return inherit(
        Pool(folder / "pool"),
        "inherit",
        ROOT,
        Coins(folder),
        Rule(method),
        rounds=ROUNDS,
        screening=32,
        budget=64,
        fresh=fresh,
    )


def test_updates_are_inherited_and_the_rest_is_archived(tmp_path: Path) -> None:
    made = pool(tmp_path / "pool")
    last = loop(tmp_path)
    nodes = lineage.nodes(made, "inherit", ROOT.to_json(), ROUNDS)
    assert [n["kind"] for n in nodes].count("branch") == 9 and nodes[0]["kind"] == "root"
    assert last.payload > 0.9 and lineage.current(nodes) == last.fingerprint
    committed = [n for n in nodes if n["status"] == "committed"]
    for before, after in zip(committed, committed[1:], strict=False):
        assert after["parent"] == before["id"], "a committed state is the next one's parent"
    status = {n["id"]: n["status"] for n in nodes}
    kept = Archive(tmp_path)
    authors = {status[e.by] for e in kept.entries()}
    assert authors == {"committed", "rejected"}, "experience of rejected models stays"
    for policy, expected in (("current", {2}), ("all", {0, 1, 2}), ("committed", {0, 1, 2})):
        assert {e.round for e in kept.choose(policy, 2, status, None)} == expected
    older = [e for e in kept.choose("committed", 2, status, None) if e.round < 2]
    assert older and all(status[e.by] == "committed" for e in older)
    assert {e.round for e in kept.choose("all", 2, status, 1)} == {1, 2}, "too old"
    shown = kept.to_json(2, status)
    assert [e["age"] for e in shown] == [2 - e["round"] for e in shown]


def test_without_fresh_items_the_screen_decides_at_a_share_of_alpha(tmp_path: Path) -> None:
    made = pool(tmp_path / "pool")
    loop(tmp_path, fresh=False)
    decisions = [e["result"] for e in made.ledger() if e["kind"] == "decision"]
    assert len(decisions) == ROUNDS and all(d["rule"]["branches"] == 3 for d in decisions)
    assert made.left("confirmation") == Pool(made.folder).left("confirmation")


def test_killed_at_every_write_the_lineage_is_the_same(tmp_path: Path) -> None:
    pool(tmp_path / "calm" / "pool")
    pool(tmp_path / "killed" / "pool")
    expected = loop(tmp_path / "calm")
    kills = killed.until_it_ends(lambda: loop(tmp_path / "killed"), evidence, archive)
    assert kills > 15
    one, other = (Pool(tmp_path / f / "pool") for f in ("killed", "calm"))
    assert one.ledger() == other.ledger()
    assert loop(tmp_path / "killed") == expected
    names = [e["decision"] for e in one.ledger() if e["kind"] == "decision"]
    assert len(names) == len(set(names)) == 2 * ROUNDS
    assert [replay(one, n) for n in names] == [one.decided(n) for n in names]
    entries = Archive(tmp_path / "killed").entries()
    assert entries == Archive(tmp_path / "calm").entries(), "nothing archived twice, nothing lost"


def test_more_rounds_continue_and_a_round_without_branches_keeps_the_root(tmp_path: Path) -> None:
    made = pool(tmp_path / "pool")
    host = Coins(tmp_path)
    host.propose = lambda: []
    assert inherit(made, "inherit", ROOT, host, Rule(), rounds=2, screening=8, budget=8) == ROOT
    nodes = lineage.nodes(made, "inherit", ROOT.to_json(), 2)
    assert [n["id"] for n in nodes] == ["fp-root"]
    lineage.svg(nodes)


def test_a_damaged_archive_is_told(tmp_path: Path) -> None:
    (tmp_path / archive.INDEX).write_text('{"id": 1}\n')
    try:
        Archive(tmp_path).entries()
    except EftError as e:
        assert "line 1" in str(e)
    else:
        raise AssertionError


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from(["committed", "rejected", "undecided"]), max_size=6), st.text(max_size=8))
def test_the_picture_is_well_formed(statuses: list[str], name: str) -> None:
    nodes = [
        {"id": "a", "name": name, "parent": None, "round": -1, "kind": "root", "status": "committed", "numbers": {}}
    ]
    nodes += [
        {
            "id": f"b{i}",
            "name": f"<{name}>&",
            "parent": "a",
            "round": i // 2,
            "kind": "branch",
            "status": s,
            "numbers": {"advantage": 0.1},
        }
        for i, s in enumerate(statuses)
    ]
    if name.isprintable():
        xml.dom.minidom.parseString(lineage.svg(nodes))
    assert "<script" not in lineage.page({"nodes": nodes, "archive": []})
    json.dumps(nodes)
