"""Harvest: the logs of searches, of any number and kind, as one table of transitions.

    eft harvest RUN… -o OUT        RUN: a search's folder, a folder of many searches, a trace file, a gateway journal,
                                   rows in the Finch-Collection's schema (Parquet, JSONL, a folder of them), or such a
                                   data set on the hub at a pinned revision: hub:ORG/NAME@REVISION

Writes OUT/transitions.parquet, OUT/searches.json (what was found and what was missing, search by search) and
OUT/manifest.json. Nothing is judged here: every child that a model was asked for becomes a row, with what the logs say
of it; `eft label` and `eft clean` judge.

Task, domain, suite role and prompt format of a search come from the `run.json` that our own searches write, else from
the options below, else the folder's name. Bad files are counted and named, and never stop a harvest. Raises EftError
for a RUN that does not exist or holds no logs of a known format, for published rows without a needed column or with an
unknown label, and when not one transition can be found in all of them.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pydantic import Field, field_validator

from data_tools.readers import finch, gateway, hub, openevolve
from data_tools.readers.files import Problems, text
from data_tools.readers.search import Options, Search, about
from data_tools.source import start
from eft import manifest
from eft.config import StageConfig
from eft.errors import EftError, UsageError
from eft.records import TABLE, Transition, transition_id, write_transitions

SEARCHES = "searches.json"
NAMED = 5  # bad files named on the terminal; all of them are in searches.json
SHOWN = 12  # searches told of on the terminal


class Config(StageConfig):
    positional: ClassVar[str] = "runs"

    runs: list[Path] = Field(default_factory=list, description="Folders or files with logs of searches, or hub ids.")
    task: str = Field("", description="Task name, for logs that do not tell (default: the folder's name).")
    domain: str = Field("", description="Domain of the task, for logs that do not tell.")
    role: str = Field("", description="Suite role (train, validation, gate, heldout), for logs that do not tell.")
    release: str = Field("", description="Release of the scaffold, e.g. 0.2.14 (default: told from the logs).")
    diff_pattern: str | None = Field(None, description="The runs' own diff_pattern, where their config set one.")

    @field_validator("runs")
    @classmethod
    def _pinned(cls, runs: list[Path]) -> list[Path]:
        for run in filter(hub.is_hub, runs):  # a recipe says so before hours of work
            hub.parse(run)
        return runs


def inputs(config: Config) -> list[Path]:
    return [p if hub.is_hub(p) else config.path(p) for p in config.runs]


def run(config: Config) -> Path:
    started, out = time.time(), config.out()
    if not config.runs:
        raise UsageError("no run was named", way_out="eft harvest RUN… -o OUT")
    if any(out.resolve() == p.resolve() for p in inputs(config)):
        raise UsageError("the output folder is one of the runs", where=out, way_out="give another -o OUT")
    options = Options(config.task, config.domain, config.role, config.release, config.diff_pattern)
    found = find(inputs(config))

    start(out)
    report: list[Search] = []
    write_transitions(out / TABLE, _rows(found, options, report))
    counts = total(report)
    if counts["transitions"] == 0:
        (out / TABLE).unlink(missing_ok=True)
        logs = "search again with evolution_trace.format: jsonl, include_code: true, buffer_size: 1 " \
               "and a smaller checkpoint_interval: then a killed run loses nothing"  # fmt: skip
        raise EftError("no transition was found in these logs", where=", ".join(map(str, inputs(config))),
                       why="; ".join(f"{s.name}: {_shortfall(s)}" for s in report[:NAMED]),
                       way_out=logs if found.searches or found.journals else "copy the collection again")  # fmt: skip
    manifest.write_json(out / SEARCHES, [_as_json(s) for s in report])
    _say(report, counts)
    manifest.write(
        out, "harvest", config.model_dump(mode="json"), inputs(config), [out / TABLE, out / SEARCHES], counts, started
    )
    return out


# ------------------------------------------------------------------------------------------------------------- find


@dataclass
class Found:
    """What is to be read. `searches`: each a list of roots (a resumed run may have several); `collections`: published
    rows, with their files."""

    searches: list[list[Path]]
    journals: list[Path]
    collections: list[tuple[Search, list[Path]]]


def find(paths: list[Path]) -> Found:
    """The searches, gateway journals and collections under `paths`; a hub id among them is downloaded.

    Raises EftError for a path that does not exist or holds nothing that a reader knows.
    """
    # resolved -> as given, so that nothing is read twice
    seen: dict[str, dict[Path, Path]] = {"search": {}, "journal": {}, "rows": {}}
    files: dict[Path, list[Path]] = defaultdict(list)  # of a collection, by its root
    origins: dict[Path, str] = {}
    for named in paths:
        path = hub.fetch(named) if hub.is_hub(named) else named
        if not path.exists():
            raise EftError("this run does not exist", where=path)
        before = sum(map(len, seen.values()))
        found = False
        for kind, place in _walk(path):
            found = True
            if kind == "rows" and place.resolve() not in seen[kind]:
                root = place if path.is_file() else path if hub.is_hub(named) else place.parent
                files[root].append(place)
                origins[root] = str(named) if hub.is_hub(named) else ""
            seen[kind].setdefault(place.resolve(), place)
        if not found:
            empty = path.is_dir() and not any(path.iterdir()) or path.is_file() and path.stat().st_size == 0
            why = finch.why_not(path) or f"nothing in it looks like a log of {KNOWN}"
            raise EftError("there are no search logs here", where=named, why="it is empty" if empty else why,
                           way_out="name the folder that an OpenEvolve run wrote (the one with checkpoints/, logs/ or "
                                   "evolution_trace.*), a gateway journal, or the Finch-Collection")  # fmt: skip
        if sum(map(len, seen.values())) == before:
            print(f"harvest: {path} was named twice", file=sys.stderr)
    for root in files:
        finch.check(files[root])
    # A root inside another one is part of it.
    roots, journals = seen["search"], seen["journal"]
    top = [r for r in roots if not any(r != other and r.is_relative_to(other) for other in roots)]
    collections = [(finch.search_of(root, origins[root]), files[root]) for root in sorted(files)]
    return Found(_same_search([roots[r] for r in sorted(top)]), [journals[j] for j in sorted(journals)], collections)


KNOWN = "OpenEvolve or the gateway, or like rows of the Finch-Collection"


def _walk(path: Path) -> Iterator[tuple[str, Path]]:
    """("search", folder or trace file), ("journal", file) and ("rows", file of a collection) at or below `path`. Links
    to folders are not followed."""
    if path.is_file():
        if gateway.is_journal(path):
            yield "journal", path
        elif finch.claims(path):
            yield "rows", path
        elif openevolve.is_trace(path):
            yield "search", path
        return
    claimed: list[Path] = []
    for place, folders, files in os.walk(path):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        folder = Path(place)
        published = finch.shards(folder, set(files))
        yield from (("rows", file) for file in published)
        for name in sorted(files):
            if name.endswith(".jsonl") and gateway.is_journal(folder / name):
                yield "journal", folder / name
        # What lies below a search belongs to it; the walk goes on only to find journals and rows.
        if not any(folder.is_relative_to(c) for c in claimed) and openevolve.claims(folder, set(folders), set(files)):
            claimed.append(folder)
            yield "search", folder


def _same_search(roots: list[Path]) -> list[list[Path]]:
    """Roots grouped into searches: a run that was resumed in another folder copied its programs, ids and all."""
    if len(roots) < 2:
        return [[r] for r in roots]
    owner: dict[str, int] = {}
    group = list(range(len(roots)))

    def top(i: int) -> int:
        while group[i] != i:
            i = group[i]
        return i

    for i, root in enumerate(roots):
        if about(root):  # ours: one folder each, and seeded, so that two of them may well use the same ids
            continue
        for program in openevolve.ids_of(root):
            j = owner.setdefault(program, i)
            group[max(top(i), top(j))] = min(top(i), top(j))
    joined: dict[int, list[Path]] = defaultdict(list)
    for i, root in enumerate(roots):
        joined[top(i)].append(root)
    # The run's own folder names the search, not a db_path folder beside it.
    return [
        sorted(group, key=lambda r: not ((r / "checkpoints").is_dir() or (r / "logs").is_dir()))
        for group in joined.values()
    ]


# ------------------------------------------------------------------------------------------------------------- read


def _rows(found: Found, options: Options, report: list[Search]) -> Iterator[Transition]:
    """All transitions, one search in memory at a time, of a collection a few rows; `report` is filled on the way."""
    names: set[str] = set()
    left, pairs = list(found.journals), set()
    for roots in found.searches:
        search = openevolve.read(roots, options)
        _unique(search, names, roots[0])
        mine = [j for j in left if _belongs(j, search)]
        for journal in mine:
            left.remove(journal)
            search.rows = gateway.add_reasoning(search.rows, journal, Problems())
        search.counts["with_reasoning"] = sum(bool(r.reasoning) for r in search.rows)
        own = {gateway.pair(r) for r in search.rows} if found.journals else set()
        pairs |= own
        yield from _handed_over(search, report)
        for journal in mine:
            yield from _proposals(journal, options, report, names, known=own, ours=search.about, name=search.name)
    for journal in left:  # the scaffold's own logs are elsewhere, or it is one that we have no reader for
        yield from _proposals(journal, options, report, names, known=pairs)
    for search, files in found.collections:
        _unique(search, names, search.roots[0])
        yield from finch.rows(search, files, options)
        report.append(search)


def _proposals(
    journal: Path, options: Options, report: list[Search], names: set[str], **about_it
) -> Iterator[Transition]:
    search = gateway.read(journal, options, **about_it)
    if not about_it.get("name"):
        _unique(search, names, journal)
    yield from _handed_over(search, report)


def _handed_over(search: Search, report: list[Search]) -> Iterator[Transition]:
    """The rows, which are then let go: the report needs only the counts."""
    search.counts["transitions"] = len(search.rows)
    report.append(search)
    rows, search.rows = search.rows, []
    yield from rows


def _unique(search: Search, names: set[str], root: Path) -> None:
    """Two runs of one name (many folders are called `run1`) get their parent folder's name in front, then a number."""
    parent = (root if root.is_dir() else root.parent).resolve().parent.name
    longer = f"{text(parent)}/{search.name}"
    choices = itertools.chain([search.name, longer], (f"{longer}#{n}" for n in itertools.count(2)))
    name = next(n for n in choices if n not in names)
    names.add(name)
    if name != search.name:
        search.rows = [r.replace(run=name, id=transition_id(name, r.parent_id, r.child_id),
                                 task=name if r.task == search.name else r.task) for r in search.rows]  # fmt: skip
        search.name = name


