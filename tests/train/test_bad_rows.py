"""Tables as other tools or a torn disk leave them: one message, before the model is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import training
import training_rows

from eft import config as configs
from eft.errors import EftError
from eft.train import kto, sft

pytestmark = pytest.mark.integration
MODULES: dict[str, Any] = {"sft": sft, "kto": kto}


def foresee(root: Path, verb: str, **changes: Any) -> Any:
    """The dry run, which reads the rows as a training does."""
    return MODULES[verb].dry_run(configs.load(MODULES[verb].Config, training.recipe(root, verb, **changes)))


def table(root: Path, verb: str, split: str = "train", **changes: Any) -> None:
    """ROOT/bad: eight rows, `changes` in the fourth; a value of type tuple is that of all rows."""
    rows = [training_rows.row(i, i % 2 == 0 or verb == "sft") for i in range(8)]
    for name, value in changes.items():
        for row in rows if isinstance(value, tuple) else rows[3:4]:
            row[name] = value[0] if isinstance(value, tuple) else value
    if verb == "sft":
        rows = [{**row, "label": "improved"} for row in rows]
    pq.write_table(pa.Table.from_pylist(rows), root / "bad" / f"{split}.parquet")


ANSWER = {"role": "assistant", "content": None}


@pytest.mark.parametrize(
    "verb, changes",
    [
        ("sft", {"prompt": None}),
        ("sft", {"prompt": []}),
        ("sft", {"completion": None}),
        ("sft", {"completion": []}),
        ("sft", {"completion": [ANSWER]}),
        ("sft", {"prompt": [{"role": "user", "content": None}]}),
        ("sft", {"prompt": [{"role": None, "content": "x"}]}),
        ("sft", {"prompt": ("text",)}),
        ("sft", {"completion": ("text",)}),
        ("sft", {"completion": (["text"],)}),
        ("sft", {"prompt": (["text"],)}),
        ("sft", {"completion": ([{"role": "assistant", "text": "x"}],)}),
        ("kto", {"label": None}),
        ("kto", {"prompt": None}),
    ],
)
def test_rows_that_are_no_conversations(verb: str, changes: dict[str, Any], root: Path) -> None:
    (root / "bad").mkdir()
    table(root, verb, **changes)
    with pytest.raises(EftError) as e:
        foresee(root, verb, dataset="bad")
    assert "bad/train.parquet" in str(e.value)


@pytest.mark.parametrize("changes", [{"id": (7,)}, {"task": (7,)}, {"task": None}, {"id": ("same",)}, {"domain": None}])
def test_names_of_another_kind(changes: dict[str, Any], root: Path) -> None:
    (root / "bad").mkdir()
    for verb in ("sft", "kto"):
        table(root, verb, **changes)
        foresee(root, verb, dataset="bad")


@pytest.mark.parametrize("verb", ["sft", "kto"])
def test_tables_without_rows(verb: str, root: Path) -> None:
    (root / "bad").mkdir()
    table(root, verb)
    table(root, verb, "validation")
    file = root / "bad" / "validation.parquet"
    pq.write_table(pq.read_table(file)[:0], file)
    assert foresee(root, verb, dataset="bad")[1]["rows"] == 8
    file = root / "bad" / "train.parquet"
    pq.write_table(pq.read_table(file)[:0], file)
    with pytest.raises(EftError, match="there is nothing to train on|row is left to train on|no desirable row"):
        foresee(root, verb, dataset="bad")
    file.write_bytes(b"PAR1" + bytes(100))
    with pytest.raises(EftError, match="this is not a Parquet file"):
        foresee(root, verb, dataset="bad")
