"""Tables of scores and costs: every format gives the same table, and whatever is wrong is told with its place."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from eft.errors import EftError
from eft.loops import routing_table as tables

DATA = Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "routing"
MODELS = ("small", "large")


def frame(rows: int = 6) -> pd.DataFrame:
    """A wide table as RouterBench has it."""
    return pd.DataFrame({
        "sample_id": [f"set.{i}" for i in range(rows)],
        "prompt": [f"['Question {i}?', 'Answer \"yes\".']" for i in range(rows)],
        "eval_name": ["arc" if i % 2 else "mbpp" for i in range(rows)],
        "small": [float(i % 2) for i in range(rows)], "large": [1.0] * rows,
        "small|model_response": ["yes"] * rows, "large|model_response": ["no"] * rows,
        "small|total_cost": [1e-5] * rows, "large|total_cost": [1e-3 * (i + 1) for i in range(rows)],
        "oracle_model_to_route_to": ["small"] * rows,
    })  # fmt: skip


def save(data: pd.DataFrame, file: Path) -> Path:
    if file.suffix == ".csv":
        data.to_csv(file, index=False)
    elif file.suffix == ".parquet":
        data.to_parquet(file)
    else:
        data.to_pickle(file)
    return file


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".pkl"])
def test_every_format_gives_the_same_table(tmp_path: Path, suffix: str) -> None:
    table = tables.read(save(frame(), tmp_path / f"bench{suffix}"))
    assert table.models == MODELS and len(table) == 6 and table.priced
    assert table.groups[:2] == ("mbpp", "arc")
    assert table.prompts[0] == 'Question 0?\nAnswer "yes".'  # the turns, not Python's notation of their list
    assert table.scores[:, 0].tolist() == [0, 1, 0, 1, 0, 1]
    assert np.allclose(table.costs[:, 1], 1e-3 * np.arange(1, 7))


def test_a_pickle_with_columns_of_objects_is_read(tmp_path: Path) -> None:
    data = frame().astype(
        {c: object for c in ("sample_id", "prompt", "eval_name")}
    )  # as older releases of pandas wrote
    assert tables.read(save(data, tmp_path / "old.pkl")).models == MODELS


class Evil:
    def __reduce__(self) -> tuple:
        return (Path.touch, (Path(self.target),))


@pytest.mark.parametrize("inside", [False, True])
def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path, inside: bool) -> None:
    evil = Evil()
    evil.target = str(tmp_path / "ran")
    data: object = evil
    if inside:
        table = frame()
        table["prompt"] = pd.Series([evil] * len(table), dtype=object)
        data = table
    file = tmp_path / "evil.pkl"
    file.write_bytes(pickle.dumps(data))
    with pytest.raises(EftError, match="cannot be read") as e:
        tables.read(file)
    assert "no table needs" in str(e.value) and not (tmp_path / "ran").exists()


def set_cell(column: str, row: int, value: object):
    def change(data: pd.DataFrame) -> pd.DataFrame:
        data = data.astype({column: object})
        data.loc[row, column] = value
        return data

    return change


@pytest.mark.parametrize(
    ("change", "what", "place"),
    [
        (set_cell("small", 2, None), "gap", "row 3, column small"),
        (set_cell("large|total_cost", 4, "nan"), "gap", "row 5, column large|total_cost"),
        (set_cell("large|total_cost", 4, "inf"), "gap", "row 5, column large|total_cost"),
        (set_cell("large|total_cost", 0, -0.5), "negative", "row 1, column large|total_cost"),
        (set_cell("small", 0, 1.5), "above 1", "row 1, column small"),
        (set_cell("small", 0, "good"), "no number", "row 1, column small"),
        (set_cell("prompt", 1, ""), "gap", "row 2, column prompt"),
        (set_cell("sample_id", 3, "set.0"), "twice", "row 4, column sample_id"),
        (set_cell("prompt", 3, "['Question 0?', 'Answer \"yes\".']"), "twice", "row 4, column prompt"),
        (lambda d: d.drop(columns="small"), "costs and no scores", "column small|total_cost"),
        (lambda d: d.rename(columns={"small|total_cost": "small|cost"}), "scores and no costs", "column small"),
        (lambda d: d.drop(columns=["prompt"]), "no routing table", "'prompt'"),
        (lambda d: d.drop(columns=["small|total_cost", "large|total_cost"]), "no routing table", "total_cost"),
        (lambda d: d.drop(columns=["small", "small|total_cost"]), "two models", "1"),
        (lambda d: d.iloc[:1], "two rows", "1"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path: Path, change, what: str, place: str) -> None:
    file = save(change(frame()), tmp_path / "bench.csv")
    with pytest.raises(EftError) as e:
        tables.read(file)
    assert what in str(e.value) and place in str(e.value)


def test_columns_that_come_twice_rows_that_are_short_and_unknown_models(tmp_path: Path) -> None:
    file = save(frame(), tmp_path / "bench.csv")
    text = file.read_text().splitlines()
    (tmp_path / "twice.csv").write_text("\n".join([text[0].replace("large,", "small,", 1), *text[1:]]))
    (tmp_path / "short.csv").write_text("\n".join([*text[:3], "only,one"]))
    for name, words in (("twice", "comes twice"), ("short", "row 3")):
        with pytest.raises(EftError, match=words):
            tables.read(tmp_path / f"{name}.csv")
    with pytest.raises(EftError, match="no model 'medium'"):
        tables.read(file, models=["small", "medium"])
    with pytest.raises(EftError, match="named twice"):
        tables.read(file, models=["small", "small"])
    with pytest.raises(EftError, match="costs of its own"):
        tables.read(file, prices={"small": 1.0})
    with pytest.raises(EftError, match="does not exist"):
        tables.read(tmp_path / "none.csv")
    (tmp_path / "bench.txt").write_text("")
    with pytest.raises(EftError, match="no routing table"):
        tables.read(tmp_path / "bench.txt")
    (tmp_path / "torn.parquet").write_bytes(b"PAR1")
    (tmp_path / "torn.pkl").write_bytes(b"\x80")
    for name in ("torn.parquet", "torn.pkl"):
        with pytest.raises(EftError, match="cannot be read"):
            tables.read(tmp_path / name)


def router_rows() -> list[dict]:
    return [{"question": f"What is {i} + {i}?", "scores": {"a": i / 4, "b": 1.0}} for i in range(4)]


def test_a_table_of_llmrouter_and_its_estimated_costs(tmp_path: Path) -> None:
    file = tmp_path / "router.json"
    file.write_text(json.dumps(router_rows()))
    table = tables.read(file)
    assert table.models == ("a", "b") and not table.priced and not table.costs.any()
    table = tables.read(file, prices={"a": 1.0, "b": 10.0})
    assert table.priced and np.allclose(table.costs[:, 1], 10 * table.costs[:, 0])
    assert table.costs[0, 0] == pytest.approx(len("What is 0 + 0?") / 4 / 1e6)
    for prices, words in (({"a": 1.0}, "no price for 'b'"), ({"a": -1.0, "b": 1.0}, "negative"),
                          ({"c": 1.0}, "no model 'c'")):  # fmt: skip
        with pytest.raises(EftError, match=words):
            tables.read(file, prices=prices)


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda rows: rows[2]["scores"].pop("b"), "row 3, column b"),
        (lambda rows: rows[1]["scores"].update(c=1.0), "row 2, column c"),
        (lambda rows: rows[1]["scores"].update(a=None), "row 2, column a"),
        (lambda rows: rows[1].pop("question"), "row 2, column question"),
        (lambda rows: rows[3].update(question="What is 0 + 0?"), "row 4, column question"),
        (lambda rows: rows.insert(1, 5), "row 2"),
    ],
)
def test_a_broken_table_of_llmrouter(tmp_path: Path, break_it, words: str) -> None:
    rows = router_rows()
    break_it(rows)
    (tmp_path / "router.json").write_text(json.dumps(rows))
    with pytest.raises(EftError, match=words):
        tables.read(tmp_path / "router.json")


def test_a_model_with_two_scores_and_a_question_that_is_no_text(tmp_path: Path) -> None:
    text = json.dumps(router_rows())
    for old, new, words in (('"a": ', '"b": 0, "a": ', "'b' comes twice"), ('"What is 0', '"\\ud800 is 0', "surrogates")):
        assert old in text
        (tmp_path / "router.json").write_text(text.replace(old, new, 1))
        with pytest.raises(EftError, match=words):
            tables.read(tmp_path / "router.json")


def test_the_public_tables(tmp_path: Path) -> None:
    if not DATA.is_dir():
        pytest.skip(f"the public routing tables are not here: {DATA} is missing")
    table = tables.read(DATA / "frontier_cs_llm_router_365.csv")
    assert table.scores.shape == (365, 11) and len(set(table.groups)) == 61
    assert table.scores.max(axis=1).mean() == pytest.approx(0.899, abs=0.001)  # what the oracle can get right
    other = tables.read(DATA / "llmrouter_dcrouter_test.json")
    assert other.scores.shape == (500, 9) and other.scores.max(axis=1).mean() == pytest.approx(0.743, abs=0.002)
