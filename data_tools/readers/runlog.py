"""The run log of OpenEvolve: the only place that tells of iterations which left no program.

Read for counts, never for content: which iterations were done, which failed and why, which programs were made, and
whether the run came to its end. Lines as written by 0.0.x to 0.4.x.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from data_tools.readers.files import Problems, integer, raw_lines

REASONS, PROGRAMS = 1000, 2_000_000  # different reasons, and programs, that are told apart
LONGEST_LINE = 10_000  # bytes of a line that are looked at
_MADE = re.compile(r"Iteration (\d+): (?:Program|Child) (\S+) ")
_FAILED = re.compile(r"Iteration (\d+) error: (.*)")
_TIMED_OUT = re.compile(r"Iteration (\d+) timed out")
_BROKEN = re.compile(r"Error (?:processing result from|submitting|in) iteration (\d+)[:.]? ?(.*)")
_PLANNED = re.compile(r"Starting .*evolution from iteration (\d+) for (\d+) iterations")
_FINISHED = re.compile(r"Evolution complete(?:d\b|\.)")
_TOKENS = re.compile(r" \| tokens: .*$")


@dataclass
class RunLog:
    """What the logs of one search show. A resumed search has several logs, read in the order of their names."""

    files: list[str] = field(default_factory=list)
    made: dict[str, int] = field(default_factory=dict)  # program id -> iteration
    failed: Counter[str] = field(default_factory=Counter)  # reason, numbers left out -> iterations
    planned: int = 0  # iterations that were asked for, all starts together
    finished: bool = True  # the last log tells that the run came to an end

    @property
    def iterations(self) -> int:
        """How many iterations came to a result, good or bad; over all logs, so one that was run again counts again."""
        return len(self.made) + self.failed.total()

    def fail(self, reason: str) -> None:
        """One more iteration that left no program."""
        reason = re.sub(r"\d+", "N", reason[:1000])[:120]
        self.failed[reason if reason in self.failed or len(self.failed) < REASONS else "other reasons"] += 1

    def reasons(self) -> dict[str, int]:
        """Failures by reason, numbers left out, most frequent first."""
        return dict(sorted(self.failed.items(), key=lambda item: (-item[1], item[0])))


def read(files: list[Path]) -> RunLog:
    """The run logs among `files` (other logs are passed over), in the order of their names."""
    log = RunLog()
    for file in sorted(files, key=lambda f: f.name):
        _read_one(file, log)
    return log


def _read_one(file: Path, log: RunLog) -> None:
    known, finished, problems = False, False, Problems()
    for _, _, raw in raw_lines(file, problems):
        if b"teration" not in raw and b"Evolution complete" not in raw:
            known = known or b"openevolve" in raw
            continue
        line = raw[:LONGEST_LINE].decode("utf-8", "replace")
        if m := _MADE.search(line):
            if len(log.made) < PROGRAMS:
                log.made[m[2]] = integer(int(m[1][:18]), 0)
        elif m := _FAILED.search(line):
            log.fail(_TOKENS.sub("", m[2]).strip())
        elif _TIMED_OUT.search(line):
            log.fail("timed out")
        elif m := _BROKEN.search(line):
            log.fail(m[2].strip() or "unknown error")
        elif m := _PLANNED.search(line):
            log.planned += int(m[2][:9])
        elif _FINISHED.search(line):
            finished = True
        else:
            continue
        known = True
    if known:
        log.files.append(str(file))
        log.finished = finished
