"""The merge loop: exact merges, the worker, what is refused before anything heavy, controls and confirmation."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import merging
import numpy as np
import pytest

from eft import config as configs
from eft.errors import EftError, UsageError
from eft.loops import merge, merge_client, merge_controls, merge_experts, merge_rows, merge_score
from eft.loops.merge_recipe import parse, text
from eft.records import Validity
from eft.tasks.evaluate import evaluate

ALIASES = ["a", "b", "c"]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A root with a base, three adapters, and rows; and the loop's options. Not to be changed."""
    root = tmp_path_factory.mktemp("merge")
    return root, merging.root(root)


def section(options: dict[str, Any], **changes: Any) -> merge.Section:
    return configs.make(merge.Section, {**options, **changes})


@pytest.fixture(scope="session")
def ran(made: tuple[Path, dict[str, Any]]) -> Iterator[Any]:
    """(section, task, root, out) with a worker that is running."""
    root, options = made
    own, out = section(options), root / "out"
    (task,) = merge.tasks(own, root=root, out=out)
    with merge.running(own, [task], root=root, out=out):
        yield own, task, root, out


@pytest.fixture
def held(made: tuple[Path, dict[str, Any]]) -> Any:
    from eft.loops.merge_weights import Held

    root, options = made
    return Held(merge_experts.check("base", options["experts"], root).to_json(), seed=1)


def recipe(genome: str, full: bool = False) -> Any:
    return parse(genome, ALIASES, layers=2, full=full)


def difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    assert one.keys() == other.keys()
    return max((one[k] - other[k]).abs().max().item() for k in one)


def weights(model: Any) -> dict[str, Any]:
    return {k: v.detach().clone() for k, v in model.named_parameters()}


# ---- exactness


def by_hand(root: Path, factors: dict[str, Any]) -> dict[str, Any]:
    """base + Σ w ΔW with PEFT's own ΔW. A factor is a number, or a function of the tensor's name."""
    from peft import PeftModel

    from eft.models.load import load_model

    found = weights(load_model(str(root / "base")))
    for alias, factor in factors.items():
        model = PeftModel.from_pretrained(load_model(str(root / "base")), str(root / alias))
        for name, module in model.base_model.model.named_modules():
            if hasattr(module, "get_delta_weight"):
                key = f"{name}.weight"
                found[key] += (factor(key) if callable(factor) else factor) * module.get_delta_weight("default").detach()
    return found


def test_a_merge_is_the_base_and_the_weighted_differences(made: Any, held: Any, tmp_path: Path) -> None:
    from eft import tokenizers
    from eft.models.load import load_model

    root, _ = made
    before = weights(held.model)
    genome = recipe(text("task_arithmetic", {"a": 0.7, "b": [-0.3, 1.5], "c": 0.25}))
    wanted = by_hand(root, {"a": 0.7, "b": lambda name: 1.5 if "layers.1." in name else -0.3, "c": 0.25})
    with held.merged(genome) as model:
        assert difference(weights(model), wanted) < 1e-5
    assert difference(weights(held.model), before) == 0, "the base comes back bit by bit"
    assert held.write(genome, tokenizers.load("random:qwen3"), tmp_path / "merged") == "adapter"
    assert difference(weights(load_model(str(tmp_path / "merged"))), wanted) < 1e-5, "and so does the adapter on disk"
    about = json.loads((tmp_path / "merged/adapter_config.json").read_text())
    assert about["r"] == 3 + 4 + 5, "ranks in a row"
    checked = merge_experts.check("base", {"a": "a", "m": str(tmp_path / "merged")}, root)
    assert checked.layers == 2, "a merged adapter can be an expert again"


