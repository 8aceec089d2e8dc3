"""Reference log-probabilities of KTO: computed once, kept beside the data.

The reference of KTO is the model that training starts from. Its log-probability of a completion after a prompt never
changes, so it is computed once, by the policy itself before its first step: through the same wrapped model, in the same
micro batches, dtype and kernels as in training, so that the first loss is what it should be (every log-ratio zero). No
second model is held in memory.

    DATASET/.reference/KEY/*.parquet    key (16 bytes: hash of the token ids of a prompt and a completion),
                                        log_prob (float32: the sum over the completion's tokens)

KEY is the hash of the model's weights and of what they are computed with (dtype, autocast, attention kernel, device).
So a second training from the same model reads what the first one wrote, and one from another model cannot. Parts are
written every minute and appear whole or not at all; an interrupted computation goes on from there. A folder of data
that cannot be written to is left alone: the values then go to OUT/reference.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from eft import manifest
from eft.errors import EftError

FOLDER = ".reference"  # beside the data
NOTE = "reference.json"  # in a training's output: which values it began with
PART_S = 60.0  # seconds between parts: what a kill can cost


def row_key(prompt: Sequence[int], completion: Sequence[int]) -> bytes:
    """16 bytes that identify a completion after a prompt, both as token ids."""
    import numpy as np

    digest = hashlib.blake2b(len(prompt).to_bytes(8, "little"), digest_size=16)
    for ids in (prompt, completion):
        digest.update(np.asarray(ids, dtype="<i8").tobytes())
    return digest.digest()


def weights_hash(name: str) -> str:
    """What identifies the weights behind a model's name (see eft.models.load): the content of its weight files.

    Raises EftError where the name is a hub's, and the model has not been downloaded.
    """
    from eft.models.load import ADAPTER, adapter_base

    folder = Path(name)
    if folder.is_dir():
        files = sorted(f for kind in ("*.safetensors", "*.bin", "*.gguf") for f in folder.glob(kind))
        parts = [f"{f.name}:{manifest.file_hash(f)}" for f in files]
        if (folder / ADAPTER).is_file():
            parts += [manifest.file_hash(folder / ADAPTER), weights_hash(adapter_base(folder))]
        return _hash(parts)
    if ":" in name:  # random:… and embedded:… are fixed by the release that makes them
        import transformers

        from eft import __version__

        return _hash([name, __version__, transformers.__version__])
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return weights_hash(snapshot_download(name, allow_patterns=["*.safetensors", "*.bin"], local_files_only=True))
    except (LocalEntryNotFoundError, OSError) as e:
        raise EftError("the model's files are not on this machine", where=name, why=str(e).splitlines()[0]) from None


def _hash(parts: Iterable[Any]) -> str:
    return hashlib.sha256(json.dumps(list(parts), sort_keys=True).encode()).hexdigest()[:32]


class Store:
    """Log-probabilities by `row_key`, in memory and on disk. All ranks read, one writes."""

    def __init__(self, place: Path, spare: Path, what: dict[str, Any]) -> None:
        """`what`: everything that the values depend on beside the row. `spare`: where to go if `place` is read-only."""
        self.key = _hash([what])[:16]
        self.what = what
        self.folder = place / self.key
        if not self.folder.exists() and not _writable(place):
            self.folder = spare / self.key
        self.values: dict[bytes, float] = {}
        self._new: dict[bytes, float] = {}
        self._written = time.monotonic()

    def read(self) -> int:
        """Take in what is on disk; a part that cannot be read is as if it were not there. Returns the number of values."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        for file in sorted(self.folder.glob("*.parquet")):
            try:
                table = pq.read_table(file, columns=["key", "log_prob"])
            except (pa.ArrowException, OSError):
                continue
            self.values.update(zip(table["key"].to_pylist(), table["log_prob"].to_pylist(), strict=True))
        return len(self.values)

    def add(self, keys: Iterable[bytes], values: Iterable[float], *, write: bool) -> None:
        """Remember values; where `write`, they are on disk after `flush` at the latest."""
        found = dict(zip(keys, values, strict=True))
        self.values.update(found)
        if write:
            self._new.update(found)
            if time.monotonic() - self._written > PART_S:
                self.flush()

    def flush(self) -> None:
        """Write what is not on disk yet as a new part."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._written = time.monotonic()
        if not self._new:
            return
        table = pa.table(
            {"key": pa.array(self._new, pa.binary(16)), "log_prob": pa.array(self._new.values(), pa.float32())}
        )
        with manifest.clear_disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / "model.json").exists():
            manifest.write_json(self.folder / "model.json", self.what)
        with manifest.atomic_file(self.folder / f"{time.time_ns():020d}-{os.getpid()}.parquet") as file:
            pq.write_table(table, file)
        self._new = {}

    def forget(self, *, write: bool) -> None:
        """Drop everything, on disk too where `write`: it turned out to be another model's."""
        self.values, self._new = {}, {}
        if write:
            for file in self.folder.glob("*.parquet"):
                file.unlink(missing_ok=True)

    def digest(self, keys: Iterable[bytes]) -> str:
        """A hash over the values of `keys`, in their order. KeyError for one that is missing."""
        digest = hashlib.sha256()
        for key in keys:
            digest.update(key)
            digest.update(array("f", [self.values[key]]).tobytes())
        return digest.hexdigest()


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError:
        return False
    return True


def rows(dataset: Any, start: int, count: int) -> list[dict[str, Any]]:
    """`count` rows of `dataset` from `start` on, as the data loader gives them to a collator."""
    columns = dataset[start : start + count]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def blocks(dataset: Any, block: int) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """(first row, token ids of the rows) of every micro batch, every rank's, in training order; one at a time: a table's
    ids as Python lists would not fit into memory."""
    ids = dataset.select_columns(["prompt_ids", "completion_ids"]).with_format("numpy")
    for start in range(0, len(dataset), block):
        yield start, rows(ids, start, block)


def verify(store: Store, keys: list[bytes], note: Path, *, resumed: bool, write: bool) -> None:
    """Check that a resumed training goes on with the values that it began with; note them for a new one.

    Raises EftError where they are others: the loss would jump, in silence.
    """
    now = {"model": store.key, "values": len(set(keys)), "sha256": store.digest(keys)}
    if resumed and note.exists():
        try:
            began = json.loads(note.read_text())
        except ValueError:
            began = None
        if began != now:
            raise EftError(
                "the stored reference log-probabilities are not those that this training began with",
                where=store.folder,
                why="the reference, the data or the files changed since",
                way_out=f"start anew: remove the checkpoints in {note.parent}",
            )
    elif write:
        manifest.write_json(note, now)
