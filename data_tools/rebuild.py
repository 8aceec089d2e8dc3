"""A prompt where none was logged: instruction, parent, its logs and the history, as of when the child was asked for.

A transition is (I, x[t-1], H[t-1], F[t-1]) -> x[t]. Where the log kept no prompt, it is put together again by
OpenEvolve's own prompt sampler, in its stock wording (`openevolve@0.4`): the parent with its score and its execution
logs, and as history the best programs of the parent's island *that existed at that time*. The row says so
(`prompt_source`: rebuilt). It is a prompt that the scaffold might have sent, not the one that it did send: which
programs it sampled, and which of them another worker had finished by then, no log tells.

What existed at that time? Where it is known when the child was made and how long that took, every program that was made
before it was asked for; else every program made no later than its parent; where nothing tells the times, the parent and
its ancestors alone. Never the child, a program of the child's code, or a descendant of the child, whatever the clock
says.
"""

from __future__ import annotations

import bisect
import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from eft.records import code_hash

FORMAT = "openevolve@0.4"
TOP = 5  # programs of the history: OpenEvolve shows three best ones and two others
CHAIN = 1000  # ancestors that are looked at where no log tells of times
LOOKED_AT = 64  # of the best programs, for as many as `TOP` that may be shown


@dataclass(frozen=True)
class Known:
    """One program as the history needs it. Times are seconds since the epoch, None where no log tells.

    `at`: when it had come into being at the latest. `asked`: when it was asked for, at the latest.
    """

    id: str
    parent_id: str | None
    score: float | None  # None: not valid
    code_hash: str
    island: int | None = None
    at: float | None = None
    asked: float | None = None


class History:
    """Which programs existed when a child was asked for; the best first."""

    def __init__(self, programs: Iterable[Known], wanted: Iterable[str]) -> None:
        """`wanted`: ids of the children whose history will be asked for."""
        self.programs = {p.id: p for p in programs}
        self._span = _spans(self.programs)
        self._copies = _outermost(self.programs, self._span)
        self._best: dict[str, list[str]] = {}
        self._sweep([self.programs[c] for c in wanted])

    def best(self, child: str) -> list[str]:
        """Ids of the best programs that existed, at most `TOP`."""
        return self._best.get(child, [])

    def cutoff(self, child: Known) -> float | None:
        """What came into being up to then had done so when the child was asked for; None where nothing tells."""
        parent = self.programs.get(child.parent_id or "")
        there = parent.at if parent is not None else None
        if there is not None and child.at is not None and there > child.at:
            return None  # a clock that puts the child before its parent is no clock
        return max((t for t in (child.asked, there) if t is not None), default=None)

    def _sweep(self, wanted: list[Known]) -> None:
        """Go through time once: programs come into being, children are asked for."""
        cutoffs = {c.id: self.cutoff(c) for c in wanted}
        timed = sorted((p for p in self.programs.values() if p.at is not None), key=lambda p: (p.at, p.id))
        ranked: dict[int, list[tuple[float, float, str]]] = defaultdict(list)  # by island, the best first
        begun = 0
        for child in sorted((c for c in wanted if cutoffs[c.id] is not None), key=lambda c: (cutoffs[c.id], c.id)):
            while begun < len(timed) and timed[begun].at <= cutoffs[child.id]:
                program, begun = timed[begun], begun + 1
                if program.score is not None:
                    place = (-program.score, program.at, program.id)
                    bisect.insort(ranked[-1 if program.island is None else program.island], place)
            self._best[child.id] = self._choose(child, ranked)
        for child in wanted:
            if cutoffs[child.id] is None:
                line = [p for p in self._ancestors(child) if p.score is not None and self._apart(p, child)]
                self._best[child.id] = [p.id for p in sorted(line, key=lambda p: -p.score)[:TOP]]

    def _choose(self, child: Known, ranked: dict[int, list[tuple[float, float, str]]]) -> list[str]:
        parent = self.programs.get(child.parent_id or "")
        home = next((p.island for p in (parent, child) if p is not None and p.island is not None), -1)
        best = (self.programs[name] for _, _, name in (ranked.get(home) or [])[:LOOKED_AT])
        return list(itertools.islice((p.id for p in best if self._apart(p, child)), TOP))

    def _apart(self, program: Known, child: Known) -> bool:
        """Is `program` neither the child, nor a copy of it, nor made from one of them?"""
        if program.id not in self._span or program.code_hash == child.code_hash:
            return False
        here = self._span[program.id][0]
        first, last = self._span.get(child.id, (0, 0))
        if first <= here < last:
            return False
        # The copies' families do not overlap: only the last one that begins before it can be its own.
        begins, ends = self._copies[child.code_hash]
        near = bisect.bisect_right(begins, here) - 1
        return near < 0 or here >= ends[near]

    def _ancestors(self, program: Known) -> Iterator[Known]:
        """Its parent, that one's parent, and so on, the nearest `CHAIN`; a chain that bites its tail ends there."""
        passed = {program.id}
        while (above := self.programs.get(program.parent_id or "")) is not None and above.id not in passed:
            if len(passed) > CHAIN:
                return
            passed.add(above.id)
            yield above
            program = above