@pytest.mark.parametrize(
    "genome",
    [
        text("linear", {"a": 0.2, "b": 0.5, "base": 0.3}),
        text("linear", {"a": 0.2, "b": [0.5, 0.1]}),
        text("task_arithmetic", {"a": 0.7, "b": [-0.3, 1.5], "c": 0.1}, **{"lambda": 0.5}),
        text("ties", {"a": {"weight": 0.7, "density": 0.4}, "b": {"weight": [0.3, 0.6], "density": 0.7}}, normalize=True),
        text("ties", {"a": 0.7, "c": {"weight": -0.5, "density": 0.5}}, normalize=False, rescale=True),
    ],
)
def test_adapters_merge_to_what_mergekit_makes_of_whole_models(made: Any, held: Any, tmp_path: Path, genome: str) -> None:
    pytest.importorskip("mergekit")
    from eft.loops.merge_weights import Held

    root, _ = made
    whole = whole_models(root)
    other = Held(merge_experts.check("base", whole, root).to_json(), scratch=tmp_path / "scratch")
    with held.merged(recipe(genome)) as one, other.merged(recipe(genome, full=True)) as two:
        assert difference(weights(one), weights(two)) < 1e-5
    assert not list((tmp_path / "scratch").iterdir()), "the scratch folder is empty again"


def whole_models(root: Path) -> dict[str, str]:
    from eft import tokenizers
    from eft.models.load import load_model

    for alias in ALIASES:
        if not (root / f"whole-{alias}").exists():
            load_model(str(root / alias)).save_pretrained(root / f"whole-{alias}")
            tokenizers.load("random:qwen3").save_pretrained(root / f"whole-{alias}")
    return {alias: f"whole-{alias}" for alias in ALIASES}


def test_every_method_makes_a_model_and_says_so_where_it_cannot(made: Any, tmp_path: Path) -> None:
    pytest.importorskip("mergekit")
    from eft.loops.merge_recipe import METHODS, RecipeError
    from eft.loops.merge_weights import Held

    root, _ = made
    other = Held(merge_experts.check("base", whole_models(root), root).to_json(), scratch=tmp_path / "scratch")
    before = weights(other.model)
    for method, about in METHODS.items():
        two = {"a": 0.5, "b": 0.5} if "weight" in about.per_model else {"a": {}, "b": {}}
        shared = {"t": 0.5} if "t" in about.shared else {}
        with other.merged(recipe(text(method, two, **shared), full=True)) as model:
            assert difference(weights(model), before) > 0, method
    bad = text("della", {"a": {"weight": 0.5, "density": 0.1, "epsilon": 0.4}, "b": 0.5})
    with pytest.raises(RecipeError, match="mergekit: Epsilon"), other.merged(recipe(bad, full=True)):
        pass
    assert difference(weights(other.model), before) == 0 and not list((tmp_path / "scratch").iterdir())


def test_adapters_and_models_and_a_base_that_is_no_folder(made: Any, tmp_path: Path) -> None:
    """What is no folder of whole weights is written as one, once, and mergekit merges them all."""
    pytest.importorskip("mergekit")
    from eft.loops.merge_weights import Held

    root, _ = made
    merging.adapter(tmp_path / "a", "random:qwen3", seed=0, rank=3)
    found = merge_experts.check("random:qwen3", {"a": str(tmp_path / "a"), "b": whole_models(root)["b"]}, root)
    assert found.full
    other = Held(found.to_json(), scratch=tmp_path / "scratch")
    with other.merged(recipe(text("task_arithmetic", {"a": 0.5, "b": 0.25}), full=True)) as model:
        assert difference(weights(model), by_hand(root, {"a": 0.5, "b": 0.25})) < 1e-5
    assert len(list((tmp_path / "scratch-models").iterdir())) == 2


def test_dare_drops_by_seed_and_keeps_the_size(held: Any) -> None:
    from eft.loops.merge_weights import Held

    name, pairs = next(iter(held.pairs.items()))
    genome = recipe(text("dare_linear", {"a": {"weight": 1.0, "density": 0.3}}))
    a, b = pairs["a"]
    one, again = held._difference(genome, name, pairs), held._difference(genome, name, pairs)
    assert (one == again).all() and abs((one != 0).float().mean().item() - 0.3) < 0.05
    assert one.abs().sum().item() == pytest.approx((b @ a).abs().sum().item(), rel=1e-4), "rescaled to the old sum"
    other = Held(held.experts, seed=2)
    assert (other._difference(genome, name, other.pairs[name]) != one).any()