def _belongs(journal: Path, search: Search) -> bool:
    """A journal is a search's when it lies in its folder, or bears the search's id."""
    here = journal.resolve()
    if any(here.is_relative_to(root.resolve()) for root in search.roots):
        return True
    ours = text(search.about.get("search"))
    return journal.stem == ours if ours else any(journal.stem == root.name for root in search.roots)


# ----------------------------------------------------------------------------------------------------------- report


def total(report: list[Search]) -> dict[str, int]:
    """The counts of all searches together."""
    counts: Counter[str] = Counter(searches=len({s.name for s in report}), transitions=0)
    for search in report:
        counts.update(search.counts)
    counts["cut_off"] = sum(any("cut off" in n for n in s.notes) for s in report)
    counts.pop("logs", None)
    counts.pop("children", None)
    return dict(counts)


def _as_json(search: Search) -> dict:
    return {"name": search.name, "scaffold": search.scaffold, "release": search.release,
            "roots": [str(r) for r in search.roots], "about": search.about, "counts": search.counts,
            "failures": search.failures, "notes": search.remarks + search.notes,
            "bad_files": search.problems.found}  # fmt: skip


def _shortfall(search: Search) -> str:
    if search.notes and not search.counts.get("programs") and search.scaffold != "finch":
        return search.notes[0]
    made = search.counts.get("programs") or search.counts.get("replies") or search.counts.get("rows", 0)
    kind = "replies, no evaluated proposals" if "replies" in search.counts else "programs (seeds and copies)"
    kind = "rows" if "rows" in search.counts else kind
    bad = (
        f", {len(search.problems)} files could not be read (first: {': '.join(search.problems.found[0])})"
        if search.problems
        else ""
    )
    return f"{made} {kind}{bad}"


