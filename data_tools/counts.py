"""Tokens of a row, counted once, in batches, and kept beside the data (`tokens.parquet`) for the stages after.

A row's prompt is counted as the model sees it (its chat template, up to where the answer begins), its response with
the end token. The columns `prompt_tokens`/`response_tokens` of the transitions table are something else: what a server
billed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from data_tools.chunks import ChunkCounter
from eft.errors import EftError
from eft.records import Transition

TOKENS = "tokens.parquet"
OVERHEAD = 64  # more than a chat template adds to system and user text, in bytes and so in tokens


def messages(row: Transition) -> list[dict[str, str]]:
    """The conversation that the model is asked to answer: the logged prompt, as it is."""
    system = [{"role": "system", "content": row.prompt_system}] if row.prompt_system else []
    return [*system, {"role": "user", "content": row.prompt_user}]


def token_schema() -> Any:
    """One line per row and tokenizer; `tokenizer` is `eft.tokenizers.identity`, `name` what it was called."""
    import pyarrow as pa

    return pa.schema([("id", pa.string()), ("tokenizer", pa.string()), ("name", pa.string()),
                      ("prompt_tokens", pa.int64()), ("response_tokens", pa.int64())])  # fmt: skip


class TokenCounter:
    """Counts with one tokenizer. Raises EftError where `name` is none."""

    def __init__(self, name: str) -> None:
        from eft import tokenizers

        self.name, self._tokenizer = name, tokenizers.load(name)
        self._chunks = ChunkCounter(self._tokenizer)
        self.identity = tokenizers.identity(self._tokenizer)

    def lengths(self, rows: list[Transition]) -> tuple[list[int], list[int]]:
        """(prompt tokens, response tokens) of every row, in order.

        Raises EftError where chunks turn out to be no safe way to count with this tokenizer (`data_tools.chunks`).
        """
        import jinja2

        from eft import tokenizers

        try:
            texts = [tokenizers.prompt_text(self._tokenizer, messages(r)) for r in rows]
        except jinja2.TemplateError as e:
            way_out = "another tokenizer, or a template with the roles system and user"
            what = "the tokenizer's chat template refuses a prompt"
            raise EftError(what, where=self.name, why=str(e)[:300], way_out=way_out) from None
        prompts = self._chunks.count(texts)
        responses = self._chunks.count([r.response for r in rows])
        if not self._chunks.exact:
            raise EftError("this tokenizer's counts differ when texts are counted in parts", where=self.name,
                           why="a check on a sample of the rows failed",
                           way_out="please report it; set EFT_COUNT_WHOLE=1 to count whole texts")  # fmt: skip
        return prompts, [n + 1 for n in responses]


def read_counts(folder: Path, tokenizer: str = "") -> dict[str, tuple[int, int]]:
    """Row id -> (prompt tokens, response tokens), as `eft clean` counted them; {} where it had no tokenizer.

    `tokenizer`: the name of the one that is meant, default the first that was counted with. Raises EftError where the
    counts are of others only, or of an earlier state of it.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    file = folder / TOKENS
    if not file.is_file():
        return {}
    try:
        table = pq.read_table(file)
    except (pa.ArrowInvalid, OSError) as e:
        raise EftError(
            "the token counts cannot be read", where=file, why=str(e), way_out="run 'eft clean' again"
        ) from None
    if not len(table):
        return {}
    wanted = table["tokenizer"][0].as_py()
    if tokenizer:
        wanted = TokenCounter(tokenizer).identity
        known = dict(zip(table["tokenizer"].unique().to_pylist(), table["name"].unique().to_pylist(), strict=False))
        if wanted not in known:
            changed = tokenizer in known.values()
            raise EftError(
                f"the rows were not counted with the tokenizer '{tokenizer}'", where=file,
                why="it has changed since the counts were made" if changed
                else f"counted with: {', '.join(known.values())}",
                way_out=f"run 'eft clean' again with --tokenizer {tokenizer}")  # fmt: skip
    table = table.filter(pc.equal(table["tokenizer"], wanted))
    return dict(zip(table["id"].to_pylist(),
                    zip(table["prompt_tokens"].to_pylist(), table["response_tokens"].to_pylist(), strict=True),
                    strict=True))  # fmt: skip