def test_scales_are_pefts(made: Any, tmp_path: Path) -> None:
    """alpha and rank by pattern, rank-stabilised: the factor that PEFT itself uses."""
    from peft import PeftModel

    from eft.loops.merge_weights import pairs
    from eft.models.load import load_model

    root, _ = made
    folder = merging.adapter(tmp_path / "x", root / "base", seed=9, use_rslora=True, alpha_pattern={"layers.1.mlp.down_proj": 5},
                             rank_pattern={"q_proj": 4})  # fmt: skip
    model = PeftModel.from_pretrained(load_model(str(root / "base")), str(folder))
    modules = dict(model.base_model.model.named_modules())
    for name, (a, b) in pairs(folder).items():
        assert (b @ a - modules[name].get_delta_weight("default")).abs().max() < 1e-6


# ---- the worker


def test_a_recipe_is_scored_once_and_the_same_everywhere(ran: Any) -> None:
    own, task, root, out = ran
    found = evaluate(task, task.seed())
    assert found.validity is Validity.VALID and 0 < found.raw < 1 and found.score == found.raw
    assert set(found.metrics) >= {"auc", "nll", "likelihood", "fitness"} and "validation/one" in found.artifacts["by task"]
    work, _ = merge_client.plan_of(task.folder)
    lines = (work / "results.jsonl").read_text().count("\n")
    again = evaluate(task, task.seed().replace("weight: 0.333333", "weight: 3.33333e-1  # the same"))
    assert again.raw == found.raw and (work / "results.jsonl").read_text().count("\n") == lines
    hidden = evaluate(task, task.seed(), hidden=True)
    assert hidden.raw != found.raw and not hidden.artifacts, "nothing is said of hidden rows"


def test_scores_are_the_models_own_likelihoods(ran: Any, held: Any) -> None:
    from eft import tokenizers
    from eft.models.logprob import completions

    own, task, root, out = ran
    asking = merge_controls.Asking(task)
    genome = text("ties", {"a": {"weight": 0.4, "density": 0.5}, "c": 0.5})
    told = asking.score(genome, "search")["values"]
    rows = merge_rows.read(asking.work / merge_score.ROWS)["search"]
    with held.merged(recipe(genome)) as model:
        for row, value in list(zip(rows, told, strict=True))[::7]:
            alone = completions(model, tokenizers.load("random:qwen3"), list(row.messages), [row.response])[0]
            assert alone == pytest.approx(value, abs=1e-4)


@pytest.mark.parametrize(
    ("genome", "told"),
    [
        ("models: [", "it is not valid YAML"),
        ("merge_method: linear\nmodels: [{model: /etc}]", "there is no expert '/etc'"),
        (text("linear", {"a": 1, "b": -1}), "add up to"),
    ],
)
def test_a_broken_recipe_is_a_failed_candidate_with_the_reason(ran: Any, genome: str, told: str) -> None:
    found = evaluate(ran[1], genome)
    assert found.validity is not Validity.VALID and found.score is None
    assert told in found.artifacts["error"] and told in found.metrics["error"]


def test_a_killed_worker_is_started_again_and_nobody_notices(ran: Any) -> None:
    own, task, root, out = ran
    work, _ = merge_client.plan_of(task.folder)
    first = json.loads((work / "worker.json").read_text())
    found = []
    asks = threading.Thread(target=lambda: found.append(evaluate(task, text("linear", {"a": 1, "b": 0.123}))))
    os.kill(first["pid"], signal.SIGKILL)
    asks.start()
    asks.join(600)
    assert found and found[0].validity is Validity.VALID
    second = json.loads((work / "worker.json").read_text())
    assert second["pid"] != first["pid"]
    assert Path(second["socket"]).exists() and not Path(first["socket"]).parent.exists()
    with pytest.raises(EftError, match="is evaluating this merge"), merge_client.keeping(work):
        pass


