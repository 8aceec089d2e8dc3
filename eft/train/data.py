"""From the tables of `eft build` to token ids, in the order in which they are trained.

Contract: `dataset/{train,validation}.parquet` with columns id, task, prompt (list of {role, content}), completion (list
of one assistant message); for KTO also label (bool). The main process tokenises once, into OUT/tokens/; all ranks read
that.

- The prompt's ids are the chat template's text with the generation prompt: what a server will show the model. The
  completion is the response and the end-of-turn token. That the template writes a whole conversation the same way is
  checked on every row; where it does not (a template that adds an empty <think> block), the model would be served
  another text than it learned.
- A row over `max_tokens` is dropped and counted, never cut: half a diff is no diff.
- The order is decided here, so it is the same on any number of ranks and after any interruption: a step's rows are one
  contiguous block of global_batch rows. The last block is filled with rows of the next epoch.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eft import manifest, tokenizers
from eft.errors import EftError
from eft.train.config import TrainConfig
from eft.train.order import order, sample, spread

COLUMNS = ("id", "task", "prompt", "completion")
FORMAT = "prompt_format"  # column, where there is one: noted for the model card
IGNORED = -100  # the label of a token without loss, as torch and TRL have it


@dataclass(frozen=True)
class Prepared:
    """`train`: rows in training order, steps × global_batch of them; `validation`: rows or None, both datasets.Dataset.

    SFT rows have input_ids and labels (IGNORED on the prompt); KTO rows prompt_ids, completion_ids and label.
    `counts` go into the manifest.
    """

    train: Any
    validation: Any
    steps: int
    counts: dict[str, Any]


def read(file: Path, *, labelled: bool, batch: int = 512) -> Iterator[list[dict[str, Any]]]:
    """Batches of rows of a training table, streaming; a missing file has none. Raises EftError for what is no such
    table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not file.exists():
        return
    try:
        table = pq.ParquetFile(file)
    except (pa.ArrowInvalid, OSError) as e:
        raise EftError("this is not a Parquet file", where=file, why=str(e)) from None
    with table:
        schema = table.schema_arrow
        wanted = [*COLUMNS, *(["label"] if labelled else [])]
        optional = [FORMAT] if FORMAT in schema.names else []
        missing = [c for c in wanted if c not in schema.names]
        if missing:
            way_out = "KTO reads build/kto, SFT reads build/sft" if missing == ["label"] else "run 'eft build'"
            raise EftError(
                "this table is not a training set",
                where=file,
                why=f"missing columns: {', '.join(missing)}",
                way_out=way_out,
            )
        if labelled and schema.field("label").type != pa.bool_():
            raise EftError(
                "the label column must hold true and false", where=file, why=f"its type is {schema.field('label').type}"
            )
        for rows in table.iter_batches(batch_size=batch, columns=wanted + optional):
            yield rows.to_pylist()


def tokenize(
    rows: list[dict[str, Any]], tokenizer: Any, template: dict[str, Any], where: Path
) -> list[tuple[list[int], list[int]]]:
    """(prompt ids, completion ids) of every row; the completion ends with the end-of-turn token.

    Raises EftError, naming the row, where the response is empty (nothing to learn, and a NaN in KTO), or where the chat
    template renders prompt and answer in a way that would be served differently from how it was learned.
    """
    prompts, responses = [], []
    for row in rows:
        prompt = tokenizer.apply_chat_template(row["prompt"], tokenize=False, add_generation_prompt=True, **template)
        whole = tokenizer.apply_chat_template([*row["prompt"], *row["completion"]], tokenize=False, **template)
        response = row["completion"][0]["content"] if row["completion"] else ""
        place = f"{where}, row {row['id']}"
        if not response.strip():
            raise EftError("a row has an empty response", where=place, way_out="clean the data with 'eft clean'")
        if not whole.startswith(prompt):
            raise EftError(
                "the chat template writes a prompt in another way when an answer follows",
                where=place,
                why="a model trained on it would be asked something that it never saw",
                way_out="set `template:` in the recipe to the arguments that the server will use",
            )
        rest = whole[len(prompt) :]
        if not rest.startswith((response + tokenizer.eos_token, response.strip() + tokenizer.eos_token)):
            raise EftError(
                "the chat template does not write the response as it is, followed by the end token",
                where=place,
                why=f"after the prompt comes {rest[:60]!r}",
                way_out="reasoning models: set `template: {enable_thinking: false}` in the recipe",
            )
        prompts.append(prompt)
        responses.append(response)
    encode = tokenizer.backend_tokenizer.encode_batch_fast
    return [
        (p.ids, [*r.ids, tokenizer.eos_token_id])
        for p, r in zip(
            encode(prompts, add_special_tokens=False), encode(responses, add_special_tokens=False), strict=True
        )
    ]


