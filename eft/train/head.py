"""Logits of the response only, on every device.

TRL's fused LM head projects only the tokens with a loss on GPUs, and all tokens elsewhere (there, the changing number
of tokens would recompile kernels on every batch). A CPU has nothing to recompile, and with prompts four times as long
as replies and a vocabulary of 49,152 the difference is a quarter of a training step. Same numbers: see
tests/train/test_head.py.
"""

from __future__ import annotations

from eft.errors import EftError


def score_responses_only() -> None:
    """Let TRL's fused LM head skip tokens without a loss on the CPU too. Raises EftError where TRL has changed under
    us."""
    from trl.trainer import utils

    if not hasattr(utils, "_use_triton"):
        raise EftError(
            "this release of TRL is not supported",
            why="trl.trainer.utils has no _use_triton",
            way_out="install trl 1.16",
        )
    # In `utils` this function decides one thing, which positions are scored; the kernels ask another module.
    utils._use_triton = lambda device: True