def test_controls_spend_what_they_may_and_cost_nothing_twice(ran: Any) -> None:
    pytest.importorskip("cma")
    own, task, root, out = ran
    found = merge.controls(own, task, root=root, out=out, evaluations=6, seeds=[0, 1])
    by_name = {(c.name, c.seed): c for c in found}
    assert {c.name for c in found} == {"best parent", "uniform average", "random recipes", "CMA-ES"} and len(found) == 8
    for name in ("random recipes", "CMA-ES"):
        for seed in (0, 1):
            c = by_name[name, seed]
            assert c.evaluations == 6 and len(c.curve) == 7 and list(c.curve) == sorted(c.curve)
        assert by_name[name, 0].curve != by_name[name, 1].curve
    work, _ = merge_client.plan_of(task.folder)
    lines = (work / "results.jsonl").read_text().count("\n")
    assert merge.controls(own, task, root=root, out=out, evaluations=6, seeds=[0, 1]) == found
    assert (work / "results.jsonl").read_text().count("\n") == lines


def test_the_best_recipe_is_confirmed_on_rows_that_nobody_saw(ran: Any) -> None:
    own, task, root, out = ran
    told = merge.confirm(own, task, text("task_arithmetic", {"a": 0.2}), root=root, out=out)
    assert [c.reference for c in told] == ["best parent", "uniform average"]
    for c in told:
        assert c.low <= c.difference <= c.high and c.items == 36
        assert c.difference == pytest.approx(c.value - c.reference_value)
    same = merge_controls.against(merge_controls.Asking(task), task.seed(), task.seed(), "itself", 0.5)
    assert (same.difference, same.low, same.high) == (0, 0, 0)


def test_somebody_elses_fitness(made: Any, tmp_path: Path) -> None:
    """module:function, found under the root, on the merged model; what it raises or returns amiss is a failed candidate."""
    root, options = made
    (root / "ourfitness.py").write_text(
        "def short(model, tokenizer, rows):\n"
        "    first = next(m for n, m in model.named_parameters() if 'q_proj' in n)\n"
        "    return {'fitness': -float(first.abs().sum()), 'rows': len(rows)}\n"
        "def bad(model, tokenizer, rows):\n    raise KeyError('no')\n"
        "def odd(model, tokenizer, rows):\n    return float('nan')\n"
    )
    found = {}
    for name in ("short", "bad", "odd"):
        (task,) = merge.tasks(section(options, fitness=f"ourfitness:{name}", controls=["uniform"]), root=root, out=tmp_path)
        work, plan = merge_client.plan_of(task.folder)
        scorer = merge_score.Scorer(plan, work)
        found[name] = scorer.score(recipe(text("linear", {"a": 1})), "search")
        if name == "short":
            zero = scorer.score(recipe(text("task_arithmetic", {"a": 0})), "search")
    assert found["short"]["fitness"] < zero["fitness"] < 0 < merge_client.scored(found["short"])["combined_score"]
    assert found["short"]["rows"] == 24 and "KeyError" in found["bad"]["error"] and "no finite number" in found["odd"]["error"]
    with pytest.raises(UsageError, match="cannot be loaded"):
        merge.tasks(section(options, fitness="ourfitness:nothing"), root=root, out=tmp_path)


def test_a_worker_that_cannot_start_is_one_message(made: Any, tmp_path: Path) -> None:
    root, options = made
    shutil.copytree(root / "base", tmp_path / "base")
    own = section(options, base=str(tmp_path / "base"))
    (task,) = merge.tasks(own, root=root, out=tmp_path / "out")
    flip(tmp_path / "base/model.safetensors")
    with pytest.raises(EftError, match="'base' has changed since this merge began"), merge.running(own, [task], root=root, out=tmp_path):
        pass


