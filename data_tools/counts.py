"""Tokens of a row, counted once, in batches, and kept beside the data (`tokens.parquet`) for the stages after.

A row's prompt is counted as the model sees it (its chat template, up to where the answer begins), its response with
the end token. The columns `prompt_tokens`/`response_tokens` of the transitions table are something else: what a server
billed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eft.errors import EftError
from eft.records import Transition

TOKENS = "tokens.parquet"
OVERHEAD = 64  # more than a chat template adds to system and user text, in bytes and so in tokens


def messages(row: Transition) -> list[dict[str, str]]:
    """The conversation that the model is asked to answer: the logged prompt, as it is."""
    system = [{"role": "system", "content": row.prompt_system}] if row.prompt_system else []
    return [*system, {"role": "user", "content": row.prompt_user}]


def token_schema() -> Any:
    import pyarrow as pa

    return pa.schema([("id", pa.string()), ("tokenizer", pa.string()), ("prompt_tokens", pa.int64()),
                      ("response_tokens", pa.int64())])  # fmt: skip


class TokenCounter:
    """Counts with one tokenizer. Without one (`name` ""), it can still tell rows that are short by their bytes."""

    def __init__(self, name: str) -> None:
        self.name, self.identity, self._tokenizer = name, "", None
        if name:
            from eft import tokenizers

            self._tokenizer = tokenizers.load(name)
            self.identity = tokenizers.identity(self._tokenizer)

    def count(self, rows: list[Transition], limits: tuple[int | None, int | None]) -> dict[str, tuple[int, int]]:
        """Row id -> (prompt tokens, response tokens). Without a tokenizer, -1 for rows within `limits` (response, both)
        whatever the tokenizer: a token is at least a byte. Raises EftError where that does not decide it.
        """
        if self._tokenizer is None:
            for row in rows:
                self._short(row, *limits)
            return dict.fromkeys((row.id for row in rows), (-1, -1))
        from eft import tokenizers

        prompts = tokenizers.count(
            self._tokenizer, [tokenizers.prompt_text(self._tokenizer, messages(r)) for r in rows]
        )
        responses = tokenizers.count(self._tokenizer, [r.response for r in rows])
        return {r.id: (p, n + 1) for r, p, n in zip(rows, prompts, responses, strict=True)}

    @staticmethod
    def _short(row: Transition, response_limit: int | None, limit: int | None) -> None:
        response = len(row.response.encode("utf-8", "replace")) + 1
        both = response + len((row.prompt_system + row.prompt_user).encode("utf-8", "replace")) + OVERHEAD
        if (response_limit is not None and response > response_limit) or (limit is not None and both > limit):
            raise EftError("the length of a row cannot be decided without a tokenizer", 
                           where=f"{row.task}, row {row.id}",
                           why=f"{both} bytes could be more than {limit} tokens",
                           way_out="give --tokenizer NAME (of the model to train), or switch the limits off with "
                                   "--set max_tokens=null --set max_response_tokens=null")  # fmt: skip


def read_counts(folder: Path) -> dict[str, tuple[int, int]]:
    """Row id -> (prompt tokens, response tokens), as `eft clean` counted them; {} where it had no tokenizer."""
    return {row["id"]: (row["prompt_tokens"], row["response_tokens"]) for row in _rows(folder / TOKENS)}


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not file.is_file():
        return
    try:
        with pq.ParquetFile(file) as table:
            for group in table.iter_batches():
                yield from group.to_pylist()
    except (pa.ArrowInvalid, OSError) as e:
        raise EftError(
            "the token counts cannot be read", where=file, why=str(e), way_out="run 'eft clean' again"
        ) from None
