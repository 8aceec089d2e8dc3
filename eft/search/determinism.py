"""What makes an OpenEvolve search a function of (task, seed, replies).

OpenEvolve seeds `random` and numpy itself, and with one worker it handles candidates strictly in order. What is left is
settled here. Program ids come from uuid4 (the operating system's randomness) and the islands are sets of these ids,
which are iterated over: so ids are drawn from a seeded sequence, and the hash seed is fixed by the environment. Python
reseeds `random` in every forked process, and OpenEvolve's worker draws the diverse programs of a prompt with it: so it
is seeded there again. The whole search then repeats itself, prompt by prompt.

Left undetermined: time stamps and durations in the logs, and scores of tasks whose evaluator is itself random or timed
(on a restart these come from the cache, so a killed search still replays exactly).
"""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
import uuid

from eft.errors import EftError


class SeededUuids:
    """A stand-in for uuid.uuid4 that yields the same ids for the same seed in the same line of processes.

    A forked child continues with a sequence of its own: were it to continue its parent's, the worker's programs and the
    driver's migrants would get the same ids.
    """

    def __init__(self, seed: int) -> None:
        self.line = f"eft:{seed}"
        self._restart()

    def _restart(self) -> None:
        self.random, self.children = random.Random(self.line), 0

    def __call__(self) -> uuid.UUID:
        return uuid.UUID(int=self.random.getrandbits(128), version=4)

    def forking(self) -> None:
        """Before a fork, in the parent: both sides count it."""
        self.children += 1

    def forked(self) -> None:
        """After a fork, in the child; `random` was seeded from the operating system just before."""
        self.line = f"{self.line}.{self.children}"
        self._restart()
        random.seed(self.line)


def settle(seed: int) -> None:
    """Fix everything that OpenEvolve leaves open. Once per process, before openevolve is imported.

    Raises EftError where the interpreter was started with a random hash seed (it cannot be changed afterwards).
    """
    if sys.flags.hash_randomization and os.environ.get("PYTHONHASHSEED", "random") == "random":
        raise EftError("the search would not be reproducible", why="PYTHONHASHSEED is not set",
                       way_out="start it with PYTHONHASHSEED=0, or through eft")  # fmt: skip
    # The worker must inherit the seeded state; other start methods would import everything anew, unseeded.
    multiprocessing.set_start_method("fork", force=True)
    uuids = SeededUuids(seed)
    uuid.uuid4 = uuids
    os.register_at_fork(before=uuids.forking, after_in_child=uuids.forked)
