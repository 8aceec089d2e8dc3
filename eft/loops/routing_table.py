"""Tables of what models answered: a score and a cost for every prompt and model, read from the formats of public data.

    routerbench   RouterBench's wide table (withmartian/routerbench; Frontier-CS's reference_data.csv is one): columns
                  sample_id, prompt, eval_name, MODEL (score in [0, 1]) and MODEL|total_cost (dollars); as csv, parquet
                  or pickle. MODEL|model_response and oracle_model_to_route_to are not needed
    llmrouter     LLMRouter's JSON (ulab-uiuc/LLMRouter): [{question, scores: {MODEL: score}}], without costs: they are
                  estimated from `prices`, or are 0

Everything is checked before anything is used, and the first thing that is wrong is told with its row and column: gaps,
not-a-number, scores outside [0, 1], negative costs, prompts or ids that come twice, models that are not there. A pickle
is read by an unpickler that knows the classes of a pandas table and no others: it cannot run code.
"""

from __future__ import annotations

import ast
import csv
import hashlib
import io
import json
import math
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from eft.errors import EftError, UsageError, nearest

COST = "|total_cost"
SHIPPED = Path(__file__).parent / "tables"
_NOT_MODELS = {"sample_id", "prompt", "eval_name", "oracle_model_to_route_to"}
CHARACTERS_PER_TOKEN = 4  # for costs that are estimated from prices
_PICKLED = {
    ("builtins", "slice"), ("copyreg", "_reconstructor"), ("builtins", "object"),
    ("pandas", "DataFrame"), ("pandas.core.frame", "DataFrame"), ("pandas.core.internals.managers", "BlockManager"),
    ("pandas._libs.internals", "_unpickle_block"), ("pandas.core.indexes.base", "_new_Index"),
    ("pandas.core.indexes.base", "Index"), ("pandas", "Index"), ("pandas.core.indexes.range", "RangeIndex"),
    ("pandas", "RangeIndex"), ("pandas", "StringDtype"), ("pandas.core.arrays.string_", "StringDtype"),
    ("pandas", "_new_Index"), ("pandas.core.arrays.string_", "StringArray"), ("pandas.arrays", "StringArray"),
    ("pandas._libs.arrays", "__pyx_unpickle_NDArrayBacked"), ("pandas.core.arrays.string_arrow", "ArrowStringArray"),
    ("pandas.arrays", "ArrowStringArray"), ("pyarrow.lib", "type_for_alias"), ("pyarrow.lib", "chunked_array"),
    ("pyarrow.lib", "_restore_array"), ("pyarrow.lib", "py_buffer"), ("pyarrow.lib", "large_string"),
    ("numpy", "ndarray"), ("numpy", "dtype"), ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"), ("numpy.core.multiarray", "scalar"),
    ("numpy._core.multiarray", "scalar"), ("numpy.core.numeric", "_frombuffer"),
    ("numpy._core.numeric", "_frombuffer"),
}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """`scores` and `costs`: (rows, models), scores in [0, 1], costs in dollars. `groups`: the data set of each row, ""
    where the table does not say. `priced`: are the costs measured or estimated (else they are all 0)?"""

    name: str
    models: tuple[str, ...]
    ids: tuple[str, ...]
    prompts: tuple[str, ...]
    groups: tuple[str, ...]
    scores: np.ndarray
    costs: np.ndarray
    priced: bool = True

    def __len__(self) -> int:
        return len(self.ids)

    def only(self, models: Sequence[str]) -> Table:
        """The table of these models, in this order. Raises UsageError for one that it does not have."""
        for m in models:
            if m not in self.models:
                raise UsageError(f"the table has no model '{m}'", where=self.name, way_out=nearest(m, self.models))
        if len(set(models)) != len(models):
            raise UsageError("a model is named twice", where=self.name, why=", ".join(models))
        columns = [self.models.index(m) for m in models]
        return replace(self, models=tuple(models), scores=self.scores[:, columns], costs=self.costs[:, columns])

    def rows(self, chosen: Sequence[int] | np.ndarray) -> Table:
        """The table of these rows."""
        chosen = np.asarray(chosen, dtype=int)
        ids, prompts, groups = (tuple(v[i] for i in chosen) for v in (self.ids, self.prompts, self.groups))
        return replace(self, ids=ids, prompts=prompts, groups=groups, scores=self.scores[chosen],
                       costs=self.costs[chosen])  # fmt: skip


