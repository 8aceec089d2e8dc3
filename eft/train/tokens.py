"""Rows of a training table as token ids, written once and shared.

- The prompt's ids are the chat template's text with the generation prompt: what a server will show the model. The
  completion is the response and the end-of-turn token. That the template writes a whole conversation the same way is
  checked on every row; where it does not, the model would be served another text than it learned.
- `thinking` says what becomes of the thought in front of the response, for models whose template has a place for it:
  off    asked and served without: the template shuts an empty thought, and the response follows;
  on     asked to think; the row's thought (the table's column `reasoning`) stands before the response, without loss;
  kept   the same, and the thought is learned with the response. Rows without one are left out and counted.
  None   nothing is said to the template.
- Written to DATASET/.tokens/KEY, KEY a hash of the file's content, the tokenizer, the template and its arguments: runs
  and stages that need the same ids read the same file. Budgets are applied where it is read.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from eft import manifest, prompts, tokenizers
from eft.errors import EftError, UsageError

COLUMNS = ("id", "task", "prompt", "completion")
FORMAT = "prompt_format"  # column, where there is one: noted for the model card
OPTIONAL = (FORMAT, "reasoning", "weight")
MAX_WEIGHT = 1e6  # beside a mean of 1; what is above is a mistake, and would overflow in float32 sums at some point
VERSION = 3  # of what is written: another one is another key
KEPT_DAYS = 14  # tokens of a file that has changed since


def read(file: Path, *, labelled: bool, batch: int = 64) -> Iterator[list[dict[str, Any]]]:
    """Batches of rows of a training table, streaming; a missing file has none. Raises EftError for what is no such
    table, or that of the other stage."""
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
        missing = [c for c in wanted if c not in schema.names]
        if missing:
            way_out = "KTO reads build/kto, SFT reads build/sft" if missing == ["label"] else "run 'eft build'"
            raise EftError(
                "this table is not a training set",
                where=file,
                why=f"missing columns: {', '.join(missing)}",
                way_out=way_out,
            )
        kind = schema.field("label").type if "label" in schema.names else None
        if labelled and kind != pa.bool_():
            raise EftError(
                "the label column must hold true and false",
                where=file,
                why=f"its type is {kind}",
                way_out="KTO reads build/kto, SFT reads build/sft",
            )
        if not labelled and kind == pa.bool_():
            raise EftError(
                "this is a KTO set, whose regressed rows SFT would learn",
                where=file,
                way_out="KTO reads build/kto, SFT reads build/sft",
            )
        found = [c for c in OPTIONAL if c in schema.names]
        if "weight" in found and not (
            pa.types.is_floating(schema.field("weight").type) or pa.types.is_integer(schema.field("weight").type)
        ):
            raise EftError("the column `weight` must hold numbers", where=file,
                           why=f"its type is {schema.field('weight').type}")  # fmt: skip
        for rows in table.iter_batches(batch_size=batch, columns=wanted + found):
            yield rows.to_pylist()


def arguments(template: dict[str, Any], thinking: str | None) -> dict[str, Any]:
    """Arguments of the chat template. Raises UsageError where `template` and `thinking` contradict each other."""
    if thinking is None:
        return dict(template)
    wanted = thinking != "off"
    if template.get("enable_thinking", wanted) is not wanted:
        raise UsageError(
            f"`thinking: {thinking}` and `template: {{enable_thinking: {template['enable_thinking']}}}` contradict each other",
            way_out="leave enable_thinking out",
        )
    return {**template, "enable_thinking": wanted}


def render(
    row: dict[str, Any], tokenizer: Any, template: dict[str, Any], thinking: str | None, where: Path
) -> tuple[str, str, str] | None:
    """(prompt, thought, response) of a row as text; the three and the end token are what the model sees. None for a row
    without the thought that is to be kept.

    Raises EftError, naming the row, where the response is empty (nothing to learn, and a NaN in KTO), or where the chat
    template renders prompt and answer in a way that would be served differently from how it was learned.
    """
    from jinja2 import TemplateError

    place = f"{where}, row {row['id']}"
    reply = row["completion"][0] if row["completion"] else {"content": ""}
    if not isinstance(reply, dict) or "content" not in reply:
        raise EftError("a row's completion is no message", where=place, why=f"it is {row['completion']!r:.80}",
                       way_out="give a list with one {role, content}, as 'eft build' does")  # fmt: skip
    response = reply["content"] or ""
    thought, answer = "", {"role": "assistant", "content": response}
    if thinking is not None:
        inline, response = prompts.split_thought(response)
        if thinking != "off":
            thought = (row.get("reasoning") or inline).strip()
        answer = {"role": "assistant", "content": response, "reasoning_content": thought}
    if not response.strip():
        raise EftError("a row has an empty response", where=place, way_out="clean the data with 'eft clean'")
    if thinking == "kept" and not thought:
        return None
    options = arguments(template, thinking)
    try:
        prompt = tokenizer.apply_chat_template(row["prompt"], tokenize=False, add_generation_prompt=True, **options)
        whole = tokenizer.apply_chat_template([*row["prompt"], answer], tokenize=False, **options)
    except (TemplateError, TypeError, KeyError, ValueError) as e:
        raise EftError("the chat template cannot write this conversation", where=place, why=str(e)) from None
    if not whole.startswith(prompt):
        raise EftError(
            "the chat template writes a prompt in another way when an answer follows",
            where=place,
            why="a model trained on it would be asked something that it never saw",
            way_out="reasoning models: set `thinking: off` (or on, kept) in the recipe; others: set `template:` to the "
            "arguments that the server will use",
        )
    rest = whole[len(prompt) :]
    body, end, tail = rest.rpartition(tokenizer.eos_token)
    # as the template writes it: some trim, and a thought's own line breaks stand before the response already
    written = next((r for r in (response, response.lstrip("\n"), response.strip()) if end and body.endswith(r)), None)
    opened = body[: len(body) - len(written)] if written is not None else body
    if written is None or tail.strip() or (opened and thinking in (None, "off")):
        raise EftError(
            "the chat template does not write the response as it is, followed by the end token",
            where=place,
            why=f"after the prompt comes {rest[:60]!r}",
            way_out="reasoning models: set `thinking: off` (or on, kept) in the recipe",
        )
    if thought and thought not in opened:
        raise EftError(
            "the chat template has no place for the thought of a row",
            where=place,
            why=f"before the response comes {opened[:60]!r}",
            way_out="set `thinking: off`, or use a model that reasons",
        )
    return prompt, opened, written


def tokenize(
    rows: list[dict[str, Any]], tokenizer: Any, template: dict[str, Any], where: Path, thinking: str | None = None
) -> list[tuple[list[int], list[int]] | None]:
    """(prompt ids, completion ids) of every row, see `render`; the completion ends with the end-of-turn token, and all
    of it has a loss. A thought without loss belongs to the prompt."""
    texts = [render(row, tokenizer, template, thinking, where) for row in rows]
    encode = tokenizer.backend_tokenizer.encode_batch_fast
    flat = encode([part for t in texts if t for part in t], add_special_tokens=False)
    ids = iter([part.ids for part in flat])
    found: list[tuple[list[int], list[int]] | None] = []
    for t in texts:
        if t is None:
            found.append(None)
            continue
        prompt, thought, response = next(ids), next(ids), [*next(ids), tokenizer.eos_token_id]
        found.append((prompt, thought + response) if thinking == "kept" else (prompt + thought, response))
    return found


def write(file: Path, folder: Path, tokenizer: Any, template: dict[str, Any], thinking: str | None, *,
          labelled: bool) -> None:  # fmt: skip
    """Write the rows of `file` into `folder`: tokens.arrow (id, task, length, response, prompt_ids, completion_ids, and
    label, weight, where the table has them), in the table's order, and counts.json."""
    import pyarrow as pa

    schema: Any = None
    kept, thoughtless, formats = 0, 0, set()
    # An Arrow stream, because datasets.Dataset.from_file maps it into memory without a copy.
    with contextlib.ExitStack() as stack:
        sink = stack.enter_context(pa.OSFile(str(folder / "tokens.arrow"), "wb"))
        writer: Any = None
        for rows in read(file, labelled=labelled):
            if writer is None:
                schema = _schema(labelled=labelled, weighted="weight" in rows[0])
                writer = stack.enter_context(pa.ipc.new_stream(sink, schema))
            out = []
            for row, ids in zip(rows, tokenize(rows, tokenizer, template, file, thinking), strict=True):
                if labelled and row["label"] is None:
                    raise EftError("a row has no label", where=f"{file}, row {row['id']}",
                                   way_out="KTO needs true or false; leave the row out")  # fmt: skip
                if ids is None:
                    thoughtless += 1
                    continue
                prompt, completion = ids
                formats.add(row.get(FORMAT) or "")
                values = {"length": len(prompt) + len(completion), "response": len(completion)}
                named = {k: row[k] if row[k] is None else str(row[k]) for k in ("id", "task")}
                out.append({**row, **named, **values, "prompt_ids": prompt, "completion_ids": completion})
            kept += len(out)
            writer.write_batch(pa.RecordBatch.from_pylist(out, schema=schema))
        if writer is None:
            stack.enter_context(pa.ipc.new_stream(sink, _schema(labelled=labelled, weighted=False)))
    counts = {"rows": kept, "without_reasoning": thoughtless, "prompt_formats": sorted(formats - {""})}
    manifest.write_json(folder / "counts.json", {**counts, "file": file.name, "content": manifest.fingerprint(file)})


