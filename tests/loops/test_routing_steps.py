"""Which mutator takes the next step: recorded searches played again, controls, and the routed mutator in a live search."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eft import edits
from eft.errors import EftError, UsageError
from eft.loops import routing, routing_replay, routing_step_controls, routing_steps
from eft.mutators import routed
from eft.mutators.ast import AstMutator
from eft.mutators.client import Client
from eft.mutators.gateway import Gateway, running
from eft.mutators.journal import read
from eft.mutators.replay import Scripted
from eft.mutators.step_state import step_state
from eft.records import Validity
from eft.search.spec import CACHE, SearchSpec
from eft.search.tournament import body as tournament
from eft.tasks.evaluate import check_seed, evaluate
from eft.tasks.task import Task, find_task, gap_closed

TASKS = ("tide", "dune", "reef", "fjord")


def record(folder: Path, mutator: str, task: str, seed: int, steps: list[tuple[float, float | None]]) -> None:
    """A finished search as `eft evaluate` leaves it, as far as it is read here."""
    candidates = [
        {"index": i, "iteration": i + 1, "status": "ok", "applied": True, "changes_syntax": True, "valid": after is not None,
         "score": after, "parent_score": before, "seconds": 2.0 if mutator == "slow" else 0.5, "parent_hash": "h"}
        for i, (before, after) in enumerate(steps)
    ]  # fmt: skip
    result = {
        "name": f"{mutator}--{task}--seed{seed}--0", "task": task, "domain": "coast", "role": "", "mutator": mutator, "model": "",
        "seed": seed, "scaffold": "openevolve", "scaffold_release": "", "prompt_format": "", "edit": "diff",
        "iterations": len(steps), "iterations_done": len(steps), "seed_score": 1.0, "seed_raw": 1.0, "best_score": 2.0,
        "best_raw": 2.0, "best_code": "", "best_curve": [], "raw_curve": [], "candidates": candidates, "replies": len(steps),
        "valid_edits": 0, "distinct_valid_edits": 0,
    }  # fmt: skip
    place = folder / mutator / task / f"seed{seed}"
    place.mkdir(parents=True)
    (place / "result.json").write_text(json.dumps(result))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`bold` is good while the program is bad and useless later; `slow` gains a little always: whoever changes over wins."""
    folder = tmp_path_factory.mktemp("evaluation")
    rng = random.Random(0)
    for task in TASKS:
        for seed in range(2):
            for mutator in ("bold", "slow"):
                steps = []
                for _ in range(20):
                    before = rng.uniform(1.0, 2.0)
                    if mutator == "bold":
                        after = before + 0.1 if before < 1.5 else (None if rng.random() < 0.5 else before - 0.1)
                    else:
                        after = before + 0.03
                    steps.append((before, after))
                record(folder, mutator, task, seed, steps)
    return folder


@pytest.fixture(scope="module")
def task(recorded: Path) -> Task:
    section = routing.Section(searches=recorded, splits=1, plays=2)
    return routing.tasks(section, root=recorded, out=recorded.parent / "out")[0]


def policy_text(body: str) -> str:
    return f"# EVOLVE-BLOCK-START\ndef route(state):\n{body}\n# EVOLVE-BLOCK-END\n"


CHANGES_OVER = policy_text('    return "bold" if state["best"] < 1.5 else "slow"')


def test_recorded_searches_become_a_task_with_tasks_held_out(task: Task) -> None:
    rows = json.loads((task.folder / "rows.json").read_text())
    sides = [{g["task"] for g in rows[part]} for part in ("search", "hidden")]
    assert sides[0] | sides[1] == set(TASKS) and not sides[0] & sides[1] and all(sides)
    seed = check_seed(task)
    assert seed.raw == pytest.approx(task.seed_raw) and seed.score == pytest.approx(task.seed_score)
    assert evaluate(task, task.seed(), hidden=True).raw == pytest.approx(task.hidden_seed_raw)
    for hidden in (False, True):
        found = evaluate(task, CHANGES_OVER, hidden=hidden)
        assert gap_closed(task, found.raw, hidden) > 0.1
        assert "bold" in found.artifacts["routed"]