# A worker without a model, so that dying and hanging take no time. What it is told decides what it does.
FAKE = """
import os, sys, time
from pathlib import Path
from eft.loops import merge_worker
class Fake:
    plan = {"scratch": sys.argv[1] + "/scratch"}
    def __init__(self, work): pass
    def answer(self, request):
        if "0.666" in request["recipe"]: os._exit(3)
        if "0.777" in request["recipe"] and not os.path.exists(sys.argv[1] + "/hung"):
            Path(sys.argv[1], "hung").touch(); os.kill(os.getpid(), 19)
        if "0.888" in request["recipe"]: return {"failed": "timeout", "why": "it took longer"}
        if "0.999" in request["recipe"]: return {"broken": "ValueError: a bug"}
        return {"result": {"fitness": 0.5}}
merge_worker.Worker = Fake
merge_worker.serve(Path(sys.argv[1]), int(sys.argv[2]))
"""


@pytest.fixture
def fake(made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Path]]:
    root, options = made
    (task,) = merge.tasks(section(options), root=root, out=tmp_path)
    work, _ = merge_client.plan_of(task.folder)

    def start(work: Path) -> Any:
        command = [sys.executable, "-c", FAKE, str(work), str(os.getpid())]
        return subprocess.Popen(command, start_new_session=True, cwd=Path(__file__).parents[2])

    monkeypatch.setattr(merge_client, "_start", start)
    monkeypatch.setattr(merge_client, "SILENT_S", 5.0)
    yield task, work
    if work in merge_client._own:
        merge_client._own.pop(work).close()


def test_what_becomes_of_a_worker_is_told(fake: Any) -> None:
    """Ended by a recipe, hung, too slow, broken. Without `running` an evaluation starts a worker of its own."""
    task, work = fake
    good = evaluate(task, task.seed())
    assert good.raw == 0.5
    died = evaluate(task, text("linear", {"a": 0.666}))
    assert died.score is None and "ended the worker twice" in died.artifacts["error"]
    hung = evaluate(task, text("linear", {"a": 0.777}))
    assert hung.raw == 0.5, "a worker that gives no sign is ended, and the next one answers"
    slow = evaluate(task, text("linear", {"a": 0.888}))
    assert slow.validity is Validity.TIMEOUT
    with pytest.raises(EftError, match="a bug"):
        evaluate(task, text("linear", {"a": 0.999}))


def test_a_worker_that_does_not_come_back_is_one_error(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    task, work = fake
    with merge_client.keeping(work):
        real = merge_client._start
        monkeypatch.setattr(merge_client, "_start", lambda w: dying(real, w))
        os.kill(json.loads((work / "worker.json").read_text())["pid"], signal.SIGKILL)
        for genome in (task.seed(), text("linear", {"b": 1})):
            with pytest.raises(EftError, match="cannot be evaluated"):
                evaluate(task, genome)


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-2] ^= 1
    file.write_bytes(bytes(data))


def dying(real: Any, work: Path) -> Any:
    process = real(work)
    process.kill()
    return process


def test_a_recipe_becomes_a_model_that_can_be_served(ran: Any, made: Any, tmp_path: Path) -> None:
    from eft.loops import merge_write
    from eft.models.load import load_model

    own, task, root, out = ran
    assert merge_write.write(task.folder, text("ties", {"a": 0.5, "b": 0.5}, normalize=False), tmp_path / "ties") == "model"
    assert merge_write.write(task.folder, text("linear", {"a": 0.5, "b": 0.5}), tmp_path / "average") == "adapter"
    wanted = by_hand(root, {"a": 0.5, "b": 0.5})
    assert difference(weights(load_model(str(tmp_path / "average"))), wanted) < 1e-5
    assert difference(weights(load_model(str(tmp_path / "ties"))), wanted) > 0
    with pytest.raises(UsageError, match="makes no model"):
        merge_write.write(task.folder, text("linear", {"a": 1, "b": -1}), tmp_path / "none")
    assert not (tmp_path / "none").exists()