def locate(table: Path, root: Path) -> Path:
    """The file of a table: a path (relative to `root`), or shipped:NAME for one that comes with this package (by
    benchmarks/mutator_table.py). Raises UsageError for a name that is not shipped."""
    name = str(table).removeprefix("shipped:")
    if name == str(table):
        return root / table.expanduser()
    files = {f.stem: f for f in sorted(SHIPPED.glob("*.csv"))}
    if name not in files:
        raise UsageError(f"no routing table '{name}' is shipped", way_out=nearest(name, files))
    return files[name]


def read(file: Path, *, models: Sequence[str] = (), prices: Mapping[str, float] | None = None) -> Table:
    """The table in `file`, by its suffix (.csv, .parquet, .pkl, .pickle; .json is LLMRouter's), of `models` (all).

    prices: dollars for a million tokens of a prompt, by model, where the file has no costs; a token is taken for
    4 characters, and the reply is not counted.
    Raises UsageError where the file cannot be read or asks for what it has not, EftError for a table that is wrong.
    """
    if not file.is_file():
        raise UsageError("the routing table does not exist", where=file)
    readers = {".csv": _csv, ".parquet": _parquet, ".pkl": _pickle, ".pickle": _pickle, ".json": None}
    suffix = file.suffix.lower()
    if suffix not in readers:
        raise UsageError("this is no routing table", where=file, why=f"its name ends in '{suffix}'",
                         way_out=f"give {', '.join(readers)}")  # fmt: skip
    try:
        if suffix == ".json":
            table = _llmrouter(file, prices or {})
        else:
            table = _wide(file, *readers[suffix](file))
    except (OSError, UnicodeDecodeError, csv.Error) as e:
        raise UsageError("the routing table cannot be read", where=file, why=str(e)) from None
    if prices and table.priced and suffix != ".json":
        raise UsageError("this table has costs of its own", where=file, way_out="leave `prices` out")
    table = table.only(models) if models else table
    if len(table.models) < 2:
        raise UsageError("a routing table needs at least two models", where=file, why=f"it has {len(table.models)}")
    if len(table) < 2:
        raise UsageError("a routing table needs at least two rows", where=file, why=f"it has {len(table)}")
    return table


# ---- the wide table ----------------------------------------------------------------------------------------------


def _csv(file: Path) -> tuple[list[str], list[list[Any]]]:
    csv.field_size_limit(1 << 24)
    with open(file, encoding="utf-8", newline="") as f:
        rows = list(csv.reader(f))
    if not rows:
        raise EftError("the routing table is empty", where=file)
    for number, row in enumerate(rows[1:], 1):
        if len(row) != len(rows[0]):
            raise EftError("a row of the routing table is no row", where=f"{file}, row {number}",
                           why=f"it has {len(row)} columns, the head {len(rows[0])}")  # fmt: skip
    return rows[0], rows[1:]


