"""The routing loop on tables: tasks, splits, what policies are worth, controls, and policies that cheat."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from routing_tables import MODELS, write

from eft.config import make
from eft.errors import EftError, UsageError
from eft.evaluate.plan import task_fingerprint
from eft.loops import routing, routing_controls, routing_score, routing_state, routing_task
from eft.loops import routing_metrics as metrics
from eft.records import Validity
from eft.tasks import policy
from eft.tasks.evaluate import check_seed, evaluate
from eft.tasks.task import Task, gap_closed

PUBLIC = Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "routing"


def policy_text(body: str, head: str = "") -> str:
    return f"# EVOLVE-BLOCK-START\n{head}\n\ndef route(state):\n{body}\n# EVOLVE-BLOCK-END\n"


GOOD = policy_text('    return state["models"][1 if state["math"] and state["choices"] < 2 else 0]')


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[routing.Section, Path, list[Task]]:
    root = tmp_path_factory.mktemp("routing")
    write(root / "bench.csv")
    section = routing.Section(table=Path("bench.csv"), splits=2, split="within")
    return section, root, routing.tasks(section, root=root, out=root / "out")


@pytest.fixture
def task(made: tuple) -> Task:
    return made[2][0]


# ---- tasks -------------------------------------------------------------------------------------------------------


def test_a_split_is_a_task_whose_seed_is_the_best_single_model(made: tuple) -> None:
    for task in made[2]:
        assert task.isolation == "isolated" and task.has_hidden and task.best_known == 100.0
        seen, unseen = check_seed(task), evaluate(task, task.seed(), hidden=True)
        assert seen.raw == pytest.approx(task.seed_raw) and seen.score == pytest.approx(task.seed_score)
        assert unseen.raw == pytest.approx(task.hidden_seed_raw)
        assert seen.raw == pytest.approx(max(routing_score.game(task.folder).singles()))
        assert "prompts by model" in seen.artifacts["routed"]
        found = evaluate(task, GOOD)
        assert found.validity is Validity.VALID and found.raw > seen.raw
        assert gap_closed(task, found.raw) > 0.2 and evaluate(task, GOOD, hidden=True).raw > unseen.raw


@pytest.mark.parametrize(
    "body, words",
    [
        ('    if state["foreign"] > 0.3:\n        tier = tier\n    return state["models"][0]', "tier"),
        ('    return state["models"][0] if state["words"] else "gpt-9"', "gpt-9"),
        ('    return state["models"][state["code"] > 5 and 7 or 0]', "index"),
    ],
)
def test_a_policy_answers_prompts_that_no_row_holds(task: Task, body: str, words: str) -> None:
    """The table has no empty, foreign or program prompts; a search must not end with a policy that fails on them."""
    found = evaluate(task, policy_text(body))
    assert found.validity in (Validity.ERROR, Validity.INCORRECT) and words in found.metrics["error"]
    assert evaluate(task, policy_text(body), hidden=True).validity is Validity.VALID, "the final value is of real rows alone"


def test_tasks_are_written_once_and_when_something_changes(made: tuple) -> None:
    section, root, tasks = made
    prints = [task_fingerprint(t) for t in tasks]
    times = [(t.folder / "rows.json").stat().st_mtime_ns for t in tasks]
    assert [task_fingerprint(t) for t in routing.tasks(section, root=root, out=root / "out")] == prints
    assert [(t.folder / "rows.json").stat().st_mtime_ns for t in tasks] == times
    assert len(set(prints)) == len(prints)
    other = routing.tasks(section.model_copy(update={"seed": 1}), root=root, out=root / "other")
    assert task_fingerprint(other[0]) != prints[0]


def test_of_a_large_table_some_rows_are_drawn(made: tuple, tmp_path: Path) -> None:
    section, root, _ = made
    few = section.model_copy(update={"rows": 30, "splits": 1})
    one, two = (routing.tasks(few, root=root, out=tmp_path / name)[0] for name in "ab")
    told = json.loads((one.folder / "rows.json").read_text())
    assert len(told["search"]["ids"]) + len(told["hidden"]["ids"]) == 30
    assert task_fingerprint(one) == task_fingerprint(two)


@given(
    st.lists(st.sampled_from("abcdefg"), min_size=8, max_size=60), st.sampled_from(["across", "within"]),
    st.integers(0, 5), st.floats(0.2, 0.7),
)  # fmt: skip
def test_search_rows_and_hidden_rows_never_meet(groups: list[str], how: str, seed: int, hidden: float) -> None:
    try:
        kept, away = routing_task.split(groups, how, hidden, seed, 0)
    except EftError:
        return
    assert sorted(kept + away) == list(range(len(groups)))
    if how == "across":
        assert not {groups[i] for i in kept} & {groups[i] for i in away}
    assert routing_task.split(groups, how, hidden, seed, 0) == (kept, away)


def test_the_state_tells_nothing_of_the_row_s_outcomes(made: tuple, tmp_path: Path) -> None:
    section, root, tasks = made
    rows = json.loads((tasks[0].folder / "rows.json").read_text())
    game = routing_score.game(tasks[0].folder)
    own = {*routing_state.facts("x"), "models", "scores", "costs"}
    assert all(set(s) == own for s in game.states)  # and `price`, when it is asked
    assert len({json.dumps([s["scores"], s["costs"]]) for s in game.states}) == 1  # of the models, not of the row
    assert game.states[0]["scores"] == [round(v, 4) for v in np.mean(rows["search"]["scores"], axis=0)]
    assert game.models == MODELS and list(game.states[0]["costs"]) == sorted(game.states[0]["costs"])
    told = routing.tasks(section.model_copy(update={"names": True, "splits": 1}), root=root, out=tmp_path)[0]
    assert {s["name"] for s in routing_score.game(told.folder).states} <= {f"{k}-{i}" for k in
                                                                         ("choice", "maths", "poem") for i in range(3)}  # fmt: skip
    assert "data set" in told.system_message and "data set" not in tasks[0].system_message
    # Told the names, the seed has a tier for every common family, and is the best single model all the same.
    assert "OF_MATHS_TIER" in told.seed() and "OF_MATHS_TIER" not in tasks[0].seed()
    assert check_seed(told).raw == pytest.approx(told.seed_raw)


@pytest.mark.parametrize("objective", ["arena", "aiq", "apgr"])
def test_other_objectives(made: tuple, tmp_path: Path, objective: str) -> None:
    _, root, _ = made
    models = ["cheap", "dear"] if objective == "apgr" else []
    section = routing.Section(table=Path("bench.csv"), splits=1, split="within", objective=objective, models=models)
    task = routing.tasks(section, root=root, out=tmp_path)[0]
    seed = check_seed(task)
    assert seed.raw == pytest.approx(task.seed_raw) and task.raw_metric == objective
    by_price = policy_text('    return state["models"][0 if state["choices"] or state["price"] > 1000 else -1]')
    found = evaluate(task, by_price)
    assert found.score is not None and found.raw < task.best_known
    if objective != "arena":
        assert found.raw > seed.raw


def test_the_standard_error_is_that_of_leaving_blocks_out(task: Task) -> None:
    game = routing_score.game(task.folder)
    choice = np.arange(len(game.scores)) % 3
    above, error = game.above([choice])
    assert above == pytest.approx(game.value([choice]) - max(game.singles()))
    without = []
    for block in set(game.blocks.tolist()):
        kept = game.blocks != block
        values = [
            metrics.share(game.scores[kept], game.costs[kept], c[kept]) for c in (choice, game.same(game.best)[0])
        ]
        without.append(values[0] - values[1])
    assert error == pytest.approx(np.sqrt((len(without) - 1) * np.var(without)))
    assert game.above(game.same(game.best)) == (0.0, 0.0)


def test_facts_about_a_prompt() -> None:
    facts = routing_state.facts("Which is right?\nA) 1\nB) 2\nC) 30% of x\nAnswer:")
    assert (facts["choices"], facts["questions"], facts["lines"], facts["words"]) == (3, 1, 5, 12)
    assert routing_state.facts("def f(x):\n    return x ** 2")["code"] >= 2
    assert routing_state.facts("How many apples does he have in total?")["math"] == 2
    assert routing_state.facts("猜字谜")["foreign"] == 1.0 and routing_state.facts("")["foreign"] == 0.0
    assert (
        len(routing_state.facts("a " * 5000)["prompt"]) == 4000 and routing_state.facts("a " * 5000)["length"] == 10000
    )


def test_options_that_cannot_work(made: tuple, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, root, _ = made

    def tasks(**options: object) -> None:
        routing.tasks(make(routing.Section, {"table": "bench.csv", **options}), root=root, out=tmp_path)

    for options, words in (
        ({"objective": "apgr"}, "two models"),
        ({"table": "none.csv"}, "does not exist"),
        ({"table": "shipped:mutator"}, "shipped:mutators|'mutators'"),
        ({"models": ["cheap", "huge"]}, "huge"),
        ({"split": "across", "group": "family", "hidden": 0.1}, "cannot be split"),
        ({"sweep": [1.0, 1.0]}, "different"),
        ({"sweep": [0.0, float("nan")], "objective": "aiq"}, "finite"),
        ({"price": float("inf")}, "finite"),
        ({"tabel": "x"}, "table"),
        ({"table": None}, "needs `table`"),
    ):
        with pytest.raises(EftError, match=words):
            tasks(**options)
    (root / "router.json").write_text(json.dumps([{"question": str(i), "scores": {"a": 1, "b": 0}} for i in range(9)]))
    with pytest.raises(UsageError, match="needs costs"):
        tasks(table="router.json", objective="aiq")
    with pytest.raises(UsageError, match="dear model that is better"):
        tasks(table="router.json", objective="apgr", prices={"a": 1.0, "b": 2.0})
    tasks(table="router.json")  # no data sets are named: rows are split by themselves
    monkeypatch.setattr(routing_controls.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="scikit-learn"):
        tasks()
    tasks(routers=[])


def test_rows_that_cannot_be_read(made: tuple, tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text("{}")
    with pytest.raises(EftError, match="cannot be read"):
        routing_score.game(tmp_path)
    with pytest.raises(EftError, match="cannot be read"):
        routing_score.game(tmp_path / "none")


def test_a_family_s_name_may_be_anything() -> None:
    code = routing_task.seed_program(1, (), ['it\'s "odd"-1'] * 9 + ["2wiki-x"] * 9)
    states = [
        {**routing_state.facts("x"), "name": n, "models": list(MODELS)} for n in ("2wiki", 'it\'s "odd"', "other")
    ]
    assert policy.ask(code, states, MODELS).names == ["mid"] * 3


# ---- controls ----------------------------------------------------------------------------------------------------


def test_every_control_is_there_and_the_oracle_is_above_all(made: tuple) -> None:
    section, root, tasks = made
    out = root / "out"
    found = routing.controls(section, tasks[0], root=root, out=out, evaluations=10, seeds=[0, 1])
    by_name = {c.name: c for c in found if c.seed == 1}
    assert len(found) == 2 * len(by_name)
    assert set(by_name) == {"best single", "majority", "majority by family", "random", "logistic", "knn", "oracle",
                            *(f"single: {m}" for m in MODELS)}  # fmt: skip
    assert by_name["oracle"].final_raw == 100.0 and by_name["oracle"].bound
    assert all(c.final_raw <= 100.0 for c in found)
    assert by_name["best single"].final_raw == pytest.approx(tasks[0].hidden_seed_raw)
    assert by_name["best single"].final_raw in [by_name[f"single: {m}"].final_raw for m in MODELS]
    # A table where the kind of prompt decides: whoever reads the prompt is above the best single model.
    assert by_name["logistic"].final_raw > by_name["best single"].final_raw > by_name["random"].final_raw
    randoms = {c.final_raw for c in found if c.name == "random"}
    assert len(randoms) == 2  # by seed; the others have no chance
    assert routing.controls(section, tasks[0], root=root, out=out, evaluations=10, seeds=[0, 1]) == found
    (out / "controls" / f"{tasks[0].folder.name}.json").write_text("torn")
    assert routing.controls(section, tasks[0], root=root, out=out, evaluations=10, seeds=[0, 1]) == found


def test_learned_routers_do_not_see_hidden_rows(made: tuple) -> None:
    search, hidden = (routing_score.game(made[2][0].folder, h) for h in (False, True))
    blind = routing_score.Game(
        hidden.models, hidden.states, np.zeros_like(hidden.scores), hidden.costs * 0, "share", (150.0,)
    )
    groups = json.loads((made[2][0].folder / "rows.json").read_text())["search"]["groups"]
    for name in routing_controls.LEARNED:
        one, two = (routing_controls.learned(name, search, g, groups)[1] for g in (hidden, blind))
        assert np.array_equal(one, two)
    folds = routing_controls._folds(groups)
    assert sorted(i for f in folds for i in f) == list(range(len(groups)))
    assert all(not {groups[i] for i in a} & {groups[i] for i in b} for a in folds for b in folds if a is not b)


# ---- attacks -----------------------------------------------------------------------------------------------------

SNEAKY_IMPORT = "importer = [c for c in ().__class__.__base__.__subclasses__() if c.__name__ == 'BuiltinImporter'][0]"
ATTACKS = {
    "raises": (policy_text('    return state["nothing"]'), Validity.ERROR, "KeyError: 'nothing'"),
    "raises at the top": (policy_text('    return "cheap"', "1 / 0"), Validity.ERROR, "ZeroDivisionError"),
    "exits": (policy_text("    raise SystemExit(0)"), Validity.ERROR, "SystemExit"),
    "foreign name": (policy_text('    return "gpt-5"'), Validity.INCORRECT, "'gpt-5', which is none of cheap, mid, dear"),
    "no name": (policy_text("    return 1"), Validity.INCORRECT, "must return a name, not int"),
    "none": (policy_text("    pass"), Validity.INCORRECT, "not NoneType"),
    "no data": (policy_text("    return object()"), Validity.ERROR, "JSON"),
    "not defined": ("# EVOLVE-BLOCK-START\nx = 1\n# EVOLVE-BLOCK-END\n", Validity.ERROR, "does not define route"),
    "no program": (policy_text("    return ("), Validity.ERROR, "SyntaxError"),
    "changes the state": (policy_text('    state["models"].append("x")\n    return "cheap"'), Validity.ERROR, "changed the state"),
    "counts rows": (
        policy_text('    SEEN.append(1)\n    return state["models"][len(SEEN) % 3]', "SEEN = []"), Validity.INCORRECT,
        "keep nothing between states"),
    "remembers prompts": (
        policy_text('    SEEN.add(state["words"])\n    return state["models"][len(SEEN) % 3]', "SEEN = set()"),
        Validity.INCORRECT, "keep nothing between states"),
    "remembers by default": (
        policy_text('    return "cheap"').replace("(state)", "(state, seen=[])").replace(
            'return "cheap"', 'seen.append(1)\n    return state["models"][len(seen) % 3]'),
        Validity.INCORRECT, "keep nothing between states"),
    "remembers globally": (
        policy_text("    global COUNT\n    COUNT += 1\n    return 'cheap'", "COUNT = 0"), Validity.ERROR, "global"),
    "opens the table": (policy_text('    return open("rows.json").read()'), Validity.ERROR, "may not use open"),
    "lists files": (policy_text("    return 'cheap'", "import os"), Validity.ERROR, "may not import os"),
    "imports us": (policy_text("    return 'cheap'", "from eft.loops import routing_score"), Validity.ERROR,
                   "may not import eft.loops"),
    "reads /proc": (policy_text("    return 'cheap'", "from pathlib import Path"), Validity.ERROR, "may not import pathlib"),
    "measures time": (policy_text("    return 'cheap'", "import time"), Validity.ERROR, "may not import time"),
    "walks frames": (policy_text("    import sys\n    return sys._getframe(1).f_locals['states'][0]"), Validity.ERROR,
                     "may not import sys"),
    "frames of generators": (policy_text("    g = (g.gi_frame.f_back for g in [1])\n    return next(g)"), Validity.ERROR,
                             "may not look at ."),
    "subclasses": (policy_text("    return 'cheap'", SNEAKY_IMPORT), Validity.ERROR, "may not look at .__"),
    "getattr": (policy_text("    return getattr(state, 'x')"), Validity.ERROR, "may not use getattr"),
    "eval": (policy_text("    return eval('1')"), Validity.ERROR, "may not use eval"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_a_policy_that_is_none_fails_with_its_reason(task: Task, name: str) -> None:
    code, validity, words = ATTACKS[name]
    found = evaluate(task, code)
    assert found.score is None and found.raw is None
    assert found.validity is validity and words in found.metrics["error"] and words in found.artifacts["error"]


def test_a_policy_that_hangs_ends(task: Task) -> None:
    found = evaluate(task, policy_text("    while True: pass"))
    assert found.validity is Validity.TIMEOUT and "CPU time" in found.metrics["error"]


# Past the rules over the text, the sandbox: nothing that a policy could reach has the table in it.
LOOKS = {
    "files": """
    import os
    for root, folders, files in os.walk("/"):
        folders[:] = [f for f in folders if f not in ("usr", "lib", "lib64", "proc", "sys", "python3.11", "encodings")]
        if "rows.json" in files:
            return "dear"
    return "cheap"
