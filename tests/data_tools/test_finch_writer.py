"""The Finch-Collection's schema as we write it: 25 columns, and read back equal."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from synthetic_runs import checkpoint, child, diff, program_json, seed_json, trace, trace_json

from data_tools import finch_writer, harvest, label
from eft.edits import parse_python
from eft.records import COLUMNS, Transition, read_transitions, write_transitions

# As the published data set's viewer shows them.
PUBLISHED = {
    "domain": "string", "task": "string", "improvement_label": "string", "improvement_delta": "string",
    "global_uid": "string", "instance_uid": "string", "iteration": "int64", "island_id": "int64", "generation": "int64",
    "parent_id": "string", "child_id": "string", "parent_metrics": "string", "child_metrics": "string",
    "parent_code": "string", "child_code": "string", "metadata": "string", "system_prompt": "string",
    "user_prompt": "string", "reasoning": "string", "response": "string", "system_token_length": "int64",
    "user_token_length": "int64", "reasoning_token_length": "int64", "response_token_length": "int64",
}  # fmt: skip
LABELLED = {"parent_score", "child_score", "score_kind", "parent_validity", "child_validity", "delta", "label",
            "relative_delta", "rank", "gap_closed", "noise"}  # fmt: skip


def read_back(file: Path, out: Path) -> list[Transition]:
    return list(read_transitions(harvest.run(harvest.Config(runs=[file], output=out))))


def test_the_columns_are_the_published_ones(tmp_path):
    names = {f.name: str(f.type) for f in finch_writer.schema()}
    assert len(names) == 25 and names.pop("trajectory").startswith("list<")
    assert names == PUBLISHED


def test_a_search_of_ours_is_read_back_equal(tmp_path):
    run = tmp_path / "run"
    good, bad = child(2, artifacts={"stderr": "warm"}), child(1, parent=2, score=-3.0)
    broken = child(3, metrics={"error": 0.0, "timeout": True})
    checkpoint(run, 10, [seed_json(), program_json(broken), program_json(child(4, score=0.0))])
    trace(run / "evolution_trace.jsonl", [trace_json(good) | {"artifacts": {"stderr": "warm"}}, trace_json(bad)])
    harvest.run(harvest.Config(runs=[run], output=tmp_path / "h", task="maths/x", domain="maths", role="train"))
    label.run(label.Config(source=tmp_path / "h", output=tmp_path / "l"))
    left_out: Counter[str] = Counter()
    (file,) = finch_writer.write(tmp_path / "l", tmp_path / "f", count=len, left_out=left_out)
    assert left_out == {"breakage": 1}
    first = {r.child_id: r for r in read_transitions(tmp_path / "l") if r.label in finch_writer.LABELS}
    label.run(
        label.Config(source=harvest.run(harvest.Config(runs=[file], output=tmp_path / "h2")), output=tmp_path / "l2")
    )
    again = {r.child_id: r for r in read_transitions(tmp_path / "l2")}
    assert first.keys() == again.keys() == {"child-1", "child-2", "child-4"}
    for name in COLUMNS:
        if name not in ("sources", "rank"):  # the rank counted the broken one's search
            assert {c: getattr(r, name) for c, r in first.items()} == {c: getattr(r, name) for c, r in again.items()}, (
                name
            )
    table = pq.read_table(file).to_pylist()[0]
    assert table["response_token_length"] == len(table["response"]) and len(table["global_uid"]) == 64
    assert [t["role"] for t in table["trajectory"]] == ["system", "user", "assistant"]
    # Written again from what was read, the file is the same, byte for byte of its rows.
    (second,) = finch_writer.write(tmp_path / "l2", tmp_path / "f2", count=len)
    key = lambda r: r["child_id"]  # noqa: E731
    assert sorted(pq.read_table(second).to_pylist(), key=key) == sorted(pq.read_table(file).to_pylist(), key=key)


TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)


@given(task=TEXT, domain=TEXT, language=st.sampled_from(["python", "cpp", "rust"]), reasoning=st.text(max_size=9),
       child_code=TEXT, role=st.sampled_from(["", "train", "heldout"]), number=st.integers(0, 2**40))  # fmt: skip
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_row_comes_back(tmp_path_factory, task, domain, language, reasoning, child_code, role, number):
    tmp_path = tmp_path_factory.mktemp("finch")
    reply = f"```{language}\n{child_code}\n```"
    row = Transition(
        id="", run="r", scaffold="openevolve", scaffold_release="0.4.1", task=task, domain=domain, suite_role=role,
        iteration=number, island=2, generation=3, parent_id="p", child_id="c", language=language, parent_code="x = 0",
        child_code=child_code, parent_metrics='{"combined_score":1}', child_metrics='{"combined_score":2}',
        parent_artifacts='{"a":"b"}', child_artifacts="{}", prompt_system="s", prompt_user="u", prompt_format="eft@1",
        response=reply, reasoning=reasoning, edit_kind="rewrite", replay="match", model="m", prompt_tokens=5,
        response_tokens=-1, sources="[]", prompt_source="logged", origin_id="o", label="improved",
    )  # fmt: skip
    row = row.replace(id=harvest.transition_id("r", "p", "c"))
    write_transitions(tmp_path / "t.parquet", [row])
    (file,) = finch_writer.write(tmp_path / "t.parquet", tmp_path / "f")
    (again,) = read_back(file, tmp_path / "h")
    storable = reasoning.encode("utf-8", "replace").decode()
    ours = {
        n: getattr(row.replace(reasoning=storable), n) for n in COLUMNS if n not in LABELLED | {"sources", "replay"}
    }
    assert {n: getattr(again, n) for n in ours} == ours
    assert parse_python(child_code) is None or again.replay in ("match", "mismatch")


def test_the_parent_of_a_diff_is_what_the_reply_was_applied_to(tmp_path):
    trace(tmp_path / "run" / "evolution_trace.jsonl", [trace_json(child(1))])
    harvest.run(harvest.Config(runs=[tmp_path / "run"], output=tmp_path / "h"))
    label.run(label.Config(source=tmp_path / "h", output=tmp_path / "l"))
    (row,) = read_back(finch_writer.write(tmp_path / "l", tmp_path / "f")[0], tmp_path / "h2")
    assert row.response == diff(0, 1) and row.replay == "match" and row.edit_kind == "diff"