def _parquet(file: Path) -> tuple[list[str], list[list[Any]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        names = pq.read_schema(file).names
        wanted = [n for n in names if not n.endswith("|model_response")]
        data = pq.read_table(file, columns=wanted).to_pydict()
    except pa.ArrowException as e:
        raise UsageError("the routing table cannot be read", where=file, why=str(e)) from None
    return wanted, [list(row) for row in zip(*data.values(), strict=True)]


class _Restricted(pickle.Unpickler):
    """Knows the parts of a pandas table. A pickle is a program: anything else in it is refused."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _PICKLED:
            raise pickle.UnpicklingError(f"it holds {module}.{name}, which no table needs")
        return super().find_class(module, name)


def _pickle(file: Path) -> tuple[list[str], list[list[Any]]]:
    import pandas as pd

    try:
        frame = _Restricted(io.BytesIO(file.read_bytes())).load()
    except OSError:
        raise
    except Exception as e:  # a damaged pickle raises whatever it likes
        raise UsageError("the routing table cannot be read", where=file, why=str(e),
                         way_out="save it as csv or parquet") from None  # fmt: skip
    if not isinstance(frame, pd.DataFrame):
        raise UsageError("this pickle holds no table", where=file, why=f"it holds a {type(frame).__name__}")
    return [str(c) for c in frame.columns], frame.to_numpy(dtype=object).tolist()


def _wide(file: Path, head: list[str], rows: list[list[Any]]) -> Table:
    """A checked table from the columns of RouterBench."""
    twice = next((c for i, c in enumerate(head) if c in head[:i]), None)
    if twice is not None:
        raise EftError("a column of the routing table comes twice", where=file, why=twice)
    place = {name: i for i, name in enumerate(head)}
    if "prompt" not in place:
        raise EftError("this is no routing table", where=file, why="it has no column 'prompt'")
    models = [c for c in head if c not in _NOT_MODELS and "|" not in c and c + COST in place]
    orphans = [c for c in head if c.endswith(COST) and c.removesuffix(COST) not in place]
    if orphans:
        raise EftError("a model has costs and no scores", where=f"{file}, column {orphans[0]}",
                       why=f"there is no column '{orphans[0].removesuffix(COST)}'")  # fmt: skip
    free = [c for c in head if "|" not in c and c + COST not in place and any(h.startswith(c + "|") for h in head)]
    if free and models:
        raise EftError("a model has scores and no costs", where=f"{file}, column {free[0]}",
                       why=f"there is no column '{free[0] + COST}'")  # fmt: skip
    if not models:
        raise EftError("this is no routing table", where=file, why=f"no column MODEL has a column MODEL{COST}")
    ids, prompts, groups = [], [], []
    for number, row in enumerate(rows, 1):
        ids.append(_text(file, number, "sample_id", row[place["sample_id"]]) if "sample_id" in place else str(number))
        prompts.append(plain(_text(file, number, "prompt", row[place["prompt"]])))
        groups.append(_text(file, number, "eval_name", row[place["eval_name"]]) if "eval_name" in place else "")
    _once(file, "sample_id", ids)
    _once(file, "prompt", prompts)

    def column(name: str, low: float, high: float) -> list[float]:
        return [_number(file, n, name, row[place[name]], low, high) for n, row in enumerate(rows, 1)]

    scores = np.array([column(m, 0.0, 1.0) for m in models]).T.reshape(len(rows), len(models))
    costs = np.array([column(m + COST, 0.0, math.inf) for m in models]).T.reshape(len(rows), len(models))
    return Table(file.stem, tuple(models), tuple(ids), tuple(prompts), tuple(groups), scores, costs)


def family(group: str) -> str:
    """The head of a data set's name, up to its first - or _: mmlu-anatomy and mmlu-virology are one family."""
    return group.replace("_", "-").split("-")[0]


def plain(prompt: str) -> str:
    """The prompt as a model saw it: RouterBench writes the turns of a prompt as a Python list of texts."""
    if not (prompt.startswith("[") and prompt.rstrip().endswith("]")):
        return prompt
    try:
        turns = ast.literal_eval(prompt)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return prompt
    if isinstance(turns, list) and turns and all(isinstance(t, str) for t in turns):
        return "\n".join(turns)
    return prompt


# ---- LLMRouter's JSON --------------------------------------------------------------------------------------------


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. Raises ValueError where a key comes twice: one of its values would be lost."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [k for k, _ in pairs]
        raise ValueError(f"the key '{next(k for k in names if names.count(k) > 1)}' comes twice: {json.dumps(found)[:120]}")
    return found


def _llmrouter(file: Path, prices: Mapping[str, float]) -> Table:
    try:
        rows = json.loads(file.read_text(encoding="utf-8"), object_pairs_hook=_once_each)
        json.dumps(rows, ensure_ascii=False).encode()  # half of a pair of surrogates is no text
    except (ValueError, RecursionError) as e:
        raise UsageError("the routing table cannot be read", where=file, why=str(e)) from None
    if not isinstance(rows, list) or not rows or not isinstance(rows[0], dict):
        raise EftError("this is no table of LLMRouter", where=file, why="it must be a list of {question, scores}")
    models: list[str] = []
    prompts, groups, values = [], [], []
    for number, row in enumerate(rows, 1):
        told = row.get("scores") if isinstance(row, dict) else None
        if not isinstance(told, dict) or not told:
            raise EftError("a row of the routing table is no row", where=f"{file}, row {number}",
                           why="it has no 'scores', an object of model: score")  # fmt: skip
        models = models or sorted(told)
        unknown, absent = sorted(set(told) - set(models)), [m for m in models if m not in told]
        if unknown or absent:
            why = f"the model is in no earlier row: {unknown[0]}" if unknown else "there is no score"
            raise EftError("the routing table is not whole", why=why,
                           where=f"{file}, row {number}, column {(unknown or absent)[0]}")  # fmt: skip
        prompts.append(_text(file, number, "question", row.get("question")))
        groups.append(str(row.get("task_name") or row.get("eval_name") or ""))
        values.append([_number(file, number, m, told[m], 0.0, 1.0) for m in models])
    _once(file, "question", prompts)
    for m, price in prices.items():
        if m not in models:
            raise UsageError(f"the table has no model '{m}' that `prices` speak of", where=file,
                             way_out=nearest(m, models))  # fmt: skip
        if not (math.isfinite(price) and price >= 0):
            raise UsageError(f"the price of '{m}' must not be negative", where=file, why=str(price))
    lacking = [m for m in models if m not in prices]
    if prices and lacking:
        raise UsageError(f"there is no price for '{lacking[0]}'", where=file, way_out="give one for every model")
    tokens = np.array([len(p) / CHARACTERS_PER_TOKEN for p in prompts])
    dollars = np.array([prices.get(m, 0.0) for m in models]) / 1e6
    ids = tuple(hashlib.sha256(p.encode("utf-8", "surrogatepass")).hexdigest()[:12] for p in prompts)
    return Table(file.stem, tuple(models), ids, tuple(prompts), tuple(groups), np.array(values),
                 np.outer(tokens, dollars), priced=bool(prices))  # fmt: skip


# ---- single cells ------------------------------------------------------------------------------------------------


def _text(file: Path, row: int, column: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        why = "it is empty" if value is None or isinstance(value, str | float) else f"it is a {type(value).__name__}"
        raise EftError("the routing table has a gap", where=f"{file}, row {row}, column {column}", why=why)
    return value


def _number(file: Path, row: int, column: str, value: Any, low: float, high: float) -> float:
    """`value` as a finite number within [low, high]."""
    where = f"{file}, row {row}, column {column}"
    if value is None or (isinstance(value, str) and not value.strip()):
        raise EftError("the routing table has a gap", where=where, why="it is empty")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise EftError("the routing table has something that is no number", where=where, why=str(value)[:80]) from None
    if not math.isfinite(number):
        raise EftError("the routing table has a gap", where=where, why=f"it is {number}")
    if number < low:
        raise EftError("the routing table has a negative number", where=where, why=f"{number:g}")
    if number > high:
        raise EftError("the routing table has a score above 1", where=where, why=f"{number:g}")
    return number


def _once(file: Path, column: str, values: Sequence[str]) -> None:
    first: dict[str, int] = {}
    for number, value in enumerate(values, 1):
        if value in first:
            raise EftError("the routing table has a row twice", where=f"{file}, row {number}, column {column}",
                           why=f"row {first[value]} has the same")  # fmt: skip
        first[value] = number
