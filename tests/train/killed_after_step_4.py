"""SFT whose ranks all die of SIGKILL right after the checkpoint of step 4, torn files of a later one lying about."""

import os
import signal
import sys

from eft.train import sft
from eft.train.checkpoints import Checkpoints

whole = Checkpoints.on_save


def on_save(self, args, state, control, **kwargs):
    whole(self, args, state, control, **kwargs)
    if state.global_step == 4:
        (self.out / "checkpoint-6").mkdir(exist_ok=True)
        (self.out / "checkpoint-6" / "model.safetensors").write_bytes(b"torn")
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    Checkpoints.on_save = on_save
    sft.main([sys.argv[1]])
