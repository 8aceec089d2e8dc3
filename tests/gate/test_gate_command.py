"""`eft gate` as a guard: on model folders by log-likelihood, on endpoints by edits that are run, and with bad input."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from eft import edits
from eft.errors import EftError, UsageError
from eft.gate import items as recording
from eft.gate.audit import compare, outcome
from eft.gate.decide import Rule
from eft.gate.evidence import Item, Pool
from eft.gate.run import Config, run
from eft.gate.score import ModelHost, check_comparable, model_state
from eft.mutators.gateway import Gateway, running
from eft.mutators.reply import Reply
from eft.prompts import current_program
from eft.tasks.task import find_task

TASK = "simulators/pricing"
SUITE = f"name: little\ntrain: [numerics/quadrature]\ngate: [{TASK}]\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a suite and pools of states that differ in a comment only."""
    import numpy as np

    task = find_task(TASK)
    (tmp_path / "suite.yaml").write_text(SUITE)
    for kind in ("mutation", "judge"):
        made = []
        for i in range(60):
            code = f"{task.seed()}\n# {i}\n"
            prompt = f"# Current Program\n```python\n{code}\n```\n# Task\nSEARCH/REPLACE: <<<<<<< SEARCH"
            states = {
                "mutation": {"parent_code": code, "parent_score": -1e9, "edit": "diff", "folder": str(task.folder)},
                "judge": {"better": "x" * int(np.random.default_rng(i).integers(1, 9)), "worse": f"y{i}"},
            }
            made.append(Item(kind, TASK, f"g{i}", {"messages": [{"role": "user", "content": prompt}], **states[kind]}))
        Pool.create(tmp_path / kind, made, tasks=[TASK], kind=kind, shares=(0.0, 1.0, 0.0))
    return tmp_path


class Doubling:
    """Adds a statement: any change is better than a parent score of -1e9. `good` False: answers with prose."""

    def __init__(self, good: bool) -> None:
        self.good = good

    def propose(self, messages, call: int) -> Reply:
        code = current_program(messages[-1]["content"])
        return Reply(edits.render_diff(code, code + "\nEXTRA = 1\n") if self.good else "I would rather not.")


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[dict[str, str]]:
    """URLs of a mutator that edits and of one that does not."""
    sources = {"good": lambda search: Doubling(True), "bad": lambda search: Doubling(False)}
    with running(Gateway(tmp_path / "journal", sources)) as g:
        yield {name: f"{g.url('gate', name)}#{name}" for name in sources}


def ask(root: Path, *states: str, **options) -> dict:
    return run(
        Config(
            root=root,
            states=list(states),
            suite="suite.yaml",
            output=root / "out",
            **{"kind": "mutation", "pool": "mutation", **options},
        )
    )


@pytest.mark.integration
def test_endpoints_are_asked_and_their_edits_are_run(root: Path, endpoint: dict[str, str]) -> None:
    better = ask(root, endpoint["bad"], endpoint["good"], method="gsprt", budget=40, effect=0.3)
    assert better["verdict"] == "COMMIT" and better["exit_code"] == 0
    assert (better["root_mean"], better["candidate_mean"]) == (0.0, 1.0) and better["items"] < 40
    worse = ask(root, endpoint["good"], endpoint["bad"], method="tau", budget=10)
    assert worse["verdict"] == "REJECT" and worse["exit_code"] == 3
    again = ask(root, endpoint["bad"], endpoint["good"], method="gsprt", budget=40, effect=0.3)
    assert len(run(Config(root=root, replay=True, pool="mutation"))["replayed"]) == 2
    assert again["stands_since_before"] and again["evidence"] == better["evidence"]
    shown = json.loads((root / "out" / "decision.json").read_text())
    assert shown["verdict"] == "COMMIT" and shown["pool"]


@pytest.mark.integration
def test_a_lost_server_decides_nothing(root: Path, endpoint: dict[str, str]) -> None:
    with pytest.raises(EftError, match="cannot be reached"):
        ask(root, endpoint["good"], "http://127.0.0.1:9/v1#gone", method="tau", budget=5)
    pool = Pool(root / "mutation")
    assert [e["kind"] for e in pool.ledger()] == ["claim"] and not (root / "out" / "decision.json").exists()