""",
    "the table by its path": """
    try:
        with open(PATH) as f:
            f.read()
        return "dear"
    except OSError:
        return "cheap"
""",
    "/proc": """
    import os
    try:
        found = os.listdir("/proc")
    except OSError:  # not there, or forbidden
        found = []
    for pid in found:
        if pid.isdigit() and int(pid) != os.getpid():
            try:
                with open(f"/proc/{pid}/mem", "rb") as f:
                    f.read(1)
                return "dear"
            except OSError:
                pass
    return "cheap"
""",
    "frames": """
    import sys
    frame = sys._getframe()
    while frame is not None:
        text = repr({k: v for k, v in frame.f_locals.items() if k != "state"})
        if '"scores": [[' in text or len(frame.f_locals.get("message", [])) > 1:
            return "dear"
        frame = frame.f_back
    return "cheap"
""",
    "objects": """
    import gc
    for thing in gc.get_objects():
        if isinstance(thing, dict) and "hidden" in thing and "search" in thing:
            return "dear"
    return "cheap"
""",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(LOOKS))
def test_a_policy_that_looks_around_finds_nothing(task: Task, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    path = task.folder / "rows.json"
    code = policy_text(LOOKS[name], f"PATH = {str(path)!r}")
    refused = evaluate(task, code)
    assert refused.score is None and "a policy sees only its state" in refused.metrics["error"]
    monkeypatch.setattr(policy, "refusal", lambda code: None)
    found = policy.ask(code, list(routing_score.game(task.folder).states)[:8], MODELS)
    assert found.validity is Validity.VALID and set(found.names) == {"cheap"}


def test_changing_the_state_helps_no_later_row(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    states = [{"models": list(MODELS), "x": i} for i in range(5)]
    monkeypatch.setattr(policy, "_BEHIND", policy._BEHIND.replace("if _dumps(state, 2) != before", "if False"))
    code = policy_text('    state["models"].reverse()\n    return state["models"][0]')
    assert policy.ask(code, states, MODELS).names == ["dear"] * 5  # every question brings a state of its own


def test_policies_may_compute(task: Task) -> None:
    code = policy_text(
        '    return state["models"][min(2, len(re.findall("[0-9]", state["prompt"])) // 6) if sqrt(4) else 0]',
        "import re\nfrom math import sqrt\nfrom collections import Counter",
    )
    assert evaluate(task, code).score is not None
    lines = policy.ask(policy_text("    x = 1\n    return 1 / 0"), [{"a": 1}], MODELS)
    assert "ZeroDivisionError" in lines.error and "(line 6)" in lines.error


# ---- the public table --------------------------------------------------------------------------------------------


def test_the_public_table_splits_into_tasks_with_controls(tmp_path: Path) -> None:
    if not PUBLIC.is_dir():
        pytest.skip(f"the public routing tables are not here: {PUBLIC} is missing")
    section = routing.Section(table=PUBLIC / "frontier_cs_llm_router_365.csv", splits=1, routers=["knn"])
    task = routing.tasks(section, root=tmp_path, out=tmp_path)[0]
    rows = json.loads((task.folder / "rows.json").read_text())
    assert not set(rows["search"]["groups"]) & set(rows["hidden"]["groups"])
    assert len(rows["search"]["ids"]) + len(rows["hidden"]["ids"]) == 365
    assert check_seed(task).raw == pytest.approx(task.seed_raw)
    found = {c.name: c for c in routing.controls(section, task, root=tmp_path, out=tmp_path, evaluations=1, seeds=[0])}
    assert len([n for n in found if n.startswith("single: ")]) == 11
    assert max(c.final_raw for c in found.values() if not c.bound) < 100 == found["oracle"].final_raw


def test_an_ast_search_finds_what_is_there_to_find(task: Task) -> None:
    """A few seconds of hill climbing by random edits get above the best single model, on hidden rows too."""
    from eft.mutators import ast_edits

    rng, best, code = random.Random(2), check_seed(task).score, task.seed()
    for _ in range(50):
        change = ast_edits.propose(code, rng)
        found = evaluate(task, change.child) if change else None
        if found and found.score is not None and found.score > best:
            best, code = found.score, change.child
    assert evaluate(task, code, hidden=True).raw > task.hidden_seed_raw