# ---- what is refused before anything heavy


def broken(tmp_path: Path, root: Path, options: dict[str, Any]) -> dict[str, Any]:
    """A copy of the made root, to be spoilt."""
    shutil.copytree(root, tmp_path / "root", ignore=shutil.ignore_patterns("out", "whole-*"))
    return {**options, "experts": dict(options["experts"])}


def nan(folder: Path, name: str) -> None:
    from safetensors.torch import load_file, save_file

    state = load_file(folder / name)
    state[sorted(state)[0]].view(-1)[3] = float("nan")
    save_file(state, folder / name)


def other_shape(root: Path) -> None:
    file = root / "a/adapter_model.safetensors"
    from safetensors.torch import load_file, save_file

    state = load_file(file)
    key = next(k for k in state if k.endswith("q_proj.lora_A.weight"))
    state[key] = state[key][:, :32].contiguous()
    save_file(state, file)


def other_base(root: Path) -> None:
    import torch

    from eft.models.load import load_model, write_base

    shutil.copytree(root / "base", root / "base2")
    model = load_model(str(root / "base"))
    with torch.no_grad():
        next(model.parameters()).add_(1)
    model.save_pretrained(root / "base2")
    write_base(root / "a", str(root / "base2"))


def retrained_base(root: Path) -> None:
    """The adapter's manifest names other weights of the base's stage than are there."""
    from eft import manifest
    from eft.models.load import write_base

    (root / "stage").mkdir()
    shutil.move(root / "base", root / "stage/final")
    manifest.write(root / "stage", "sft", {}, [], [root / "stage/final/config.json"], {}, 0.0)
    (root / "run").mkdir()
    shutil.move(root / "a", root / "run/final")
    for folder in (root / "run/final", root / "b", root / "c"):
        write_base(folder, str(root / "stage/final"))
    manifest.write(root / "run", "sft", {}, [root / "stage"], [], {}, 0.0)
    (root / "stage/final/config.json").write_text((root / "stage/final/config.json").read_text() + "\n")
    manifest.write(root / "stage", "sft", {}, [], [root / "stage/final/config.json"], {}, 1.0)


def test_a_folder_that_is_no_merge_is_told_as_that(tmp_path: Path) -> None:
    from eft.loops import merge_write

    with pytest.raises(EftError, match="no task folder of a merge"):
        merge_write.write(tmp_path, "", tmp_path / "merged")


def test_a_merged_model_replaces_nothing(tmp_path: Path) -> None:
    from eft.loops import merge_write

    (tmp_path / "experts").mkdir()
    (tmp_path / "experts/weights").write_text("")
    with pytest.raises(EftError, match="would replace what is there"):
        merge_write.write(tmp_path, "", tmp_path / "experts")
    assert (tmp_path / "experts/weights").exists()


def configured(**change: Any) -> Any:
    def change_it(root: Path) -> None:
        file = root / "a/adapter_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **change}))

    return change_it


