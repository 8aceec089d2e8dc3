"""Manifests: atomic writes, the up-to-date rule, and what a full or forbidden disk says."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from eft import manifest
from eft.errors import EftError


def finish(out: Path, inputs: list[Path], config: dict | None = None, text: str = "rows") -> None:
    manifest.write_text(out / "rows.txt", text)
    manifest.write(out, "label", config or {"eps": 0, "root": ".", "output": "o"}, inputs, [out / "rows.txt"], {"rows": 1}, time.time())


def test_up_to_date_until_an_input_the_config_or_an_output_changes(tmp_path: Path) -> None:
    source, out = tmp_path / "in.txt", tmp_path / "out"
    source.write_text("a")
    config = {"eps": 0, "root": ".", "output": "o"}
    assert not manifest.up_to_date(out, "label", config, [source])
    finish(out, [source])
    assert manifest.up_to_date(out, "label", config, [source])
    assert manifest.up_to_date(out, "label", {**config, "root": "elsewhere"}, [source]), "where it lies does not matter"
    assert not manifest.up_to_date(out, "label", {**config, "eps": 1}, [source])
    assert not manifest.up_to_date(out, "clean", config, [source])
    source.write_text("b")
    assert not manifest.up_to_date(out, "label", config, [source])
    source.write_text("a")
    (out / "rows.txt").write_text("torn")
    (out / "rows.txt").write_text("to")
    assert not manifest.up_to_date(out, "label", config, [source])


def test_a_finished_stage_is_identified_by_what_it_wrote(tmp_path: Path) -> None:
    out = tmp_path / "out"
    finish(out, [])
    before = manifest.fingerprint(out)
    os.utime(out / "rows.txt", (1, 1))
    assert manifest.fingerprint(out) == before
    finish(out, [], text="other")
    assert manifest.fingerprint(out) != before


def test_a_torn_manifest_counts_as_unfinished(tmp_path: Path) -> None:
    finish(tmp_path / "out", [])
    file = tmp_path / "out" / manifest.NAME
    file.write_text(file.read_text()[:40])
    assert manifest.read(tmp_path / "out") is None
    with pytest.raises(EftError, match="did not finish"):
        manifest.require(tmp_path / "out", "label")


def test_an_interrupted_write_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    file = tmp_path / "f.txt"
    manifest.write_text(file, "old")
    with pytest.raises(RuntimeError), manifest.atomic_file(file) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert file.read_text() == "old" and list(tmp_path.iterdir()) == [file]


def test_building_swaps_in_whole_or_not_at_all(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with manifest.building(out) as aside:
        (aside / "a").write_text("1")
    with pytest.raises(RuntimeError), manifest.building(out) as aside:
        (aside / "b").write_text("2")
        raise RuntimeError
    assert [p.name for p in out.iterdir()] == ["a"] and [p.name for p in tmp_path.iterdir()] == ["out"]
    with manifest.building(out) as aside:
        (aside / "c").write_text("3")
    assert [p.name for p in out.iterdir()] == ["c"] and [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("code, words", [(errno.ENOSPC, "the disk is full"), (errno.EROFS, "cannot be written")])
def test_disk_errors_are_one_clear_message(tmp_path: Path, code: int, words: str) -> None:
    with pytest.raises(EftError, match=words), manifest.clear_disk_errors(tmp_path):
        raise OSError(code, os.strerror(code))


def test_a_file_where_a_folder_must_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("mine")
    for out in (tmp_path / "f" / "x", tmp_path / "f" / "deeper" / "x"):
        with pytest.raises(EftError, match="a file is in the way"):
            manifest.write_text(out, "new")
        with pytest.raises(EftError, match="a file is in the way"), manifest.building(out):
            pass
    assert (tmp_path / "f").read_text() == "mine"


def test_json_refuses_nan(tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        manifest.write_json(tmp_path / "x.json", {"a": float("nan")})
    assert not list(tmp_path.iterdir())
