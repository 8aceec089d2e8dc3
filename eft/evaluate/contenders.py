"""Who is compared with whom: scaffolds are kept apart, and the baseline stands in its best form.

Several scaffolds in one set of results: a mutator under another scaffold is another contender, `kto · tournament`, and
only contenders of the same scaffold are compared. Best-of-N has no scaffold and is compared under each of them.
Several baselines of one model are that model in several forms of an edit; the better one is the reference, so that a
tuned model never wins because the untouched one was asked in a form that it cannot write.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from eft.evaluate.results import MutatorInfo, Results, Search

JOINT = " · "
BEST_OF_N = "best_of_n"
METHOD = "method"  # a loop's own control


def scaffold_of(search: Search, results: Results) -> str:
    """The engine of a search, "" for best-of-N and for a loop's own controls, which have none."""
    kinds = {m.name: m.kind for m in results.mutators}
    if search.scaffold == BEST_OF_N or kinds.get(search.mutator) in (BEST_OF_N, METHOD):
        return ""
    declared = results.config.get("scaffold")
    return search.scaffold or (declared if isinstance(declared, str) and declared else "openevolve")


def scaffolds(results: Results) -> tuple[str, ...]:
    """The engines of all searches, sorted."""
    return tuple(sorted({scaffold_of(s, results) for s in results.searches} - {""}))


def separated(results: Results) -> Results:
    """The results with one mutator per scaffold, `name · scaffold`; as they are where there is one scaffold."""
    found = scaffolds(results)
    if len(found) < 2:
        return results
    engines = {m.name: sorted({scaffold_of(s, results) for s in results.searches if s.mutator == m.name})
               for m in results.mutators}  # fmt: skip
    mutators = []
    for scaffold in (*found, ""):
        for m in results.mutators:
            if scaffold in (engines[m.name] or [""]):
                mutators.append(dataclasses.replace(m, name=_name(m.name, scaffold)))
    searches = tuple(
        dataclasses.replace(s, mutator=_name(s.mutator, scaffold_of(s, results))) for s in results.searches
    )
    return dataclasses.replace(results, mutators=tuple(mutators), searches=searches)


def _name(name: str, scaffold: str) -> str:
    return f"{name}{JOINT}{scaffold}" if scaffold else name


def engine(name: str) -> str:
    """The scaffold in a contender's name; "" where there is one scaffold, and for best-of-N."""
    return name.rpartition(JOINT)[2] if JOINT in name else ""


def origin(name: str) -> str:
    """A contender's name without its scaffold."""
    return name.rpartition(JOINT)[0] if JOINT in name else name


def subjects(mutators: Sequence[MutatorInfo]) -> list[MutatorInfo]:
    """The mutators that an evaluation is about, in order: the tuned ones, else the baseline; in a loop with controls of
    its own, else those without a model."""
    about = [m for m in mutators if m.role == "tuned"] or [m for m in mutators if m.role == "baseline"]
    return about or [m for m in mutators if m.kind == "ast" and any(c.kind == METHOD for c in mutators)]


def references(mutators: Sequence[MutatorInfo], merit: Mapping[str, float]) -> list[MutatorInfo]:
    """The baselines that count: of every model (and scaffold) the form with the highest `merit`, the first at a tie."""
    best: dict[tuple[str, str], MutatorInfo] = {}
    for m in mutators:
        if m.role != "baseline":
            continue
        key = (m.model or origin(m.name), engine(m.name))
        if key not in best or merit.get(m.name, float("-inf")) > merit.get(best[key].name, float("-inf")):
            best[key] = m
    return [m for m in mutators if m in best.values()]


def pairings(mutators: Sequence[MutatorInfo], merit: Mapping[str, float] | None = None) -> list[tuple[str, str]]:
    """Which comparisons answer a question: each tuned mutator against the baseline, against the tuned one before it
    (KTO against SFT), against the controls without a model or with another one, and against best-of-N of its own
    replies. Where nothing is tuned, the baseline itself is compared with the controls. A loop's own controls are what
    `ast` is compared with, too."""
    found: list[tuple[str, str]] = []
    about = subjects(mutators)
    bases = references(mutators, merit or {})
    before: dict[str, str] = {}
    for m in about:
        own = engine(m.name)
        if m.role == "baseline" and m not in bases:
            continue
        found += [(m.name, b.name) for b in bases if b is not m and engine(b.name) == own and m.role == "tuned"]
        found += [(m.name, before[own])] if own in before else []
        found += [(m.name, c.name) for c in mutators if c.role == "control" and c is not m and engine(c.name) in (own, "")
                  and (c.of in ("", origin(m.name)) or c.kind == "routed")]  # fmt: skip
        if m.role == "tuned":
            before[own] = m.name
    methods = [c.name for c in mutators if c.kind == METHOD and c.role == "control"]
    return found + [(m.name, c) for m in mutators if m.kind == "ast" and m not in about for c in methods]