def test_the_value_in_the_sandbox_is_the_value_out_here(task: Task) -> None:
    board = routing_steps.board(task.folder)
    inside = evaluate(task, CHANGES_OVER).raw
    assert inside == pytest.approx(board.value(lambda s: "bold" if s["best"] < 1.5 else "slow"))
    ucb = Path(routing_step_controls.__file__).read_text()
    text = policy_text(ucb.split("def ucb(state: dict[str, Any]) -> str:\n")[1].split("\n\n\ndef")[0])
    assert evaluate(task, "import math\n" + text).raw == pytest.approx(board.value(routing_step_controls.ucb))


def test_controls_and_the_clairvoyant(recorded: Path, task: Task) -> None:
    section = routing.Section(searches=recorded, splits=1, plays=2)
    found = routing.controls(section, task, root=recorded, out=recorded.parent / "out", evaluations=5, seeds=[0, 1])
    by_name = {c.name: c for c in found if c.seed == 0}
    assert set(by_name) == {"single: bold", "single: slow", "best single", "random", "round robin", "ucb", "oracle"}
    assert by_name["oracle"].bound and by_name["best single"].final_raw == pytest.approx(task.hidden_seed_raw)
    board = routing_steps.board(task.folder, hidden=True)
    assert by_name["oracle"].final_raw == pytest.approx(board.bound()) == pytest.approx(task.hidden_best_known)
    assert all(c.final_raw <= by_name["oracle"].final_raw for c in by_name.values() if c.name.startswith("single"))


def test_asking_costs_what_is_said_it_costs(recorded: Path, tmp_path: Path) -> None:
    values = []
    for price in (0.0, 0.01):
        section = routing.Section(searches=recorded, splits=1, plays=2, step_price=price)
        task = routing.tasks(section, root=recorded, out=tmp_path / str(price))[0]
        values.append(evaluate(task, policy_text('    return "slow"')).raw)
    assert values[0] - values[1] == pytest.approx(100 * 0.01 * 2.0 * 20)  # 20 steps of 2 seconds


@pytest.mark.parametrize(
    ("code", "validity", "words"),
    [
        (policy_text('    return "ast"'), Validity.INCORRECT, "'ast', which is none of bold, slow"),
        (policy_text("    return 1"), Validity.INCORRECT, "not int"),
        (policy_text('    return state["future"]'), Validity.ERROR, "KeyError"),
        (policy_text('    state["past"].clear()\n    return "bold"'), Validity.ERROR, "changed the state"),
        (policy_text('    return "bold"').replace("def", "SEEN = []\ndef").replace("return", "SEEN.append(1)\n    return")
         .replace('"bold"', '["bold", "slow"][len(SEEN) % 2]'), Validity.INCORRECT, "keep nothing"),
        (policy_text("    import os\n    return 'bold'"), Validity.ERROR, "may not import os"),
    ],
)  # fmt: skip
def test_a_policy_that_is_none_fails_with_its_reason(task: Task, code: str, validity: Validity, words: str) -> None:
    found = evaluate(task, code)
    assert found.score is None and found.validity is validity and words in found.metrics["error"]


def test_recordings_that_cannot_be_used(recorded: Path, tmp_path: Path) -> None:
    def tasks(**options: object) -> None:
        routing.tasks(routing.Section(splits=1, **options), root=tmp_path, out=tmp_path / "out")

    with pytest.raises(UsageError, match="no recorded searches"):
        tasks(searches=Path("none"))
    with pytest.raises(UsageError, match="two mutators"):
        tasks(searches=tmp_path)
    with pytest.raises(UsageError, match="two mutators"):
        tasks(searches=recorded, mutators=["bold"])
    one = tmp_path / "one"
    for mutator in ("bold", "slow"):
        record(one, mutator, "tide", 0, [(1.0, 1.5)])
    with pytest.raises(UsageError, match="two tasks"):
        tasks(searches=one)


steps = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 4), st.one_of(st.none(), st.integers(0, 6)), st.integers(0, 3)),
    max_size=30,
)


