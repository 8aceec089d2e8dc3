"""Runs ShinkaEvolve in its own environment; never imported by eft.

    PYTHON_OF_SHINKA -s -P shinka_driver.py SETTINGS.json PARENT

One proposal and one evaluation at a time, seeded, so that a search that runs again asks the same questions and a
recording gateway can answer them from its journal. SETTINGS: see `eft.search.shinka.settings`. PARENT: the process that
it does not outlive.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import sys
from pathlib import Path


def die_with(parent: int) -> None:
    """Ask the kernel to end this process when `parent` ends (Linux only): a killed search leaves nothing behind."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # 1: PR_SET_PDEATHSIG
        if os.getppid() != parent:  # it ended before the kernel knew what to do then
            sys.exit("error: the search is gone")


def main(file: str) -> None:
    given = json.loads(Path(file).read_text(encoding="utf-8"))
    # Before its modules read it: the gateway has retried already, and a mutator that is gone must be noticed.
    from shinka.llm import constants

    constants.BACKOFF_MAX_TRIES = 1
    import numpy
    from shinka.core import EvolutionConfig, ShinkaEvolveRunner
    from shinka.database import DatabaseConfig
    from shinka.launch import LocalJobConfig

    random.seed(given["seed"])
    numpy.random.seed(given["seed"] % 2**32)
    runner = ShinkaEvolveRunner(
        evo_config=EvolutionConfig(**given["evolution"]),
        job_config=LocalJobConfig(**given["job"]),
        db_config=DatabaseConfig(**given["database"]),
        banner_style="minimal",
        max_evaluation_jobs=1,
        max_proposal_jobs=1,
        max_db_workers=1,
    )
    runner.run()


if __name__ == "__main__":
    die_with(int(sys.argv[2]))
    main(sys.argv[1])
