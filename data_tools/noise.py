"""How much does a score change when nothing does? The task's own evaluator says, run again in the sandbox.

An evaluator that measures time, or draws instances at random, gives one program another score every time. A child that
beats its parent by less than that has not improved. For a sample of the programs that the search made, the evaluator is
run `repeats` times; the task's noise floor is what a difference of two such scores can be by chance: the largest spread
seen, or three standard deviations of a difference (pooled over the sample), whichever is more.

Only evaluators of shipped tasks are run, or of a folder that the user names: a task's name in a log starts nothing.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_tools.scores import judge
from eft.errors import EftError, UsageError

DEVIATIONS = 3.0


@dataclass(frozen=True)
class Floor:
    """The noise of one task. `floor`: of a difference of two scores; `drift`: the largest difference between a score in
    the logs and the mean of those measured here; `seconds`: what measuring took."""

    task: str
    floor: float
    programs: int
    evaluations: int
    drift: float
    seconds: float


@dataclass
class Sample:
    """`size` programs of one task, the same ones whatever the order in which they are offered."""

    size: int
    _best: dict[str, tuple[str, str, float]] = field(default_factory=dict)  # rank -> (code, language, logged score)

    def offer(self, code: str, language: str, score: float) -> None:
        rank = hashlib.sha256(code.encode("utf-8", "replace")).hexdigest()
        if rank not in self._best:
            self._best[rank] = (code, language, score)
            if len(self._best) > self.size:
                del self._best[max(self._best)]

    def programs(self) -> list[tuple[str, str, float]]:
        return [self._best[rank] for rank in sorted(self._best)]


def task_of(name: str, folders: dict[str, Path]) -> Any:
    """The task whose evaluator stands for the rows of task `name`. Raises UsageError where there is none."""
    from eft.tasks.task import find_task, load_task, shipped

    if name in folders:
        return load_task(folders[name])
    if name in shipped():
        return find_task(name)
    raise UsageError(f"the noise of task '{name[:80]}' cannot be measured", why="it is no task that eft ships",
                     way_out=f"name the folder with its evaluator: --set 'tasks={{\"{name[:80]}\": FOLDER}}', or give "
                             "--eps instead of --noise")  # fmt: skip


def sample(rows: Iterable[tuple[str, str, str, float | None]], size: int) -> dict[str, Sample]:
    """Samples by task, out of (task, code, language, score) of valid programs."""
    found: dict[str, Sample] = defaultdict(lambda: Sample(size))
    for task, code, language, score in rows:
        if score is not None:
            found[task].offer(code, language, score)
    return dict(found)


def measure(name: str, programs: list[tuple[str, str, float]], folders: dict[str, Path], *, key: str | None,
            repeats: int) -> Floor:  # fmt: skip
    """The noise floor of one task. Raises EftError where none of the programs has a score here."""
    from eft.tasks.evaluate import evaluate

    task = task_of(name, folders)
    spread = drift = squares = seconds = 0.0
    measured = freedom = evaluations = 0
    for code, _, logged in programs:
        scores = []
        for _ in range(repeats):
            done = evaluate(task, code)
            seconds += done.seconds
            evaluations += 1
            verdict = judge(done.metrics, key=key, allow_average=False)
            if verdict.score is None:
                break  # invalid here, whatever the log says: nothing to be measured on it
            scores.append(verdict.score)
        if len(scores) < repeats:
            continue
        mean = math.fsum(scores) / repeats
        measured, freedom = measured + 1, freedom + repeats - 1
        squares += math.fsum((s - mean) ** 2 for s in scores)
        spread, drift = max(spread, max(scores) - min(scores)), max(drift, abs(mean - logged))
    if not measured:
        raise EftError(f"the noise of task '{name[:80]}' cannot be measured", where=task.folder,
                       why=f"none of {len(programs)} programs from the logs has a score here",
                       way_out="see that the folder has the evaluator of these logs, or give --eps")  # fmt: skip
    chance = DEVIATIONS * math.sqrt(2 * squares / freedom)
    return Floor(name, max(spread, chance), measured, evaluations, drift, round(seconds, 3))


def say(floors: Iterable[Floor]) -> None:
    """What was measured, on standard error."""
    for f in floors:
        print(f"label: {f.task}: noise floor {f.floor:.3g}, from {f.evaluations} evaluations of {f.programs} programs "
              f"({f.seconds:.1f} s)", file=sys.stderr)  # fmt: skip
        if f.drift > 2 * f.floor + 1e-9 * abs(f.drift):
            print(f"warning: {f.task}: scores measured here differ from the logged ones by up to {f.drift:.3g}, which "
                  "is more than noise: is this the evaluator that made the logs?", file=sys.stderr)  # fmt: skip