def _schema(*, labelled: bool, weighted: bool) -> Any:
    import pyarrow as pa

    ids = pa.list_(pa.int32())
    fields = {"id": pa.string(), "task": pa.string(), "length": pa.int32(), "response": pa.int32(), "prompt_ids": ids,
              "completion_ids": ids}  # fmt: skip
    return pa.schema({**fields, **({"label": pa.bool_()} if labelled else {}),
                      **({"weight": pa.float64()} if weighted else {})})  # fmt: skip


def check_weights(ids: list[str], weights: list[float | None], file: Path) -> None:
    """Raise EftError, naming the row, where a weight is no positive number."""
    for name, weight in zip(ids, weights, strict=True):
        if weight is None or not 0 < weight <= MAX_WEIGHT:  # not a number compares as neither
            raise EftError(
                f"the weight of a row must be above 0, and at most {MAX_WEIGHT:g}",
                where=f"{file}, row {name}",
                why=f"it is {weight}",
                way_out="run 'eft build --sft-weights gain' again, or set `weights: false`",
            )


def cached(
    file: Path, tokenizer: Any, template: dict[str, Any], thinking: str | None, *, labelled: bool, spare: Path
) -> Path:
    """The folder with the token ids of `file`, written now if nobody has yet; `spare`: where to put it if the data's own
    folder cannot be written. Two processes that come at once get the same one."""
    key = {
        "version": VERSION,
        "content": manifest.fingerprint(file),
        "tokenizer": tokenizers.identity(tokenizer),
        "end": tokenizer.eos_token,
        "template": arguments(template, thinking),
        "thinking": thinking,
        "labelled": labelled,
    }
    name = f"{file.stem}-{hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()[:16]}"
    home = file.parent / ".tokens"
    for place in (home / name, spare / name):
        if (place / "counts.json").is_file():
            with contextlib.suppress(OSError):
                os.utime(place)  # still in use: see _forget
            return place
    home = home if _writable(home) else spare
    with manifest.clear_disk_errors(home), _locked(home, name):
        folder = home / name
        if not (folder / "counts.json").is_file():
            _forget(home, file.name, key["content"])
            with manifest.building(folder) as aside:
                write(file, aside, tokenizer, template, thinking, labelled=labelled)
    return folder


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