def _spans(programs: dict[str, Known]) -> dict[str, tuple[int, int]]:
    """Numbers by which descent is told: b descends from a, or is a, where a's first number <= b's first number < a's
    second number. Programs whose chain of parents bites its tail have none."""
    children: dict[str, list[str]] = defaultdict(list)
    roots = []
    for program in programs.values():
        if program.parent_id is None or program.parent_id not in programs:
            roots.append(program.id)
        else:
            children[program.parent_id].append(program.id)
    spans: dict[str, tuple[int, int]] = {}
    clock, todo = 0, [(name, False) for name in roots]
    begun: dict[str, int] = {}
    while todo:
        name, left = todo.pop()
        if left:
            spans[name] = (begun[name], clock)
            continue
        begun[name], clock = clock, clock + 1
        todo.append((name, True))
        todo += [(child, False) for child in children.get(name, ())]
    return spans


def _outermost(
    programs: dict[str, Known], spans: dict[str, tuple[int, int]]
) -> dict[str, tuple[list[int], list[int]]]:
    """By code: where the families of the programs of that code begin and end, those within others left out."""
    found: dict[str, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for name in sorted(spans, key=lambda n: spans[n]):
        begins, ends = found[programs[name].code_hash]
        if not ends or spans[name][0] >= ends[-1]:
            begins.append(spans[name][0])
            ends.append(spans[name][1])
    return found


def known(
    name: str, parent_id: str | None, code: str, score: float | None, *, island: int | None, made: float | None,
    logged: float | None, seconds: float | None,
) -> Known:  # fmt: skip
    """`made`: the program's own time stamp. `logged`: when its record was written, which is later. `seconds`: from
    asking to having it; only with `made` does it tell when the child was asked for at the latest."""
    times = [t for t in (made, logged) if t is not None]
    asked = made - seconds if made is not None and seconds is not None and seconds >= 0 else None
    return Known(name, parent_id, score, code_hash(code), island, max(times) if times else None, asked)


def sampler(system: str) -> Callable[..., tuple[str, str]] | None:
    """OpenEvolve's prompt sampler in its stock form, as `build(…) -> (system, user)`; None where it is not installed.

    `system`: the instruction, "" for OpenEvolve's own.
    """
    try:
        from openevolve.config import PromptConfig
        from openevolve.prompt.sampler import PromptSampler
    except ImportError:
        return None
    settings = PromptConfig(**({"system_message": system} if system else {}))
    made = PromptSampler(settings)

    def build(
        *, code: str, metrics: dict[str, Any], artifacts: dict[str, Any], history: list[dict[str, Any]], language: str,
        diff: bool, seed: str,
    ) -> tuple[str, str]:  # fmt: skip
        """`history`: programs with code, metrics, metadata, the best first. Raises what values of odd types make the
        sampler raise."""
        state = random.getstate()
        random.seed(seed)  # it samples from the programs that are not among the best
        try:
            prompt = made.build_prompt(
                current_program=code, parent_program=code, program_metrics=metrics,
                previous_programs=history[: settings.num_top_programs], top_programs=history, inspirations=[],
                language=language, diff_based_evolution=diff, program_artifacts=artifacts or None,
                feature_dimensions=[],
            )  # fmt: skip
        finally:
            random.setstate(state)
        return prompt["system"], prompt["user"]

    return build
