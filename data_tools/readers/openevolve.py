"""OpenEvolve logs, 0.0.x to 0.4.x: the union of everything that a search left behind.

No single place holds a whole search: a checkpoint has only the programs alive at that moment, the trace lacks every
child whose parent had been deleted by then (often the new best), a killed run loses the trace's buffer. So all
checkpoints (nested and resumed ones too), all traces, `db_path` folders and the run log are read together and joined by
program id: the trace's word before the newest checkpoint's, before older ones', before a `db_path` folder's; each field
from the first place that has it. Artifacts are read from the records and from the files in `artifacts/<program id>/`.

Seeds, migrants and the copies that fill empty islands are programs, but nobody asked a model for them: no transitions.
Whether the child is what the release makes of the logged reply is checked for every row (`replay`), with the run's own
`diff_pattern`, `enforce_evolve_blocks` and changes-description mode where a config.yaml beside the logs sets them.

The rows come one by one, and texts beyond a fixed amount wait on the disk (spool.py).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from data_tools.readers import openevolve_config, runlog
from data_tools.readers.files import (
    Problems,
    Unreadable,
    first_object,
    integer,
    json_lines,
    mapping,
    read_object,
    text,
    walk,
)
from data_tools.readers.openevolve_programs import LargeArtifacts, gather, release_of
from data_tools.readers.openevolve_rows import Maker
from data_tools.readers.search import GENERIC, Options, Refused, Search, about, run_name, tell_damage
from data_tools.readers.spool import Pieces
from eft.records import Transition

CHECKPOINT = re.compile(r"checkpoint_(\d{1,18})$")
TRACE = re.compile(r"evolution_trace(?!.*_failures).*\.(jsonl|jsonl\.gz|json|hdf5|h5)$")
FAILURES = re.compile(r"_failures\.jsonl(\.gz)?$")
TRACE_KEYS = {"parent_id", "child_id", "child_metrics"}
ARTIFACTS = "artifacts"
EVALUATIONS = "evaluations.jsonl"  # in a search of ours: what its evaluator said of each program


# ------------------------------------------------------------------------------------------------------------ find


def claims(folder: Path, folders: set[str], files: set[str]) -> bool:
    """Is `folder` the top of one search? (`folders`, `files`: the names in it.)"""
    if any(CHECKPOINT.match(name) for name in folders) or (folder.name == "programs" and _has_programs(folder)):
        return True
    if "programs" in folders and _has_programs(folder / "programs"):
        return True
    if "checkpoints" in folders and any(CHECKPOINT.match(p.name) for p in _listed(folder / "checkpoints")):
        return True
    if "logs" in folders and any(re.match(r"openevolve_.*\.log$", p.name) for p in _listed(folder / "logs")):
        return True
    if any(is_log(folder / name) for name in sorted(files)):
        return True
    return "run.json" in files and bool(about(folder))


def is_log(path: Path) -> bool:
    """Is this file an evolution trace? By its name, else (jsonl only) by its first record."""
    if TRACE.match(path.name):
        return True
    if FAILURES.search(path.name) or not path.name.endswith((".jsonl", ".jsonl.gz")):
        return False
    first = set(first_object(path))
    return first >= TRACE_KEYS and "improvement_label" not in first  # else it is published data, see finch.py


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _has_programs(folder: Path) -> bool:
    try:
        with os.scandir(folder) as entries:
            return any(e.name.endswith(".json") for e in entries)
    except OSError:
        return False


@dataclass
class Files:
    """The files of one search. `programs`: (checkpoint number, or -1 for a db_path folder; folder; names of files)."""

    programs: list[tuple[int, Path, list[str]]] = field(default_factory=list)
    traces: list[Path] = field(default_factory=list)
    failures: list[Path] = field(default_factory=list)
    logs: list[Path] = field(default_factory=list)
    checkpoints: list[Path] = field(default_factory=list)
    configs: list[Path] = field(default_factory=list)
    artifacts: list[Path] = field(default_factory=list)  # folders of large artifacts


def files_of(roots: list[Path], problems: Problems) -> Files:
    """Everything under the roots that tells of the search. Links to folders, and out of a root, are not followed."""
    found = Files()
    for root in roots:
        if root.is_file():
            found.traces.append(root)
            continue
        for folder, folders, names in walk(root, problems, skip=frozenset({ARTIFACTS})):
            if ARTIFACTS in folders:
                found.artifacts.append(folder / ARTIFACTS)
            if folder.name == "programs":
                number = next((int(m[1]) for p in folder.parents if (m := CHECKPOINT.match(p.name))), -1)
                found.programs.append((number, folder, [n for n in names if n.endswith(".json")]))
                continue
            if CHECKPOINT.match(folder.name):
                found.checkpoints.append(folder)
            for name in names:
                path = folder / name
                if name.endswith(".log"):
                    found.logs.append(path)
                elif name == openevolve_config.NAME:
                    found.configs.append(path)
                elif FAILURES.search(name):
                    found.failures.append(path)
                elif is_log(path):
                    found.traces.append(path)
        if root.name in GENERIC:  # OpenEvolve's default is ./artifacts, beside the output folder
            found.artifacts.append(root.parent / ARTIFACTS)
    found.programs.sort(key=lambda item: (-item[0], str(item[1])))
    return found


def ids_of(root: Path) -> set[str]:
    """The program ids that a root mentions, cheaply: whoever shares one is part of the same search."""
    found = files_of([root], Problems())
    ids = {name[:-5] for _, _, names in found.programs for name in names}
    for trace in found.traces:
        if trace.name.endswith((".jsonl", ".jsonl.gz")):
            ids |= {text(r.get("child_id")) for r in json_lines(trace, Problems())}
    return ids - {""}


# ----------------------------------------------------------------------------------------------------------- read


def read(roots: list[Path], options: Options) -> Search:
    """One search from its roots (several where a resumed run went on in another folder)."""
    ours = next((a for a in map(about, roots) if a), {})
    search = Search(text(ours.get("search")) or run_name(roots[0]), roots, "openevolve", about=ours)
    found = files_of(roots, search.problems)
    tell_damage(search)
    search.rows = _rows(search, found, options)
    search.refused = _refused(found.failures)
    return search


def _rows(search: Search, found: Files, options: Options) -> Iterator[Transition]:
    """The rows one by one; release, counts, failures and notes of the search are there at the end."""
    base = [r if r.is_dir() else r.parent for r in search.roots]
    log = runlog.read(found.logs)
    last, keys = _checkpoint_metadata(found.checkpoints, search.problems)
    pieces = Pieces(options.folder)
    try:
        programs = [(folder, names) for _, folder, names in found.programs]
        seen = gather(found.traces, programs, search.problems, base, pieces)
        search.release = options.release or text(search.about.get("scaffold_release")) or release_of(seen, keys)
        config = openevolve_config.read(found.configs, search.roots)
        artifacts = LargeArtifacts(found.artifacts, search.problems)
        maker = Maker(pieces, search, options, config, artifacts, _measured(search))
        iterations = set()
        for row in maker.rows():
            iterations.add(row.iteration)
            yield row
        search.failures = log.reasons() or _failure_reasons(found.failures, search.problems)
        search.counts = {
            "iterations": log.iterations if log.files else max([last, *iterations]),
            **({"failed_iterations": sum(search.failures.values())} if log.files or found.failures else {}),
            **maker.counted(),
            "bad_files": len(search.problems),
            "logs": len(log.files),
            "lost": sum(name not in pieces for name in log.made),
        }
    finally:
        pieces.close()
    search.notes += _notes(search, found, log, len(iterations))


def _measured(search: Search) -> dict[str, dict]:
    """All metrics of the programs of our own searches, by code hash: OpenEvolve is told fewer of them."""
    measured: dict[str, dict] = {}
    for root in search.roots if search.about else ():
        if (root / EVALUATIONS).is_file() and not (root / EVALUATIONS).is_symlink():
            for record in json_lines(root / EVALUATIONS, search.problems):
                task, _, code = text(record.get("key")).partition("\0")
                if task == search.about.get("task") and len(measured) < runlog.PROGRAMS:
                    measured[code] = mapping(record.get("metrics"))
    return measured


def _checkpoint_metadata(folders: list[Path], problems: Problems) -> tuple[int, set[str]]:
    """The last iteration that any checkpoint tells of, and the keys of the metadata files."""
    last, keys = 0, set()
    for folder in folders:
        if (folder / "metadata.json").is_file():
            try:
                value = read_object(folder / "metadata.json")
            except Unreadable as e:
                problems.add(folder / "metadata.json", e)
                continue
            last, keys = max(last, integer(value.get("last_iteration"), 0)), keys | set(value)
    return last, keys


def _failure_reasons(files: list[Path], problems: Problems) -> dict[str, int]:
    """Failed iterations by reason, from `…_failures.jsonl` (0.4.1), for searches without a log."""
    log = runlog.RunLog()
    for path in files:
        for record in json_lines(path, problems):
            log.fail(text(record.get("error")) or "unknown error")
    return log.reasons()


def _refused(files: list[Path]) -> Iterator[Refused]:
    """The replies of failed iterations, from `…_failures.jsonl`."""
    for path in files:
        for record in json_lines(path, Problems()):  # what is wrong with the file is told by the failure reasons
            prompt, usage = mapping(record.get("prompt")), mapping(record.get("token_usage"))
            response = record.get("llm_response")
            yield Refused(
                integer(record.get("iteration"), -1), text(record.get("error")), text(prompt.get("system")),
                text(prompt.get("user")), text(response) if isinstance(response, str) else None,
                text(usage.get("model")), integer(usage.get("prompt_tokens"), -1),
                integer(usage.get("completion_tokens"), -1),
            )  # fmt: skip


def _came_to_its_end(search: Search, log: runlog.RunLog) -> bool:
    """Whether a run whose log has no word of completion was finished all the same: all iterations that it set out to do
    are there, or (our own searches, which quieten the log) its result is."""
    if any((root / "result.json").is_file() for root in search.roots):
        return bool(search.about)
    return 0 < log.planned <= log.iterations


def _notes(search: Search, found: Files, log: runlog.RunLog, with_child: int) -> list[str]:
    """What a user must know about this search's logs."""
    notes, counts = [], search.counts
    if not found.programs and not found.traces:
        if not log.files:
            return ["nothing but run.json was written: the search did not start, or its logs were removed"]
        end = "" if log.finished else "; the run was cut off before it wrote a trace or a checkpoint"
        return [f"nothing but a log was written: {counts['iterations']} iterations in it, {len(log.made)} children "
                f"made, {counts.get('failed_iterations', 0)} iterations failed{end}"]  # fmt: skip
    if log.files and not log.finished and not _came_to_its_end(search, log):
        planned = f" of {log.planned}" if log.planned else ""
        notes.append(f"the run was cut off: its log ends after {counts['iterations']}{planned} iterations, "
                     "without a word of completion")  # fmt: skip
    if counts["lost"]:
        notes.append(f"{counts['lost']} of {len(log.made)} children in the log never reached the disk "
                     "(a lost trace buffer, or no checkpoint in time)")  # fmt: skip
    if not log.files and not found.failures:
        empty = counts["iterations"] - with_child
        notes.append(f"no run log: {empty} of {counts['iterations']} iterations left no child, nobody knows why")
    if counts.get("replay_mismatch"):
        notes.append(f"{counts['replay_mismatch']} children are not what their reply makes of their parent")
    return notes
