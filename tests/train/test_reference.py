"""Stored reference log-probabilities: keyed by content, whole after a kill, the right ones on any number of ranks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eft.errors import EftError
from eft.train import reference

WHAT = {"weights": "abc", "dtype": "torch.float32"}
ids = st.lists(st.integers(0, 200_000), min_size=1, max_size=6)


def store(folder: Path, **changes: str) -> reference.Store:
    return reference.Store(folder / ".reference", folder / "spare", {**WHAT, **changes})


@given(ids, ids, ids, ids)
def test_keys_tell_rows_apart(a: list[int], b: list[int], c: list[int], d: list[int]) -> None:
    assert (reference.row_key(a, b) == reference.row_key(c, d)) == ((a, b) == (c, d))


def test_the_border_between_prompt_and_completion_counts() -> None:
    assert reference.row_key([1, 2], [3]) != reference.row_key([1], [2, 3])


def test_what_one_training_writes_another_reads(tmp_path: Path) -> None:
    one = store(tmp_path)
    one.add([b"a" * 16, b"b" * 16], [-1.5, -0.1], write=True)
    one.flush()
    two = store(tmp_path)
    assert two.read() == 2 and two.digest([b"a" * 16]) == one.digest([b"a" * 16]) != one.digest([b"b" * 16])
    assert store(tmp_path, dtype="torch.bfloat16").read() == 0, "another dtype is another reference"
    assert json.loads((one.folder / "model.json").read_text()) == WHAT


def test_ranks_that_only_read_write_nothing_and_torn_parts_are_passed_over(tmp_path: Path) -> None:
    reader = store(tmp_path)
    reader.add([b"a" * 16], [-1.0], write=False)
    reader.flush()
    assert not reader.folder.exists() and reader.values == {b"a" * 16: -1.0}
    writer = store(tmp_path)
    writer.add([b"a" * 16], [-1.0], write=True)
    writer.flush()
    (writer.folder / "torn.parquet").write_bytes(b"PAR1 torn")
    assert store(tmp_path).read() == 1
    writer.forget(write=True)
    assert not writer.values and store(tmp_path).read() == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_read_only_data_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o555)
    found = reference.Store(tmp_path / "data" / ".reference", tmp_path / "out", WHAT)
    assert found.folder.parent == tmp_path / "out"


def test_a_file_in_the_way_is_as_read_only(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    found = reference.Store(tmp_path / "data" / ".reference", tmp_path / "out", WHAT)
    assert found.folder.parent == tmp_path / "out"


def test_the_weights_decide(tmp_path: Path) -> None:
    for name, content in (("a", b"1"), ("b", b"1"), ("c", b"2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(content)
        (tmp_path / name / "config.json").write_text("{}")
    hashes = [reference.weights_hash(str(tmp_path / name)) for name in "abc"]
    assert hashes[0] == hashes[1] != hashes[2]
    (tmp_path / "a" / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(tmp_path / "c")}))
    on_c = reference.weights_hash(str(tmp_path / "a"))
    (tmp_path / "c" / "model.safetensors").write_bytes(b"3")
    assert reference.weights_hash(str(tmp_path / "a")) != on_c, "an adapter is its base, too"
    assert reference.weights_hash("random:qwen3") != reference.weights_hash("random:llama")


def test_a_resumed_training_needs_the_values_that_it_began_with(tmp_path: Path) -> None:
    one, note = store(tmp_path), tmp_path / reference.NOTE
    keys = [b"a" * 16, b"b" * 16]
    one.add(keys, [-1.0, -2.0], write=True)
    reference.verify(one, keys, note, resumed=False, write=True)
    reference.verify(one, keys, note, resumed=True, write=True)
    one.add(keys, [-1.0, -2.1], write=True)
    with pytest.raises(EftError, match="not those that this training began with"):
        reference.verify(one, keys, note, resumed=True, write=True)
    note.write_text("torn")
    with pytest.raises(EftError, match="began with"):
        reference.verify(one, keys, note, resumed=True, write=True)


def test_blocks_are_the_micro_batches() -> None:
    from datasets import Dataset

    table = Dataset.from_dict(
        {"label": [True, False] * 2, "prompt_ids": [[1], [2], [3], [4]], "completion_ids": [[i, 1] for i in (1, 2, 3, 4)]}
    )
    assert reference.rows(table, 2, 2) == [
        {"label": True, "prompt_ids": [3], "completion_ids": [3, 1]},
        {"label": False, "prompt_ids": [4], "completion_ids": [4, 1]},
    ]
    found = list(reference.blocks(table, 2))
    assert [start for start, _ in found] == [0, 2]
    whole = [reference.row_key(r["prompt_ids"], r["completion_ids"]) for r in reference.rows(table, 0, 4)]
    assert [reference.row_key(r["prompt_ids"], r["completion_ids"]) for _, block in found for r in block] == whole


@pytest.mark.integration
def test_full_weights_without_the_store_cannot_go_on(here, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resumed, the model is no longer the reference: where the values are gone, or others, training does not go on."""
    import shutil

    import training_rows

    from eft.train import loop

    (root / "build").unlink()
    training_rows.sets(root, 16)
    runs = []

    def stop(run, *_) -> None:
        runs.append(run)
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "finish", stop)
    with pytest.raises(KeyboardInterrupt):
        here("kto", steps=2)
    runs[0].lock.close()
    (place,) = (root / "build/kto/.reference").iterdir()
    shutil.rmtree(place)
    with pytest.raises(EftError, match="are gone"):
        here("kto", steps=2)


@pytest.mark.integration
def test_what_is_not_this_models_is_computed_again(here, root: Path, capfd) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq
    import training_rows

    (root / "build").unlink()
    training_rows.sets(root, 16)
    one = here("kto", steps=2, output="one")
    for part in (root / "build/kto/.reference").rglob("*.parquet"):
        table = pq.read_table(part)
        wrong = pa.array([v + 3 for v in table["log_prob"].to_pylist()], pa.float32())
        pq.write_table(pa.table({"key": table["key"], "log_prob": wrong}), part)
    two = here("kto", steps=2, output="two")
    assert "not this model's" in capfd.readouterr().err and two.losses == one.losses


@pytest.mark.multirank
@pytest.mark.integration
@pytest.mark.parametrize("name", ["cpu_ddp", "cpu_zero2", "cpu_zero3"])
@pytest.mark.parametrize("out", ["kto", "kto_lora"])
def test_the_first_loss_is_right_on_two_ranks(launched: dict[str, Path], name: str, out: str) -> None:
    """kto_lora: adapters, bf16 and DeepSpeed, where TRL's own precomputed reference is off."""
    from eft import manifest
    from eft.train.callbacks import read_journal

    lines = [x for x in read_journal(launched[name] / out) if "loss" in x]
    first = SimpleNamespace(**{k.replace("/", "_"): v for k, v in lines[0].items()})
    assert first.desirable + first.undesirable == 8
    assert first.loss == pytest.approx((first.desirable + 1.2 * first.undesirable) / 16, abs=1e-6)
    assert abs(first.kl) < 1e-6 and abs(first.rewards_chosen) < 1e-6 and abs(first.rewards_rejected) < 1e-6
    counts = manifest.require(launched[name] / out, "kto")["counts"]
    assert counts["kl_from_prompts"] and counts["reference_computed"] > 0
    assert any(abs(x["rewards/margins"]) > 1e-5 for x in lines[1:]), "and then it moves"
