"""OpenEvolve logs, 0.0.x to 0.4.x: the union of everything that a search left behind.

No single place holds a whole search: a checkpoint has only the programs alive at that moment, the trace lacks every
child whose parent had been deleted by then (often the new best), a killed run loses the trace's buffer. So all
checkpoints (nested and resumed ones too), all traces, `db_path` folders and the run log are read together and joined by
program id: the trace's word before the newest checkpoint's, before older ones', before a `db_path` folder's; each field
from the first place that has it.

Seeds, migrants and the copies that fill empty islands are programs, but nobody asked a model for them: no transitions.
Whether the child is what the release makes of the logged reply is checked for every row (`replay`).

Limits: large artifacts kept in files are not read (the inline ones are); changes-description mode is not replayed.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from data_tools.readers import runlog
from data_tools.readers.files import Problems, Unreadable, first_object, integer, json_lines, mapping, read_object, text
from data_tools.readers.openevolve_programs import gather, release_of
from data_tools.readers.openevolve_rows import rows_of
from data_tools.readers.search import Options, Search, about, damage, run_name
from eft import edits

CHECKPOINT = re.compile(r"checkpoint_(\d+)$")
TRACE = re.compile(r"evolution_trace(?!.*_failures).*\.(jsonl|jsonl\.gz|json|hdf5|h5)$")
FAILURES = re.compile(r"_failures\.jsonl(\.gz)?$")
TRACE_KEYS = {"parent_id", "child_id", "child_metrics"}


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
    if any(is_trace(folder / name) for name in sorted(files)):
        return True
    return "run.json" in files and bool(about(folder))


def is_trace(path: Path) -> bool:
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
    return any(p.suffix == ".json" for p in _listed(folder))


@dataclass
class Files:
    """The files of one search. `programs`: (checkpoint number, or -1 for a db_path folder; file)."""

    programs: list[tuple[int, Path]] = field(default_factory=list)
    traces: list[Path] = field(default_factory=list)
    failures: list[Path] = field(default_factory=list)
    logs: list[Path] = field(default_factory=list)
    checkpoints: list[Path] = field(default_factory=list)
    configs: list[Path] = field(default_factory=list)


def files_of(roots: list[Path]) -> Files:
    """Everything under the roots that tells of the search. Links out of a root are not followed."""
    found = Files()
    for root in roots:
        if root.is_file():
            found.traces.append(root)
            continue
        for place, folders, names in os.walk(root):
            folders.sort()
            folder = Path(place)
            if folder.name == "programs":
                number = next((int(m[1]) for p in folder.parents if (m := CHECKPOINT.match(p.name))), -1)
                found.programs += [(number, folder / n) for n in sorted(names) if n.endswith(".json")]
                continue
            if CHECKPOINT.match(folder.name):
                found.checkpoints.append(folder)
            for name in sorted(names):
                path = folder / name
                if name.endswith(".log"):
                    found.logs.append(path)
                elif name == "config.yaml":
                    found.configs.append(path)
                elif FAILURES.search(name):
                    found.failures.append(path)
                elif is_trace(path):
                    found.traces.append(path)
    found.programs.sort(key=lambda item: (-item[0], str(item[1])))
    return found


def ids_of(root: Path) -> set[str]:
    """The program ids that a root mentions, cheaply: whoever shares one is part of the same search."""
    found = files_of([root])
    ids = {path.stem for _, path in found.programs}
    for trace in found.traces:
        if trace.name.endswith((".jsonl", ".jsonl.gz")):
            ids |= {text(r.get("child_id")) for r in json_lines(trace, Problems())}
    return ids - {""}


# ----------------------------------------------------------------------------------------------------------- read


def read(roots: list[Path], options: Options) -> Search:
    """One search from its roots (several where a resumed run went on in another folder)."""
    found = files_of(roots)
    ours = next((a for a in map(about, roots) if a), {})
    search = Search(text(ours.get("search")) or run_name(roots[0]), roots, "openevolve", about=ours)
    for root in roots:
        if torn := damage(root):
            search.problems.add(*torn)
            search.notes.append(f"{torn[0].name} cannot be read, so the suite role of these rows is not known")
    base = [r if r.is_dir() else r.parent for r in roots]
    pieces, seen = gather(found.traces, [path for _, path in found.programs], search.problems, base)
    last, keys = _checkpoint_metadata(found.checkpoints, search.problems)
    log = runlog.read(found.logs)
    search.release = options.release or text(ours.get("scaffold_release")) or release_of(seen, keys)
    pattern = options.diff_pattern or _diff_pattern(found.configs)

    search.rows, counts = rows_of(pieces, search, options, pattern)
    search.failures = log.reasons() or _failure_reasons(found.failures, search.problems)
    search.counts = {
        "iterations": log.iterations if log.files else max([last, *(r.iteration for r in search.rows)], default=0),
        **({"failed_iterations": sum(search.failures.values())} if log.files or found.failures else {}),
        **counts,
        "bad_files": len(search.problems),
        "logs": len(log.files),
        "lost": len(set(log.made) - set(pieces)),
    }
    search.notes = _notes(search, found, log)
    return search


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


def _diff_pattern(configs: list[Path]) -> str | None:
    """The run's own `diff_pattern`, where a config beside the logs sets one that works."""
    import yaml

    for path in configs:
        try:
            value = mapping(yaml.safe_load(path.read_text(encoding="utf-8", errors="replace"))).get("diff_pattern")
            if isinstance(value, str) and re.compile(value).groups >= 2:
                return None if value == STANDARD_PATTERN else value
        except (OSError, yaml.YAMLError, re.error, RecursionError, ValueError):
            continue
    return None


# What OpenEvolve writes into its config by default; edits.py has a faster, equal way to find these blocks.
STANDARD_PATTERN = rf"{edits.SEARCH}\n(.*?){edits.DIVIDER}\n(.*?){edits.REPLACE}"


def _failure_reasons(files: list[Path], problems: Problems) -> dict[str, int]:
    """Failed iterations by reason, from `…_failures.jsonl` (0.4.1), for searches without a log."""
    log = runlog.RunLog()
    for path in files:
        for record in json_lines(path, problems):
            log.failures.append((integer(record.get("iteration"), 0), text(record.get("error")) or "unknown error"))
    return log.reasons()


def _came_to_its_end(search: Search, log: runlog.RunLog) -> bool:
    """Whether a run whose log has no word of completion was finished all the same: all iterations that it set out to do
    are there, or (our own searches, which quieten the log) its result is."""
    if any((root / "result.json").is_file() for root in search.roots):
        return bool(search.about)
    return 0 < log.planned <= log.iterations


def _notes(search: Search, found: Files, log: runlog.RunLog) -> list[str]:
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
        empty = counts["iterations"] - len({r.iteration for r in search.rows})
        notes.append(f"no run log: {empty} of {counts['iterations']} iterations left no child, nobody knows why")
    if counts.get("replay_mismatch"):
        notes.append(f"{counts['replay_mismatch']} children are not what their reply makes of their parent")
    return notes