@given(steps)
def test_the_state_sums_up_the_history(history: list[tuple]) -> None:
    done = [
        {"arm": a, "before": float(b), "after": None if c is None else float(c), "cost": float(d)}
        for a, b, c, d in history
    ]
    state = step_state("t", "d", ["a", "b"], 40, 2.0, 7, done)
    bests = [2.0]
    for s in done:
        bests.append(max(bests[-1], s["after"] if s["after"] is not None else 0.0))
    assert state["best"] == bests[-1] / 2 and state["history"] == [b / 2 for b in bests[1:]][-20:]
    assert state["left"] == 40 - len(done) and state["step"] == len(done)
    assert (
        state["stagnation"] == next((i for i, b in enumerate(reversed(bests)) if b < bests[-1]), len(bests)) - 1
        or not done
    )
    for arm in "ab":
        own, past = [s for s in done if s["arm"] == arm], state["past"][arm]
        assert past["tried"] == len(own) and past["valid"] == sum(s["after"] is not None for s in own)
        assert past["improved"] == sum(s["after"] is not None and s["after"] > s["before"] for s in own)
        assert past["cost"] == pytest.approx(sum(s["cost"] for s in own) / len(own) if own else 0.0, abs=1e-3)


@given(st.integers(0, 5), st.integers(1, 30))
def test_a_game_uses_every_recorded_step_once_before_any_twice(number: int, budget: int) -> None:
    own = [[1.0 + i / 10, 1.0 + i / 10 + 0.01 * (i + 1), 1.0, 5] for i in range(7)]
    game = {
        "task": "t",
        "domain": "",
        "arms": ["a"],
        "budget": budget,
        "start": 1.0,
        "ceiling": 2.0,
        "size": 5,
        "steps": {"a": own},
    }
    _, done = routing_replay.simulate(lambda s: "a", game, number, step_state)
    changes = sorted(round(s["after"] - s["before"], 6) for s in done[:7] if s["after"] < 2.0)
    assert len(changes) == len(set(changes)) and all(s["after"] <= 2.0 for s in done)
    assert 0 <= routing_replay.gap(game, done) <= 1


# ---- the routed mutator ------------------------------------------------------------------------------------------

PACKING = "numerics/quadrature"


@pytest.fixture
def alternating(tmp_path: Path) -> Path:
    file = tmp_path / "policy.py"
    file.write_text('def route(state):\n    return state["mutators"][state["step"] % 2]\n')
    return file


def test_a_policy_is_checked_before_anything_starts(alternating: Path, tmp_path: Path) -> None:
    routed.check(alternating, ["one", "two"])
    for text, words in (("import os\n", "may not import os"), ("def route(s):\n    return 'x'\n", "none of one, two"),
                        ("def route(s):\n    return s['step'] / 0\n", "ZeroDivision")):  # fmt: skip
        (tmp_path / "bad.py").write_text(text)
        with pytest.raises(UsageError, match=words):
            routed.check(tmp_path / "bad.py", ["one", "two"])
    with pytest.raises(UsageError, match="no such policy"):
        routed.check(tmp_path / "none.py", ["one"])


def search(tmp_path: Path, task: Task, policy: Path, arms: dict, iterations: int) -> tuple[SearchSpec, dict]:
    """A live search through the gateway; again on what is there already where it was run before."""
    out = tmp_path / "search"
    spec = SearchSpec(task=str(task.folder), base_url="", out=str(out), name="live", mutator="both", scaffold="tournament",
                      iterations=iterations, journal=str(tmp_path / "journal" / "live.jsonl"), prompt_format="eft@1")  # fmt: skip

    def factory(name: str) -> routed.Routed:
        return routed.Routed(
            policy, arms, budget=20, seed=0, task=task, journal=Path(spec.journal), cache=out / CACHE, name="both"
        )

    out.mkdir(exist_ok=True)
    with running(Gateway(tmp_path / "journal", {"both": factory})) as gateway:
        tournament(dataclasses.replace(spec, base_url=gateway.url("live", "both")))
        return spec, gateway.stats()["total"]


class Counting:
    def __init__(self, seed: int) -> None:
        self.calls, self.inner = 0, AstMutator(seed=seed)

    def propose(self, messages: list[dict[str, str]], call: int):
        self.calls += 1
        return self.inner.propose(messages, call)


