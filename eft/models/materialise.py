"""Write a model that has no plain folder (the embedded one, a random one, an adapter) as one that vLLM can serve.

    python -m eft.models.materialise NAME FOLDER

A process of its own, so that the memory of loading is given back before a server starts.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from eft import manifest, tokenizers
from eft.errors import EftError
from eft.models.load import ADAPTER


def write(name: str, folder: Path) -> None:
    """Write the weights of `name` (bfloat16, as they are trained and served) and its tokenizer to `folder`, whole or
    not at all. Raises EftError where there is no such model."""
    from eft.models.identity import tokenizer_place
    from eft.models.load import load_model

    with manifest.building(folder) as aside:
        load_model(name, "bfloat16").save_pretrained(aside)
        tokenizers.load(tokenizer_place(name)).save_pretrained(aside)


def servable(place: str, folder: Path) -> tuple[str, bool]:
    """(what vLLM is given for the located model `place`, whether that is a hub id), written to `folder` where it is no
    plain folder yet. `folder` must be one for this set of weights alone: what is there is taken as it is.

    Raises EftError where it cannot be written.
    """
    if Path(place).is_dir() and not (Path(place) / ADAPTER).exists():
        return place, False
    if ":" not in place and not Path(place).is_dir():
        return place, True
    if not (folder / "config.json").exists():
        command = [sys.executable, "-m", "eft.models.materialise", place, str(folder)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            raise EftError("the model cannot be written for serving", where=place, why=done.stderr.strip()[-1500:])
    return str(folder), False


if __name__ == "__main__":
    try:
        write(sys.argv[1], Path(sys.argv[2]))
    except EftError as e:
        sys.exit(f"error: {e}")