def write_tokens(config: TrainConfig, tokenizer: Any, folder: Path, *, labelled: bool) -> dict[str, Any]:
    """Tokenise both splits into `folder`/{train,validation}.arrow, in the tables' order. Returns rows and drops by
    split."""
    import pyarrow as pa

    ids = pa.list_(pa.int32())
    fields = (
        {"prompt_ids": ids, "completion_ids": ids, "label": pa.bool_()}
        if labelled
        else {"input_ids": ids, "labels": ids}
    )
    schema = pa.schema({"task": pa.string(), "length": pa.int32(), **fields})
    counts: dict[str, Any] = {}
    formats: set[str] = set()
    for split in ("train", "validation"):
        file, kept, dropped = config.file(split), 0, 0
        # An Arrow stream, because datasets.Dataset.from_file maps it into memory without a copy.
        with pa.OSFile(str(folder / f"{split}.arrow"), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
            for rows in read(file, labelled=labelled):
                out = []
                for row, (prompt, completion) in zip(
                    rows, tokenize(rows, tokenizer, config.template, file), strict=True
                ):
                    length = len(prompt) + len(completion)
                    if length > config.max_tokens:
                        dropped += 1
                        continue
                    values = (
                        {"prompt_ids": prompt, "completion_ids": completion, "label": row["label"]}
                        if labelled
                        else {"input_ids": prompt + completion, "labels": [IGNORED] * len(prompt) + completion}
                    )
                    formats.add(row.get(FORMAT) or "")
                    out.append({"task": row["task"], "length": length, **values})
                kept += len(out)
                writer.write_batch(pa.RecordBatch.from_pylist(out, schema=schema))
        counts[split] = {"rows": kept, "over_max_tokens": dropped}
    if not counts["train"]["rows"]:
        over = counts["train"]["over_max_tokens"]
        raise EftError(
            "there is nothing to train on",
            where=config.file("train"),
            why=f"all {over} rows have more than {config.max_tokens} tokens" if over else "it has no rows",
            way_out="raise max_tokens" if over else "harvest searches that improved something",
        )
    return {**counts, "prompt_formats": sorted(formats - {""})}


def prepare(
    config: TrainConfig, tokenizer: Any, *, labelled: bool, group: bool, main: bool, wait: Callable[[], Any], ranks: int
) -> Prepared:
    """Tokenise (the main process; `wait` is a barrier of all ranks) and put the rows in order."""
    from datasets import Dataset

    key = {
        "labelled": labelled,
        "tokenizer": tokenizers.identity(tokenizer),
        "max_tokens": config.max_tokens,
        "template": config.template,
        "files": {split: manifest.fingerprint(config.file(split)) for split in ("train", "validation")},
    }
    folder = config.out() / "tokens" / hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    if main and not (folder / "counts.json").exists():
        with manifest.building(folder) as aside:
            manifest.write_json(aside / "counts.json", write_tokens(config, tokenizer, aside, labelled=labelled))
    wait()
    written = json.loads((folder / "counts.json").read_text())
    train = Dataset.from_file(str(folder / "train.arrow"))
    chosen = sample(len(train), config.max_rows, config.seed)
    if len(chosen) < ranks:
        raise EftError(
            f"{len(chosen)} rows are too few for {ranks} ranks",
            where=config.file("train"),
            way_out="launch fewer ranks",
        )
    lengths = train["length"][:]
    steps = config.steps or math.ceil(config.epochs * len(chosen) / config.global_batch)
    counts: dict[str, Any] = {
        "rows": len(chosen),
        "dropped_over_max_tokens": written["train"]["over_max_tokens"],
        "dropped_over_max_rows": len(train) - len(chosen),
        "steps": steps,
        "epochs": round(steps * config.global_batch / len(chosen), 3),
        "prompt_formats": written["prompt_formats"],
    }
    if labelled:
        labels = train["label"][:]
        chosen = spread(chosen, labels)
        counts |= {"desirable": sum(labels[i] for i in chosen), "undesirable": sum(not labels[i] for i in chosen)}
    indices = order(chosen, lengths, steps, config.global_batch, config.seed, shuffle=not labelled, group=group)
    counts["tokens"] = sum(lengths[i] for i in indices)
    validation = None
    if written["validation"]["rows"] and config.eval_rows:
        validation = Dataset.from_file(str(folder / "validation.arrow"))
        block = config.micro_batch * ranks if labelled else 1  # KTO's pairs need whole micro batches
        rows = sample(len(validation), config.eval_rows, config.seed)
        rows = spread(rows, validation["label"][:]) if labelled else rows
        rows = rows[: len(rows) // block * block]
        validation = validation.select(rows) if rows else None
    counts["validation_rows"] = len(validation) if validation is not None else 0
    return Prepared(train.select(indices), validation, steps, counts)