@contextlib.contextmanager
def _locked(home: Path, name: str) -> Iterator[None]:
    """One process at a time; without a lock where the file system has none, since what is written appears whole."""
    home.mkdir(parents=True, exist_ok=True)
    with open(home / f".{name}.lock", "w") as lock:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _forget(home: Path, file: str, content: str) -> None:
    """Remove ids of an older content of `file` that nobody has asked for in two weeks."""
    for folder in home.glob(f"{Path(file).stem}-*"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            noted = json.loads((folder / "counts.json").read_text())
            old = time.time() - folder.stat().st_mtime > KEPT_DAYS * 86400
            if noted["file"] == file and noted["content"] != content and old:
                shutil.rmtree(folder, ignore_errors=True)


def settle_template(tokenizer: Any, options: dict[str, Any]) -> None:
    """Make `options` (arguments of the chat template) its defaults, so that a server that is told nothing asks the model
    what it learned; whoever gives the arguments still decides."""
    asked = [{"role": "user", "content": "?"}]

    def text(**given: Any) -> str:
        return tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True, **given)

    if not options or text() == text(**options):
        return
    defaults = "".join(
        f"{{%- if {key} is not defined %}}{{%- set {key} = {'none' if value is None else json.dumps(value)} %}}{{%- endif %}}"
        for key, value in options.items()
    )
    tokenizer.chat_template = defaults + tokenizer.chat_template


def show(tokenizer: Any, row: dict[str, Any], marks: tuple[str, str] = ("⟪", "⟫")) -> tuple[str, str, str]:
    """(prompt, what has a loss, both with the latter between `marks`) of a row of token ids, decoded. Raises EftError
    where the prompt's text gives other ids: then a server, which is sent the text, would see something else."""
    prompt, completion = (
        tokenizer.decode(row[k], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        for k in ("prompt_ids", "completion_ids")
    )
    if tokenizer.backend_tokenizer.encode(prompt, add_special_tokens=False).ids != list(row["prompt_ids"]):
        raise EftError(
            "the tokenizer does not give a prompt's text back",
            where=f"row {row['id']}",
            why="its ids, decoded and encoded again, are others",
            way_out="use the model's own tokenizer, unchanged",
        )
    return prompt, completion, f"{prompt}{marks[0]}{completion}{marks[1]}"


def write_example(out: Path, tokenizer: Any, prepared: Any, say: Callable[[str], None]) -> None:
    """Show the first row that is trained: all of it in OUT/example.txt, what has a loss between marks; its seam in the
    log. `prepared`: a data.Prepared."""
    row = prepared.train[0]
    if "rows" in row:
        row = prepared.table[row["rows"][0]]
    prompt, completion, text = show(tokenizer, row)
    head = f"row {row['id']}: {row['length']} tokens, {row['response']} of them with a loss, between ⟪ and ⟫"
    manifest.write_text(out / "example.txt", f"{head}\n\n{text}\n")
    begin, end = completion[:100], completion[100:][-40:]
    say(f"{head}: {prompt[-60:]!r} ⟪{begin!r}{' … ' + repr(end) if end else ''}⟫ (example.txt)")