def _say(report: list[Search], counts: dict[str, int]) -> None:
    """What was found, search by search (the first ones, and all that something is amiss with), on standard error."""

    def say(line: str) -> None:
        print(line, file=sys.stderr)

    shown = 0
    for s in report:
        c, amiss = s.counts, bool(s.notes or s.problems)
        if s.scaffold == "gateway" and not c["proposals"] and not amiss:
            continue
        if shown >= SHOWN and not (amiss and shown < 3 * SHOWN):
            continue
        shown += 1
        if s.scaffold == "gateway":
            say(f"{s.name} (gateway journal): {c['transitions']} proposals as transitions; "
                f"{c['proposals_in_scaffold']} more are the scaffold's own children")  # fmt: skip
        elif s.scaffold == "finch":
            say(f"{s.name} (published rows): {c['rows']} rows of {c['tasks']} tasks; {_kept(c)}")
        else:
            release = f" {s.release}" if s.release else ""
            say(f"{s.name} ({s.scaffold}{release}): {_found(c)}")
        for remark in s.remarks:
            say(f"  {remark}")
        for reason, number in list(s.failures.items())[:NAMED]:
            say(f"  failed x{number}: {reason}")
        for note in s.notes:
            say(f"  warning: {note}")
        for where, why in s.problems.found[:NAMED]:
            say(f"  bad file: {where}: {why}")
        if len(s.problems) > NAMED:
            say(f"  … and {len(s.problems) - NAMED} more bad files, see {SEARCHES}")
    if shown < len(report):
        say(f"… and {len(report) - shown} more logs, see {SEARCHES}")
    if counts["searches"] > 1:
        say(f"all of them: {_found(Counter({'failed_iterations': 0, **counts, 'children': counts['transitions']}))}")
    say(f"harvest: {counts['transitions']} transitions from {counts['searches']} searches")


def _found(c: dict[str, int]) -> str:
    """What a search's logs had, in words."""
    failed = f"{c['failed_iterations']} failed" if "failed_iterations" in c else "failed ones not logged"
    recovered = f" ({c['parent_recovered']} recovered from the prompt)" if c["parent_missing"] else ""
    return (f"{c['iterations']} iterations, {failed}, {c['children']} children of {c['programs']} programs; "
            f"{_kept(c, recovered)}")  # fmt: skip


def _kept(c: dict[str, int], recovered: str = "") -> str:
    replayed = ", ".join(f"{c[f'replay_{state}']} {state}" for state in ("match", "mismatch", "unknown"))
    return (f"{c['with_prompt']} with prompt, {c['with_response']} with response; "
            f"parent missing {c['parent_missing']}{recovered}; replay: {replayed}")  # fmt: skip
