"""Write a model that has no plain folder (the embedded one, a random one, an adapter) as one that vLLM can serve.

    python -m eft.evaluate.materialise NAME FOLDER

A process of its own, so that the memory of loading is given back before a server starts.
"""

from __future__ import annotations

import sys
from pathlib import Path

from eft import manifest, tokenizers
from eft.errors import EftError


def write(name: str, folder: Path) -> None:
    """Write the weights of `name` (bfloat16, as they are trained and served) and its tokenizer to `folder`, whole or
    not at all. Raises EftError where there is no such model."""
    from eft.models.load import load_model

    with manifest.building(folder) as aside:
        load_model(name, "bfloat16").save_pretrained(aside)
        tokenizers.load(name).save_pretrained(aside)


if __name__ == "__main__":
    try:
        write(sys.argv[1], Path(sys.argv[2]))
    except EftError as e:
        sys.exit(f"error: {e}")
