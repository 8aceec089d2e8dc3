"""From the tables of `eft build` to what is trained in every step.

Contract: `dataset/{train,validation}.parquet` with columns id, task, prompt (list of {role, content}), completion (list
of one assistant message); for KTO also label (bool); optional: reasoning, weight, prompt_format. One process of a node
tokenises (tokens.py), all ranks read that.

- A row over `max_tokens` is dropped and counted, never cut: half a diff is no diff.
- The order is decided here, so it is the same on any number of ranks and after any interruption: a step's rows are one
  contiguous block of global_batch rows. The last block is filled with rows of the next epoch. Packed or not, a step has
  the same rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from eft.errors import EftError
from eft.train import pack, tokens
from eft.train.config import TrainConfig
from eft.train.order import order, sample, spread
from eft.train.tokens import COLUMNS, FORMAT, read, tokenize

__all__ = ["COLUMNS", "FORMAT", "IGNORED", "Prepared", "prepare", "read", "tokenize"]

IGNORED = -100  # the label of a token without loss, as torch and TRL have it


@dataclass(frozen=True)
class Prepared:
    """`train`: rows in training order, steps × global_batch of them; `validation`: rows or None, both datasets.Dataset.

    Columns: id, task, length (tokens), response (tokens with a loss), prompt_ids, completion_ids, and label (KTO) and
    weight, where the table has them. Packed: `train` has `packs` × steps rows of another shape, id, rows (indices into
    `table`) and lengths as lists, length and response as sums. `counts` go into the manifest.
    """

    train: Any
    validation: Any
    steps: int
    counts: dict[str, Any]
    table: Any = None
    packs: int | None = None


def prepare(
    config: TrainConfig, tokenizer: Any, *, labelled: bool, group: bool, main: bool, wait: Callable[[], Any], ranks: int,
    capacity: int | None = None,
) -> Prepared:  # fmt: skip
    """Tokenise (where `main`; `wait` is a barrier of all ranks) and put the rows in order. `capacity`: pack rows into
    sequences of so many tokens."""
    from datasets import Dataset

    def folder(split: str) -> Any:
        return tokens.cached(
            config.file(split), tokenizer, config.template, config.thinking, labelled=labelled, spare=config.out() / "tokens"
        )

    if main:
        for split in ("train", "validation"):
            folder(split)
    wait()
    places = {split: folder(split) for split in ("train", "validation")}
    written = json.loads((places["train"] / "counts.json").read_text())
    table = Dataset.from_file(str(places["train"] / "tokens.arrow"))
    if getattr(config, "weights", False) and "weight" in table.column_names:  # SFT's; they are looked at only if used
        tokens.check_weights(table["id"][:], table["weight"][:], config.file("train"))
    lengths = table["length"][:]
    fits = [i for i, n in enumerate(lengths) if n <= config.max_tokens]
    if not fits:
        raise _nothing(config, len(lengths), written["without_reasoning"])
    chosen = [fits[i] for i in sample(len(fits), config.max_rows, config.seed)]
    if len(chosen) < ranks:
        raise EftError(
            f"{len(chosen)} rows are too few for {ranks} ranks",
            where=config.file("train"),
            way_out="launch fewer ranks",
        )
    steps = config.steps or math.ceil(config.epochs * len(chosen) / config.global_batch)
    counts: dict[str, Any] = {
        "rows": len(chosen),
        "dropped_over_max_tokens": len(lengths) - len(fits),
        "dropped_without_reasoning": written["without_reasoning"],
        "dropped_over_max_rows": len(fits) - len(chosen),
        "steps": steps,
        "epochs": round(steps * config.global_batch / len(chosen), 3),
        "prompt_formats": written["prompt_formats"],
    }
    if labelled:
        labels = table["label"][:]
        chosen = spread(chosen, labels)
        counts |= {"desirable": sum(labels[i] for i in chosen), "undesirable": sum(not labels[i] for i in chosen)}
    indices = order(chosen, lengths, steps, config.global_batch, config.seed, shuffle=not labelled, group=group)
    responses = table["response"][:]
    counts["tokens"] = sum(lengths[i] for i in indices)
    counts["response_tokens"] = sum(responses[i] for i in indices)
    packs = None
    if capacity is None:
        train = table.select(indices)
    else:
        packs, bins = pack.steps(indices, lengths, config.global_batch, ranks, capacity)
        counts |= {"packs": len(bins), "packs_per_step": packs}
        ids = table["id"][:]
        train = Dataset.from_dict({
            "rows": bins,
            "id": [[ids[i] for i in b] for b in bins],
            "lengths": [[lengths[i] for i in b] for b in bins],
            "length": [sum(lengths[i] for i in b) for b in bins],
            "response": [sum(responses[i] for i in b) for b in bins],
        })  # fmt: skip
    validation = _validation(config, Dataset.from_file(str(places["validation"] / "tokens.arrow")), labelled, ranks)
    counts["validation_rows"] = len(validation) if validation is not None else 0
    return Prepared(train, validation, steps, counts, table, packs)


def _validation(config: TrainConfig, table: Any, labelled: bool, ranks: int) -> Any:
    fits = [i for i, n in enumerate(table["length"][:]) if n <= config.max_tokens]
    if not fits or not config.eval_rows:
        return None
    block = config.micro_batch * ranks if labelled else 1  # KTO's pairs need whole micro batches
    rows = [fits[i] for i in sample(len(fits), config.eval_rows, config.seed)]
    rows = spread(rows, table["label"][:]) if labelled else rows
    rows = rows[: len(rows) // block * block]
    return table.select(rows) if rows else None


def _nothing(config: TrainConfig, over: int, thoughtless: int) -> EftError:
    why, way_out = "it has no rows", "harvest searches that improved something"
    if over:
        why, way_out = f"all {over} rows have more than {config.max_tokens} tokens", "raise max_tokens"
    elif thoughtless:
        why = f"none of its {thoughtless} rows has a reasoning to keep"
        way_out = "set `thinking: off`, or harvest searches of a model whose reasoning was logged"
    return EftError("there is nothing to train on", where=config.file("train"), why=why, way_out=way_out)
