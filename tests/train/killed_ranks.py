"""Trainings that end as clusters end them.

python -m killed_ranks VERB STEP RECIPE.yaml    all ranks die of SIGKILL right after the checkpoint of STEP, torn files of a
                                          later one lying about
python -m killed_ranks chain SFT.yaml KTO.yaml  SFT to its end; KTO: at step 1 the last rank alone gets SIGTERM, which must
                                          save step 1 on all; KTO again, killed like above after step 2
"""

import os
import signal
import sys

from eft.train import kto, launch, sft
from eft.train.checkpoints import Checkpoints
from eft.train.interrupt import Interrupt

VERBS = {"sft": sft, "kto": kto}


def die_after(step: int) -> None:
    whole = Checkpoints.on_save

    def on_save(self, args, state, control, **kwargs):
        whole(self, args, state, control, **kwargs)
        if state.global_step == step:
            torn = self.out / f"checkpoint-{step + 2}"
            torn.mkdir(exist_ok=True)
            (torn / "model.safetensors").write_bytes(b"torn")
            os.kill(os.getpid(), signal.SIGKILL)

    Checkpoints.on_save = on_save


def signalled(recipe: str) -> None:
    """KTO whose last rank gets SIGTERM in step 1; returns after it has been interrupted."""
    begin = Interrupt.on_step_begin

    def on_step_begin(self, args, state, control, **kwargs):
        begin(self, args, state, control, **kwargs)
        if state.global_step == 0 and args.process_index == args.world_size - 1:
            os.kill(os.getpid(), signal.SIGTERM)

    Interrupt.on_step_begin = on_step_begin

    def leave(code):
        raise SystemExit(code)

    real, launch.os._exit = os._exit, leave
    try:
        kto.main([recipe])
    except SystemExit as e:
        assert e.code == 75, e
        print("INTERRUPTED", flush=True)
    finally:
        Interrupt.on_step_begin, launch.os._exit = begin, real


if __name__ == "__main__":
    if sys.argv[1] == "chain":
        sft.main([sys.argv[2]])
        signalled(sys.argv[3])
        die_after(2)
        kto.main([sys.argv[3]])
    else:
        die_after(int(sys.argv[2]))
        VERBS[sys.argv[1]].main([sys.argv[3]])
