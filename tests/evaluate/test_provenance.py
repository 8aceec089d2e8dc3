"""From a model back to the domains of what it was trained on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow
import pyarrow.parquet as parquet

from eft import manifest
from eft.evaluate.provenance import training_domains


def training_set(folder: Path, domains: list[str]) -> Path:
    folder.mkdir(parents=True)
    parquet.write_table(pyarrow.table({"domain": domains, "id": [str(i) for i in range(len(domains))]}),
                        folder / "train.parquet")  # fmt: skip
    return folder / "train.parquet"


def stage(out: Path, name: str, inputs: list[Path], root: Path) -> Path:
    out.mkdir(parents=True)
    (out / "x").write_text("x")
    manifest.write(out, name, {"root": str(root)}, inputs, [out / "x"], {}, 0.0)
    return out


def recipe(root: Path) -> Path:
    sft = stage(root / "sft", "sft", [training_set(root / "build" / "sft", ["routing", "packing", "routing"])], root)
    kto = stage(root / "kto", "kto", [training_set(root / "build" / "kto", ["control", ""]), sft], root)
    (kto / "final").mkdir()
    return stage(root / "export", "export", [kto], root)


def test_export_training_and_checkpoint_lead_to_all_sets(tmp_path):
    export = recipe(tmp_path / "out")
    assert training_domains(export) == training_domains(export.parent / "kto" / "final") == (
        "control", "packing", "routing")  # fmt: skip
    assert training_domains(export.parent / "sft") == ("packing", "routing")


def test_a_recipe_that_was_moved_as_a_whole(tmp_path):
    export = recipe(tmp_path / "out")
    shutil.move(export.parent, tmp_path / "elsewhere")
    assert training_domains(tmp_path / "elsewhere" / "export") == ("control", "packing", "routing")


def test_what_is_not_known_is_nothing(tmp_path):
    assert training_domains(tmp_path) == () == training_domains(tmp_path / "no such")
    export = recipe(tmp_path / "out")
    (tmp_path / "out" / "build" / "kto" / "train.parquet").write_bytes(b"torn")
    assert training_domains(export) == ("packing", "routing")
    (export / "manifest.json").write_text("{torn")
    assert training_domains(export) == ()