@pytest.mark.integration
def test_weights_are_judged_and_the_answer_guards_the_export(eft, root: Path, tmp_path: Path) -> None:
    import torch

    from eft import tokenizers
    from eft.models.load import load_model

    for seed in (1, 2):
        model = load_model("random:qwen3")
        torch.manual_seed(seed)
        for p in model.parameters():
            p.data += 0.05 * torch.randn_like(p)
        model.save_pretrained(tmp_path / f"m{seed}")
        tokenizers.load("random:qwen3").save_pretrained(tmp_path / f"m{seed}")
    done = eft(
        "gate",
        "m1",
        "m2",
        "--root",
        root,
        "--suite",
        "suite.yaml",
        "--kind",
        "judge",
        "--pool",
        "judge",
        "--method",
        "midp",
        "--budget",
        20,
        "-o",
        root / "out",
        "--json",
    )
    answer = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == answer["exit_code"] == {"COMMIT": 0, "REJECT": 3, "UNDECIDED": 4}[answer["verdict"]], (
        done.stderr
    )
    assert answer["verdict"] in done.stderr and "Traceback" not in done.stderr
    file = root / "out" / "decision.json"
    value = json.loads(file.read_text())
    for verdict, place, told in (
        ("REJECT", "m2", "did not commit"),
        ("COMMIT", "m1", "other weights"),
        ("COMMIT", "m2", ""),
    ):
        file.write_text(json.dumps({**value, "verdict": verdict}))
        from eft.train.export import require_gate

        if told:
            with pytest.raises(EftError, match=told):
                require_gate(file, str(tmp_path / place))
        else:
            require_gate(file, str(tmp_path / place))
    with pytest.raises(EftError, match="no decision"):
        require_gate(root / "nothing.json", str(tmp_path / "m1"))
    refused = eft("export", tmp_path / "m1", "-o", root / "exported", "--require-gate", file)
    assert refused.returncode == 1 and "other weights" in refused.stderr and not (root / "exported").exists()


def test_bad_requests_are_one_message(root: Path) -> None:
    for states, options, told in (
        (["random:qwen3"], {}, "compares two states"),
        (["random:qwen3", "random:qwen3"], {"kind": "judge", "pool": "judge"}, "same state"),
        (["random:qwen3", "random:llama"], {}, "another architecture"),
        (["random:qwen3", "http://127.0.0.1:9/v1"], {}, "which model"),
        (["http://127.0.0.1:9/v1#a", "http://127.0.0.1:9/v1#b"], {"pool": "judge"}, "another one than asked for"),
        (
            ["http://127.0.0.1:9/v1#a", "http://127.0.0.1:9/v1#b"],
            {"kind": "judge", "pool": "judge"},
            "need the model's weights",
        ),
        (["http://127.0.0.1:9/v1#a", "http://127.0.0.1:9/v1#b"], {"method": "midq"}, "no method 'midq'"),
        (["http://127.0.0.1:9/v1#a", "http://127.0.0.1:9/v1#b"], {"budget": 500}, "at least 440 more"),
    ):
        with pytest.raises(EftError, match=told):
            ask(root, *states, **options)
    (root / "suite.yaml").write_text("name: little\ntrain: [numerics/quadrature]\n")
    with pytest.raises(UsageError, match="no gate tasks"):
        ask(root, "http://127.0.0.1:9/v1#a", "http://127.0.0.1:9/v1#b")


def test_another_prompt_format_is_refused(root: Path) -> None:
    from eft import manifest

    for name, fmt in (("a", "eft@1"), ("b", "openevolve@0.4")):
        folder = root / name
        folder.mkdir()
        (folder / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}')
        (folder / "model.safetensors").write_bytes(name.encode())
        manifest.write(folder, "export", {"prompt_format": fmt}, [], [folder / "config.json"], {}, 0.0)
    from eft.models import identity

    with pytest.raises(EftError, match="another architecture"):
        check_comparable(model_state(str(root / "a")), model_state("random:llama"))
    assert identity.prompt_format(str(root / "a")) == "eft@1"
    assert identity.fingerprint(str(root / "a")) != identity.fingerprint(str(root / "b"))


