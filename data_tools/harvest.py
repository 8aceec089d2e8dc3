"""Harvest: the logs of searches, of any number and kind, as one table of transitions.

    eft harvest RUN… -o OUT        RUN: a search's folder, a folder of many searches, a trace file, a gateway journal,
                                   rows in the Finch-Collection's schema (Parquet, JSONL, a folder of them), or such a
                                   data set on the hub at a pinned revision: hub:ORG/NAME@REVISION

Writes OUT/transitions.parquet, OUT/replies.parquet (every reply that a journal or a failures file holds, unusable ones
too, with what became of it; data_tools/replies.py), OUT/searches.json (what was found and what was missing, search by
search) and OUT/manifest.json. Nothing is judged here: every child that a model was asked for becomes a row, with what
the logs say of it; `eft label` and `eft clean` judge.

Task, domain, suite role and prompt format of a search come from the `run.json` that our own searches write, else from
the options below, else the folder's name. Bad files are counted and named, and never stop a harvest. Raises EftError
for a RUN that does not exist or holds no logs of a known format, for published rows without a needed column or with an
unknown label, and when not one transition can be found in all of them.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from pydantic import Field, field_validator

from data_tools import harvest_report as told
from data_tools import replies, unusable
from data_tools.find import READERS, Found, find
from data_tools.readers import finch, gateway, hub
from data_tools.readers.files import text
from data_tools.readers.search import Options, Search
from data_tools.source import start
from eft import manifest
from eft.config import StageConfig
from eft.errors import EftError, UsageError
from eft.records import TABLE, Table, Transition, transition_id, write_transitions, writing

SEARCHES = "searches.json"


class Config(StageConfig):
    positional: ClassVar[str] = "runs"

    runs: list[Path] = Field(default_factory=list, description="Folders or files with logs of searches, or hub ids.")
    task: str = Field("", description="Task name, for logs that do not tell (default: the folder's name).")
    domain: str = Field("", description="Domain of the task, for logs that do not tell.")
    role: str = Field("", description="Suite role (train, validation, gate, heldout), for logs that do not tell.")
    release: str = Field("", description="Release of the scaffold, e.g. 0.2.14 (default: told from the logs).")
    diff_pattern: str | None = Field(None, description="The runs' own diff_pattern, where their config set one.")
    rebuild_prompts: bool = Field(
        True, description="Put a prompt together again where none was logged (marked: prompt_source)."
    )
    unusable: bool = Field(
        False, description="Also a row for every reply that the scaffold refused, from a program to itself: negatives."
    )

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
    options = Options(config.task, config.domain, config.role, config.release, config.diff_pattern,
                      config.rebuild_prompts, out)  # fmt: skip
    found = find(inputs(config))

    start(out)
    report: list[Search] = []
    files = [out / TABLE, out / replies.TABLE]
    with writing(files[1], replies.schema()) as table:
        write_transitions(files[0], _rows(found, options, report, table, config.unusable))
    counts = told.total(report) | {"replies": table.count}
    if counts["transitions"] == 0:
        for file in files:
            file.unlink(missing_ok=True)
        logs = "search again with evolution_trace.format: jsonl, include_code: true, buffer_size: 1 " \
               "and a smaller checkpoint_interval: then a killed run loses nothing"  # fmt: skip
        raise EftError("no transition was found in these logs", where=", ".join(map(str, inputs(config))),
                       why="; ".join(f"{s.name}: {told.shortfall(s)}" for s in report[: told.NAMED]),
                       way_out=logs if found.searches or found.journals else "copy the collection again")  # fmt: skip
    manifest.write_json(out / SEARCHES, [told.as_json(s) for s in report])
    told.say(report, counts, SEARCHES)
    manifest.write(
        out, "harvest", config.model_dump(mode="json"), inputs(config), [*files, out / SEARCHES], counts, started
    )
    return out


# ------------------------------------------------------------------------------------------------------------- read


def _rows(
    found: Found, options: Options, report: list[Search], table: Table, refused: bool
) -> Iterator[Transition]:
    """All transitions, one after another; `report` and the `table` of replies are filled on the way. `refused`: those of
    refused replies too."""
    names: set[str] = set()
    left = list(found.journals)
    pairs: set[gateway.Pair] = set()  # edits that scaffolds logged, for the journals that are no search's
    for kind, roots in found.searches:
        search = READERS[kind].read(roots, options)
        _unique(search, names, roots[0])
        mine = [j for j in left if _belongs(j, search)]
        left = [j for j in left if j not in mine]
        own: set[gateway.Pair] = set()
        journals = [replies.Journal(j) for j in mine]
        total = 0
        programs = unusable.Programs()
        for total, row in enumerate(search.rows, 1):  # noqa: B007  the last number is the count
            if found.journals:
                own.add(gateway.pair(row))
            joined = _joined(row, journals)
            _recount(search, row, joined)
            if refused:
                programs.add(joined)
            yield joined
        _settle(search, total)
        report.append(search)
        pairs |= own
        useless: list[dict] = []
        for journal in journals:
            useless += _add(table, search, journal.replies(search), keep=refused)
        if not journals:
            useless += _add(table, search, replies.refused(search.refused, search), keep=refused)
        for row in unusable.rows(useless, programs, search):
            search.counts["transitions"] += 1
            search.counts["refused_replies"] = search.counts.get("refused_replies", 0) + 1
            yield row
        for journal in mine:
            yield from _proposals(journal, options, report, names, known=own, ours=search.about, name=search.name)
    for path in left:  # the scaffold's own logs are elsewhere, or it is one that we have no reader for
        yield from _proposals(path, options, report, names, known=pairs)
        _add(table, report[-1], replies.Journal(path).replies(report[-1]))
    for search, files in found.collections:
        _unique(search, names, search.roots[0])
        yield from finch.rows(search, files, options)
        report.append(search)


def _joined(row: Transition, journals: list[replies.Journal]) -> Transition:
    """The row with what the first journal that knows its reply says of it."""
    for journal in journals:
        if (reply := journal.of(row)) is not None:
            return replies.with_reply(row, reply)
    return row


_COUNTED = {"with_prompt": lambda r: r.prompt_source == "logged", "with_response": lambda r: bool(r.response),
            "with_reasoning": lambda r: bool(r.reasoning), "prompts_rebuilt": lambda r: r.prompt_source == "rebuilt",
            **{f"replay_{s}": lambda r, s=s: r.replay == s for s in ("match", "mismatch", "unknown")}}  # fmt: skip


def _recount(search: Search, row: Transition, joined: Transition) -> None:
    """Keep book of what the journal adds: the reader's own counts, which are whole at the end, know nothing of it."""
    for name, holds in _COUNTED.items():
        search.gains[name] += holds(joined) - (holds(row) if name != "with_reasoning" else 0)


