"""On-policy negatives: a model's own failures, from the gateway's journal to the undesirable rows of a KTO set."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from synthetic_runs import child, code, diff, trace, trace_json
from tables import labelled, output_of
from test_gateway_reader import journal, reply

from data_tools import build, clean, harvest, label, pairing
from data_tools.choose import Row
from eft import manifest
from eft.errors import EftError, UsageError
from eft.records import Label, read_transitions

NO_EDIT, UNMATCHED, NO_OP = "I would not change it.", diff(77, 78), diff(0, 0)


def search(runs: Path, name: str, model: str, children: list[dict], extra: list[tuple[str, dict]] = ()) -> None:
    """A search of `model` as `eft collect` leaves it. `extra`: (reply to the seed program, fields of its record)."""
    records = [trace_json(c) for c in children]
    for record in records:
        record["metadata"]["token_usage"]["model"] = model
    trace(runs / name / "evolution_trace.jsonl", records)
    about = {"search": name, "task": f"maths/{name}", "domain": "maths", "role": "train", "prompt_format": "eft@1"}
    (runs / name / "run.json").write_text(json.dumps(about))
    made = [(c["response"], c["parent_code"], {}) for c in children] + [(r, code(0), more) for r, more in extra]
    records = [reply(i, r, parent, search=name, model=model, **more) for i, (r, parent, more) in enumerate(made)]
    journal(runs / "journal" / f"{name}.jsonl", records)


@pytest.fixture
def cleaned(tmp_path: Path) -> Path:
    """Two searches of the teacher and two of the model `sft`, harvested with what was refused, labelled, cleaned."""
    runs = tmp_path / "runs"
    for name in ("a", "b"):
        search(runs, name, "ast", [child(3), child(-3), child(5)])
    for name in ("c", "d"):
        refused = [(NO_EDIT, {}), (UNMATCHED, {}), (NO_OP, {}), (NO_OP, {}), ("cut off", {"finish_reason": "length"})]
        search(runs, name, "sft", [child(4), child(-4), child(9, score="nan")], refused)
    found = harvest.run(harvest.Config(runs=[runs], output=tmp_path / "harvest", unusable=True))
    told = label.run(label.Config(source=found, output=tmp_path / "label"))
    keep = dict.fromkeys(("identical", "breakage", "syntax_errors", "timeouts"), False)
    return clean.run(clean.Config(source=told, output=tmp_path / "clean", suite="",
                                  **{f"drop_{name}": value for name, value in keep.items()}))  # fmt: skip


def built(cleaned: Path, **changes) -> tuple[list[dict], dict]:
    out = build.run(build.Config(source=cleaned, output=cleaned.parent / "build", validation=0, **changes))
    rows = pq.read_table(out / "kto" / "train.parquet").to_pylist()
    return rows, {**manifest.read(out)["counts"], **json.loads((out / "kto" / "weights.json").read_text())}


def test_refused_replies_are_rows_from_a_program_to_itself(cleaned: Path) -> None:
    rows = [r for r in read_transitions(cleaned.parent / "harvest") if r.child_code == r.parent_code]
    assert sorted((r.run, r.response) for r in rows) == sorted(
        (run, text) for run in "cd" for text in (NO_EDIT, UNMATCHED, NO_OP)
    ), "the same reply once, the one that was cut off not at all"
    for row in rows:
        assert row.parent_metrics == row.child_metrics and json.loads(row.parent_metrics) == {"combined_score": 0.0}
        assert (row.task, row.suite_role, row.model, row.replay) == (f"maths/{row.run}", "train", "sft", "unknown")
        assert row.prompt_user and json.loads(row.child_artifacts)["refused"] in ("no_block", "unmatched", "no_op")
    assert len({r.id for r in read_transitions(cleaned.parent / "harvest")}) == 18
    assert manifest.read(cleaned.parent / "harvest")["counts"]["transitions"] == 18


def test_by_default_nothing_of_it_is_harvested(tmp_path: Path) -> None:
    search(tmp_path / "runs", "c", "sft", [child(4)], [(NO_EDIT, {})])
    found = harvest.run(harvest.Config(runs=[tmp_path / "runs"], output=tmp_path / "harvest"))
    assert len(list(read_transitions(found))) == 1


@pytest.mark.parametrize(
    "negatives, good, bad",
    [
        ("logged", {("ast", 4), ("sft", 2)}, {"regressed": 4}),
        ("on_policy", {("sft", 2)}, {"no_op": 6, "regressed": 2, "breakage": 2}),
        ("both", {("ast", 4), ("sft", 2)}, {"no_op": 6, "regressed": 4, "breakage": 2}),
    ],
)
def test_the_three_choices(cleaned: Path, negatives: str, good: set, bad: dict) -> None:
    own = {} if negatives == "logged" else {"policy": "sft"}
    rows, counts = built(cleaned, negatives=negatives, **own)
    desirable = [r for r in rows if r["label"]]
    assert {(m, sum(r["model"] == m for r in desirable)) for m in {r["model"] for r in desirable}} == good
    if negatives != "logged":
        assert counts["kto_undesirable"] == bad
    assert len(rows) - len(desirable) == sum(bad.values())
    texts = {r["completion"][0]["content"] for r in rows if not r["label"]}
    assert ({NO_EDIT, UNMATCHED, NO_OP} <= texts) is (negatives != "logged"), "replies as the model wrote them"
    ratio = counts["desirable_weight"] * len(desirable) / (counts["undesirable_weight"] * sum(bad.values()))
    assert 1 <= round(ratio, 4) <= 1.3334, "the weights make up for the few desirable rows"


def test_smallest_diffs_leave_refused_replies_as_they_are(cleaned: Path) -> None:
    rows, _ = built(cleaned, negatives="on_policy", policy="sft", response="diff")
    assert NO_EDIT in {r["completion"][0]["content"] for r in rows}


def test_the_sft_set_has_improvements_only(cleaned: Path) -> None:
    built(cleaned, negatives="both", policy="sft")
    rows = pq.read_table(cleaned.parent / "build" / "sft" / "train.parquet").to_pylist()
    assert {r["label"] for r in rows} == {"improved"} and len(rows) == 6


def test_a_valid_edit_that_changes_no_score_is_no_failure(tmp_path: Path) -> None:
    rows = [labelled(1, model="sft"), labelled(2, "regressed", model="sft"), labelled(3, "no_change", model="sft"),
            labelled(4, "repair", model="sft")]  # fmt: skip
    found, counts = built(output_of("clean", tmp_path / "clean", rows), negatives="on_policy", policy="sft")
    assert counts["kto_undesirable"] == {"regressed": 1} and len(found) == 2


def test_a_policy_that_answered_nothing_is_named(cleaned: Path) -> None:
    with pytest.raises(UsageError, match="no row was answered by the model 'stf'") as e:
        built(cleaned, negatives="both", policy="stf")
    assert "'sft'" in str(e.value)


@pytest.mark.parametrize("options", [{"negatives": "both"}, {"policy": "sft"}])
def test_policy_and_negatives_go_together(options: dict) -> None:
    with pytest.raises((EftError, ValueError), match="policy"):
        build.Config(output="x", **options)


def test_the_classes_alternate_whatever_the_failures_are_called() -> None:
    def row(number: int, name: Label) -> Row:
        return Row(number, f"r{number}", "s", f"t{number % 5}", "d", name, "train", "", 1.0, 0.0, "x", "m", "python",
                   "diff", "eft@1", f"p{number}", True, True, True)  # fmt: skip

    failures = [Label.REGRESSED, Label.BREAKAGE, Label.NO_CHANGE]
    good = [row(i, Label.IMPROVED) for i in range(10)]
    mixed = pairing.interleave(good, [row(100 + i, failures[i % 3]) for i in range(30)], seed=0, block=4)
    assert len(mixed) == 40 and pairing.label_runs(mixed) <= 4
    assert all(any(pairing.desirable(r) for r in mixed[i : i + 5]) for i in range(0, 36))


def test_the_recipe_says_the_same_thing_everywhere() -> None:
    from eft import config as configs
    from eft import recipes, resources, stages

    sections = recipes.resolve(resources.path("recipes", "smollm2_135m_on_policy"))
    found = {verb: configs.make(stages.module(verb).Config, values) for verb, values in sections.items()}
    assert list(found) == ["collect", "harvest", "label", "clean", "build", "kto"]
    assert found["collect"].mutator.model == found["build"].policy == "sft" and found["harvest"].unusable
    assert not (found["clean"].drop_identical or found["clean"].drop_breakage)
    assert found["build"].negatives == "both" and found["build"].kto_block == found["kto"].micro_batch
    first = recipes.resolve(resources.path("recipes", "smollm2_135m"))
    model = (found["kto"].root / found["kto"].model).resolve()
    assert model == (Path(first["sft"]["root"]) / first["sft"]["output"] / "final").resolve()
    assert (found["harvest"].root / "../runs").resolve() == (
        Path(first["collect"]["root"]) / first["collect"]["output"]
    ).resolve()
