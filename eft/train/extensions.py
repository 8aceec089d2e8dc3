"""DeepSpeed's communication between ranks on a CPU: a small C++ extension, built just in time.

PyTorch guards such a build by a file named `lock`, which stays behind when the process that builds is killed: from then
on every launch on the machine waits for it, for ever and without a word. Here the ranks build one after the other, under
a lock that the system releases when its holder dies, in a folder that nobody else builds in; so a `lock` found by the
holder is a dead process's, and goes.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import sys
from pathlib import Path

from eft import manifest, resources


@functools.cache  # two stages in one process build once
def build() -> None:
    """Build and load the extension, before DeepSpeed would. Call it in every rank, with DS_ACCELERATOR=cpu set.

    Raises EftError where the folder (see `place`) cannot be written. Where no compiler is found it does nothing: DeepSpeed then
    communicates through gloo alone.
    """
    import torch

    folder = place(torch.__version__)
    with manifest.clear_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / ".lock", "w")
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in folder.glob("*/lock"):
            left.unlink()
        os.environ["TORCH_EXTENSIONS_DIR"] = str(folder)
        import deepspeed
        from deepspeed.accelerator import get_accelerator

        builder = get_accelerator().create_op_builder("ShareMemCommBuilder")
        if builder is not None and deepspeed.ops.__compatible_ops__.get(builder.NAME, False):
            builder.load()


def place(torch_version: str) -> Path:
    """Where it is built: below $TORCH_EXTENSIONS_DIR if that is set, else in eft's cache. One folder for each environment:
    the compiler's command names its header files, so two that share one would build it anew in turns."""
    given = os.environ.get("TORCH_EXTENSIONS_DIR")
    environment = hashlib.sha256(sys.prefix.encode()).hexdigest()[:8]
    kind = f"py{sys.version_info.major}{sys.version_info.minor}-torch{torch_version}-{environment}"
    return Path(given) / "eft" if given else resources.cache() / "extensions" / kind