SPOILT: dict[str, tuple[Any, dict[str, Any], str]] = {
    "missing": (lambda r: shutil.rmtree(r / "b"), {}, "there is no such model folder"),
    "one": (None, {"experts": {"a": "a"}}, "at least two experts"),
    "alias": (None, {"experts": {"a": "a", "../b": "b"}}, "cannot name an expert"),
    "nan": (lambda r: nan(r / "c", "adapter_model.safetensors"), {}, "these weights are broken"),
    "nan base": (lambda r: nan(r / "base", "model.safetensors"), {}, "these weights are broken"),
    "torn": (lambda r: os.truncate(r / "c/adapter_model.safetensors", 3000), {}, "is damaged"),
    "shape": (other_shape, {}, "'a' does not fit the base"),
    "base": (other_base, {}, "'a' belongs on another base"),
    "retrained": (retrained_base, {"base": "stage/final", "experts": {"a": "run/final", "b": "b"}}, "has changed since the adapter"),
    "dora": (configured(use_dora=True), {}, "'a' cannot be merged exactly"),
    "alpha": (configured(lora_alpha="16"), {}, "cannot be used"),
    "alpha that is none": (configured(lora_alpha=float("nan")), {}, "cannot be used"),
    "pattern": (configured(alpha_pattern={"(": 1}), {}, "cannot be used"),
    "memory": (None, {"memory_gib": 1e-6}, "too large to be merged here"),
    "method": (None, {"methods": ["tise"]}, "did you mean 'ties'"),
    "adapters": (None, {"methods": ["slerp"]}, "none of these methods can merge adapters"),
    "rows": (None, {"fresh": None}, "takes rows and fresh, or neither"),
    "roles": (None, {"rows": "gate", "fresh": "validation"}, "must be of validation tasks"),
    "empty": (lambda r: merging.table(r / "gate/transitions.parquet", "gate", ("x",), replies=1), {}, "no fresh rows"),
    "table": (lambda r: os.truncate(r / "gate/transitions.parquet", 100), {}, "not a Parquet file"),
}


