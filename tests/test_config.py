"""Configuration: precedence, and errors that name the nearest valid key."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eft import config as configs
from eft.errors import UsageError


class Inner(configs.Section):
    depth: int = 1
    name: str = "x"


class Config(configs.StageConfig):
    rows: int = 3
    inner: Inner = Inner()
    tags: list[str] = []


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    return file


def test_precedence_defaults_file_set_flags(tmp_path: Path) -> None:
    file = write(tmp_path, "rows: 10\ninner: {depth: 2}\n")
    assert configs.load(Config, file).rows == 10
    assert configs.load(Config, file, ("rows=20", "inner.name=y")).inner == Inner(depth=2, name="y")
    assert configs.load(Config, file, ("rows=20",), {"rows": 30, "tags": None}).rows == 30


def test_a_section_named_by_the_verb_is_used_and_shares_the_root(tmp_path: Path) -> None:
    file = write(tmp_path, "root: /r\nharvest: {rows: 7}\nlabel: {rows: 8}\n")
    config = configs.load(Config, file, section="label")
    assert (config.rows, config.root) == (8, Path("/r"))


@pytest.mark.parametrize(
    "text, sets, words",
    [
        ("rosw: 1", (), "did you mean 'rows'?"),
        ("inner: {dept: 1}", (), "did you mean 'depth'?"),
        ("rows: many", (), "'rows'"),
        ("- 1", (), "must hold a mapping"),
        ("a: [", (), "not valid YAML"),
        ("", ("rows",), "--set takes"),
        ("", ("rows.a=1",), "'rows'"),
        ("rows: 1", ("rows.a=1",), "'rows' is a value, not a section"),
    ],
)
def test_bad_input_names_what_and_the_way_out(tmp_path: Path, text: str, sets: tuple[str, ...], words: str) -> None:
    with pytest.raises(UsageError, match="(?s).*") as e:
        configs.load(Config, write(tmp_path, text), sets)
    assert words in str(e.value)


def test_a_missing_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        configs.load(Config, tmp_path / "no.yaml")


@given(st.integers(), st.text(st.characters(exclude_categories=["Cs"])), st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_dump_reads_back_equal(rows: int, name: str, tags: list[str]) -> None:
    import yaml

    config = Config(rows=rows, inner=Inner(name=name), tags=tags)
    assert configs.make(Config, yaml.safe_load(configs.dump(config))) == config