def _settle(search: Search, transitions: int) -> None:
    """The rows are through: the counts are what the reader counted, and what the journal added."""
    for name, number in search.gains.items():
        if number or name == "with_reasoning":
            search.counts[name] = search.counts.get(name, 0) + number
    search.counts |= {"transitions": transitions, "bad_files": len(search.problems)}


def _add(table: Table, search: Search, rows: Iterator[dict], *, keep: bool = False) -> list[dict]:
    """Write replies, and count what became of them. `keep`: return those that the scaffold refused."""
    outcomes: Counter[str] = Counter()
    kept = []
    for row in rows:
        outcomes[row["outcome"]] += 1
        table.add(row)
        if keep and row["outcome"] in unusable.REFUSED:
            kept.append(row)
    if outcomes:
        search.remarks.append(f"replies: {replies.outcomes(outcomes)}")
    return kept


def _proposals(
    journal: Path, options: Options, report: list[Search], names: set[str], **about_it
) -> Iterator[Transition]:
    search = gateway.read(journal, options, **about_it)
    if not about_it.get("name"):
        _unique(search, names, journal)
    total = 0
    for total, row in enumerate(search.rows, 1):  # noqa: B007
        yield row
    search.counts["transitions"] = total
    report.append(search)


def _unique(search: Search, names: set[str], root: Path) -> None:
    """Two runs of one name (many folders are called `run1`) get their parent folder's name in front, then a number."""
    parent = (root if root.is_dir() else root.parent).resolve().parent.name
    longer = f"{text(parent)}/{search.name}"
    choices = itertools.chain([search.name, longer], (f"{longer}#{n}" for n in itertools.count(2)))
    name = next(n for n in choices if n not in names)
    names.add(name)
    if name != search.name:
        if isinstance(search.rows, list):  # rows that are made one by one take the new name by themselves
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