@pytest.mark.parametrize("what", SPOILT)
def test_what_cannot_be_merged_is_one_message_at_once(made: Any, tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from eft.models import load

    spoil, changes, told = SPOILT[what]
    options = broken(tmp_path, *made)
    root = tmp_path / "root"
    if spoil:
        spoil(root)
    monkeypatch.setattr(load, "load_model", lambda *a, **k: pytest.fail("a model was loaded"))
    with pytest.raises(EftError) as e:
        merge.tasks(section(options, **changes), root=root, out=tmp_path / "out")
    assert told in f"{e.value}", str(e.value)


def test_whole_models_must_be_alike(made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from eft.loops import merge_mergekit

    options = broken(tmp_path, *made)
    root = tmp_path / "root"
    shutil.copytree(root / "base", root / "m1")
    nudge = bytearray((root / "m1/model.safetensors").read_bytes())
    nudge[-3] ^= 1
    (root / "m1/model.safetensors").write_bytes(bytes(nudge))
    cases: list[tuple[dict[str, str], str]] = [({"m": "m1", "n": "base"}, "is the base itself")]
    shutil.copytree(root / "m1", root / "m2")
    config = json.loads((root / "m2/config.json").read_text())
    (root / "m2/config.json").write_text(json.dumps({**config, "vocab_size": 7}))
    cases.append(({"m": "m1", "n": "m2"}, "of another shape"))
    for experts, told in cases:
        with pytest.raises(EftError, match=told):
            merge.tasks(section(options, experts=experts), root=root, out=tmp_path / "out")
    good = section(options, experts={"m": "m1", "n": "m1"})
    with pytest.raises(UsageError, match="does not fit into the scratch folder"):
        merge.tasks(good.model_copy(update={"scratch_gib": 1e-6}), root=root, out=tmp_path / "out")
    monkeypatch.setattr(merge_mergekit.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="needs mergekit"):
        merge.tasks(good, root=root, out=tmp_path / "out")


def test_tasks_change_with_what_they_measure_and_only_then(made: Any, tmp_path: Path) -> None:
    root, options = made
    (one,) = merge.tasks(section(options), root=root, out=tmp_path)
    stamp = (one.folder / "evaluator.py").stat().st_mtime_ns
    (again,) = merge.tasks(section(options, threads=2), root=root, out=tmp_path)
    assert again.folder == one.folder and (one.folder / "evaluator.py").stat().st_mtime_ns == stamp
    for change in ({"auc_weight": 0.2}, {"search_rows": 12}, {"seed": 3}, {"experts": {"a": "a", "b": "b"}}):
        assert merge.tasks(section(options, **change), root=root, out=tmp_path)[0].folder != one.folder
    told = set()
    for value in (1, 2, 2):  # somebody's own fitness, changed once: its scores are others
        (root / "changing.py").write_text(f"def fit(model, tokenizer, rows):\n    return {value}\n")
        told.add(merge.tasks(section(options, fitness="changing:fit"), root=root, out=tmp_path)[0].folder)
    assert len(told) == 2
    assert one.name == "merge/experts" and one.language == "yaml" and one.has_hidden and one.isolation == "isolated"
    assert parse(one.seed(), ALIASES, layers=2, full=False).method == "linear"


# ---- rows and the statistic


def test_the_three_sets_share_nothing(made: Any, ran: Any) -> None:
    rows = merge_rows.read(merge_client.plan_of(ran[1].folder)[0] / merge_score.ROWS)
    assert {s: len(r) for s, r in rows.items()} == {"search": 24, "hidden": 16, "fresh": 36}
    for split, found in rows.items():
        assert {r.task.split("/")[0] for r in found} == {merge_rows.ROLES[split]}
        for task in {r.task for r in found}:
            kinds = [r.improved for r in found if r.task == task]
            assert kinds.count(True) == kinds.count(False)
    groups = [{r.group for r in found} for found in rows.values()]
    assert not (groups[0] & groups[1] or groups[0] & groups[2] or groups[1] & groups[2])
    with pytest.raises(EftError, match="overlap"):
        merge_rows.disjoint({"search": rows["search"], "fresh": rows["search"][:1]})


def rows_of(improved: list[bool], task: str = "t") -> list[merge_rows.Row]:
    return [merge_rows.Row(f"{task}{i}", task, f"{task}{i // 2}", good, (), "") for i, good in enumerate(improved)]


def test_the_fitness_is_auc_and_likelihood_by_task() -> None:
    rows = [*rows_of([True, True, False, False], "s"), *rows_of([True, False], "t")]
    told = merge_rows.fitness(rows, [-1.0, -2.0, -1.5, -2.0, -3.0, -1.0], 0.25)
    assert told["by_task"]["s"] == {"auc": pytest.approx((1 + 1 + 0 + 0.5) / 4), "nll": 1.5}
    assert told["by_task"]["t"] == {"auc": 0.0, "nll": 3.0}
    likelihood = (np.exp(-1.5) + np.exp(-3)) / 2
    assert told["fitness"] == pytest.approx(0.25 * told["auc"] + 0.75 * likelihood)
    better = merge_rows.fitness(rows, [-0.5, -1.0, -1.5, -2.0, -0.1, -1.0], 0.25)
    assert better["auc"] == 1 and better["fitness"] > told["fitness"]


def test_intervals_are_of_differences() -> None:
    rng = np.random.default_rng(0)
    rows = [r for t in range(8) for r in rows_of([True, False] * 10, f"t{t}")]
    base = rng.normal(-2, 0.5, len(rows))
    lift = np.array([0.3 if r.improved else 0.0 for r in rows])
    difference, low, high = merge_rows.interval(rows, base + lift, base, 0.5)
    assert low < difference < high and low > 0
    reverse = merge_rows.interval(rows, base, base + lift, 0.5)
    assert reverse == pytest.approx((-difference, -high, -low))
    covered = 0
    for trial in range(40):  # two models that do not differ: the interval holds 0 nearly always
        noise = np.random.default_rng(trial).normal(0, 0.2, (2, len(rows)))
        _, low, high = merge_rows.interval(rows, base + noise[0], base + noise[1], 0.5, draws=400)
        covered += low <= 0 <= high
    assert covered >= 34


def test_scores_are_above_zero_and_in_order() -> None:
    values = [-1e9, -5.0, -1e-12, 0.0, 1e-10, 1e-9, 0.3, 1.0, 1.5, 1e6]
    found = [merge_client.positive(v) for v in values]
    assert found == sorted(found) and min(found) > 0 and len(set(found)) == len(found)