def test_a_live_search_takes_turns_and_a_restart_asks_nothing_twice(tmp_path: Path, alternating: Path) -> None:
    task = find_task(PACKING)
    arms = {"one": Counting(1), "two": Counting(2)}
    spec, total = search(tmp_path, task, alternating, arms, 6)
    records = [r for r in read(Path(spec.journal)) if r["kind"] == "reply"]
    assert [r["about"]["arm"] for r in records] == ["one", "two"] * 3
    assert [r["about"]["state"]["step"] for r in records] == list(range(6))
    assert records[-1]["about"]["state"]["past"]["one"]["tried"] == 3
    assert (arms["one"].calls, arms["two"].calls, total["answered"]) == (3, 3, 6)
    # What the state says of earlier steps is what came of them.
    best = task_seed = evaluate(task, task.seed()).score
    for r in records[:-1]:
        edit = edits.apply(_parent(r), r["content"], kind="diff")
        child = evaluate(task, edit.child).score if edit else None
        best = max(best, child) if child is not None else best
    assert records[-1]["about"]["state"]["best"] == pytest.approx(1 + (best - task_seed) / abs(task_seed), abs=1e-5)
    # Killed and started again with more iterations: six replies are replayed, the history is that of the journal.
    (spec.folder / "result.json").unlink()
    again = {"one": Counting(1), "two": Counting(2)}
    _, total = search(tmp_path, task, alternating, again, 8)
    assert total["replayed"] == 6 and (again["one"].calls, again["two"].calls) == (1, 1)
    records = [r for r in read(Path(spec.journal)) if r["kind"] == "reply"]
    assert [r["about"]["arm"] for r in records] == ["one", "two"] * 4 and records[-1]["about"]["state"]["step"] == 7


def _parent(record: dict) -> str:
    from eft.prompts import current_program

    return current_program(record["messages"][-1]["content"])


def test_without_a_journal_the_history_is_the_object_s_own(alternating: Path) -> None:
    task = find_task(PACKING)
    mutator = routed.Routed(alternating, {"one": AstMutator(1), "two": AstMutator(2)}, budget=4, seed=0, task=task)
    messages = [{"role": "user", "content": f"# Current Program\n```python\n{task.seed()}\n```\n"}]
    states = [mutator.propose(messages, i).about for i in range(3)]
    assert [s["arm"] for s in states] == ["one", "two", "one"] and states[2]["state"]["left"] == 2


def test_what_fails_is_told(tmp_path: Path, alternating: Path) -> None:
    task = find_task(PACKING)
    mutator = routed.Routed(alternating, {"one": Scripted(["x"]), "two": AstMutator(2)}, budget=4, seed=0, task=task)
    with pytest.raises(EftError, match="no program"):
        mutator.propose([{"role": "user", "content": "hello"}], 0)
    messages = [{"role": "user", "content": f"# Current Program\n```python\n{task.seed()}\n```\n"}]
    mutator.propose(messages, 0)  # a reply that is no edit is a step without a child
    assert mutator.propose(messages, 1).about["state"]["past"]["one"] | {"cost": 0} == {
        "tried": 1, "valid": 0, "improved": 0, "raised": 0, "gain": 0.0, "cost": 0, "since": 0}  # fmt: skip
    late = tmp_path / "late.py"
    late.write_text('def route(state):\n    return "one" if state["step"] < 1 else 5\n')
    mutator = routed.Routed(late, {"one": AstMutator(1)}, budget=4, seed=0, task=task)
    mutator.propose(messages, 0)
    with pytest.raises(EftError, match="no choice") as e:
        mutator.propose(messages, 1)
    assert "not int" in str(e.value)
    with pytest.raises(UsageError, match="no such policy"):
        routed.Routed(tmp_path / "none.py", {}, budget=1, seed=0, task=task)


def test_the_gateway_hands_a_policy_s_failure_on(tmp_path: Path) -> None:
    late = tmp_path / "late.py"
    late.write_text("def route(state):\n    return 5\n")
    task = find_task(PACKING)
    messages = [{"role": "user", "content": f"# Current Program\n```python\n{task.seed()}\n```\n"}]
    make = {"both": lambda search: routed.Routed(late, {"one": AstMutator(1)}, budget=1, seed=0, task=task)}
    with (
        running(Gateway(tmp_path / "journal", make)) as gateway,
        Client(gateway.url("s", "both"), "m", retries=0) as client,
    ):
        with pytest.raises(EftError, match="must return a name"):
            client.chat(messages)


def test_an_evaluation_depends_on_the_text_of_its_policies(tmp_path: Path) -> None:
    from eft.evaluate import run

    (tmp_path / "policy.py").write_text("def route(state):\n    return 'ast'\n")
    mutators = {"ast": {"kind": "ast"}, "both": {"kind": "routed", "policy": "policy.py", "among": ["ast"]}}
    config = run.Config(root=tmp_path, tasks=["control/pid"], mutators=mutators)
    assert tmp_path / "policy.py" in run.inputs(config)