def test_items_of_training_tasks_and_of_nothing_are_refused() -> None:
    tasks = {TASK: find_task(TASK)}
    with pytest.raises(EftError, match="no judge item"):
        recording.from_transitions([], tasks, "judge")


def test_a_pool_grows_until_it_is_large_enough_and_no_further(tmp_path: Path) -> None:
    (tmp_path / "suite.yaml").write_text(SUITE)
    ask = {"root": tmp_path, "seeds": 7, "seed": 3}
    pool = recording.record(tmp_path / "p", "suite.yaml", "search", need={"confirmation": 20, "audit": 4}, **ask)
    assert pool.left("confirmation") >= 20 and pool.left("audit") >= 4 and len(pool.items) <= 70
    pool.claim("a", "confirmation", pool.left("confirmation"), {})
    same = recording.record(tmp_path / "p", "suite.yaml", "search", need={"confirmation": 20}, **ask)
    assert same.items.keys() == pool.items.keys() and same.left("confirmation") == 0
    more = recording.record(tmp_path / "p", "suite.yaml", "search", need={"confirmation": 5}, extend=True, **ask)
    assert more.left("confirmation") >= 5 and set(pool.items) < set(more.items)


@pytest.mark.integration
def test_short_searches_are_scored_by_the_gap_that_they_close(root: Path, endpoint: dict[str, str]) -> None:
    task = find_task(TASK)
    made = recording.searches({TASK: task}, range(2), {"iterations": 2, "edit": "diff", "prompt_format": "eft@1"})
    with ModelHost(root / "work") as host:
        found = host.evaluate(model_state(endpoint["good"]), made)
        assert found == pytest.approx([0, 0], abs=1e-6), "one more constant closes no gap"
        with pytest.raises(EftError, match="nothing is decided"):
            host.evaluate(model_state("http://127.0.0.1:9/v1#gone"), made)


def test_an_audit_counts_what_policies_did() -> None:
    import numpy as np

    value = np.array([0.1, 0.2, -0.1, -0.3])
    assert outcome(np.array([1, 0, 1, 0]), value) == {
        "commit_rate": 0.5,
        "harmful": 0.5,
        "useful_kept": 0.5,
        "gain": 0.0,
    }
    assert outcome(np.full(4, 0.5), value)["harmful"] == 0.5 and outcome(np.zeros(4), value)["harmful"] is None
    rng = np.random.default_rng(0)
    true = np.array([0.5, 0.9, 0.1])  # the root, a useful and a harmful update
    small, large = ((rng.random((3, n)) < true[:, None]).astype(float) for n in (60, 400))
    report = compare(small, large, {"tau": Rule(), "midp": Rule("midp")}, [False, True])
    for name in ("tau", "midp"):
        assert report["policies"][name]["harmful"] == 0 and report["policies"][name]["useful_kept"] == 1
        assert report["policies"][f"chance, at the rate of {name}"]["harmful"] == 0.5
    assert report["policies"]["native acceptance"]["harmful"] == 1
    assert report["harmful"] == 0.5 and report["resolved"] == 2


def test_a_host_is_let_go(root: Path) -> None:
    with ModelHost(root / "work") as host:
        assert list(host.propose()) == []


@pytest.mark.slow
@pytest.mark.serve
def test_folders_are_served_and_asked(eft, root: Path) -> None:
    """Two vLLM servers of ours; random weights write no edit, so nothing improves and nothing is committed."""
    import torch

    from eft import tokenizers
    from eft.models.load import load_model

    model = load_model("random:qwen3")
    for p in model.parameters():
        p.data += 0.05 * torch.randn_like(p)
    model.save_pretrained(root / "changed")
    tokenizers.load("random:qwen3").save_pretrained(root / "changed")
    done = eft(
        "gate",
        "random:qwen3",
        "changed",
        "--root",
        root,
        "--suite",
        "suite.yaml",
        "--pool",
        "mutation",
        "--method",
        "tau",
        "--budget",
        6,
        "-o",
        root / "out",
        "--set",
        "serving.max_tokens=24",
        "--json",
        timeout=900,
    )
    answer = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 3 and answer["verdict"] == "REJECT", done.stderr[-3000:]
    assert (answer["root_mean"], answer["candidate_mean"], answer["used"]) == (0.0, 0.0, 6)
