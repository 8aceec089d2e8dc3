"""SkyDiscover: checkpoints that look like OpenEvolve's from outside, with `solution` instead of `code`.

The union of all checkpoints of a run, the newest first, filled up by older ones. Artifacts stand in the program file;
`other_context_ids` are the programs that were shown beside the parent. Runs before its pull request 62 have failed
programs stored with a `combined_score` of 0: where the logs tell (`failed_attempts`, a traceback among the artifacts),
the row says `error`, and the zero is no score any more (`leaked_failures`).

Failed iterations are in the run log only; replies that were refused on the way, where a program's `failed_attempts` has
them (`Search.refused`). Runs of its other backends write those tools' own logs, which their readers read.

Limits: a logged prompt may show a failed sibling (its retry); an EvoX run's search strategies are programs like others.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data_tools.readers.files import Problems, Unreadable, integer, mapping, read_bytes, read_object, text, walk
from data_tools.readers.scaffold_rows import Made, count, finish, ids, object_of, row
from data_tools.readers.search import Options, Refused, Search, about, begin, run_name
from eft.records import Transition

CHECKPOINT = re.compile(r"checkpoint_(\d+)$")
SNIFFED = 8  # program files looked into before a folder is not SkyDiscover's
LOG_LIMIT = 64 << 20  # bytes of a run log that are read
FAILED = re.compile(r"Iteration (\d{1,9}) failed: (.*)")
_DIFF, _REWRITE = ("diff", "rewrite"), ("rewrite", "diff")
KINDS = {"diff_user_message": _DIFF, "diff_user": _DIFF, "full_rewrite_user_message": _REWRITE,
         "full_rewrite_user": _REWRITE}  # fmt: skip
TRACES = ("stderr", "traceback", "failure_stage", "error")  # artifacts of failed evaluations
DIALECTS = ("skydiscover@0", "openevolve@0.3")  # the second: what it did before unmatched edits were failures


def claims(folder: Path, folders: set[str], files: set[str]) -> bool:
    """Is `folder` the top of one run? Its program files say `solution`."""
    inside = [folder] if folder.name == "programs" else []
    inside += [folder / "programs"] if "programs" in folders else []
    inside += [folder / name / "programs" for name in sorted(folders) if CHECKPOINT.match(name)]
    if "checkpoints" in folders:
        inside += [f / "programs" for f in _listed(folder / "checkpoints") if CHECKPOINT.match(f.name)]
    sniffed = (f for place in inside for f in _listed(place) if f.suffix == ".json")
    votes = [_is_program(f) for _, f in zip(range(SNIFFED), sniffed, strict=False)]
    return votes.count(True) > votes.count(False)


def is_log(path: Path) -> bool:
    """A run is a folder, never a file."""
    return False


def _listed(folder: Path) -> list[Path]:
    try:
        return [] if folder.is_symlink() else sorted(folder.iterdir())
    except OSError:
        return []


def _is_program(path: Path) -> bool | None:
    """Does this program file say `solution`? None for one that cannot be read."""
    try:
        found = None if path.is_symlink() else read_object(path)
    except Unreadable:
        return None
    return None if found is None else isinstance(found.get("solution"), str) and "code" not in found


def ids_of(root: Path) -> set[str]:
    """The program ids of a run, by the names of their files."""
    return {path.stem for _, path in _files(root, Problems())[0]}


def _files(root: Path, problems: Problems) -> tuple[list[tuple[int, Path]], list[Path]]:
    """((checkpoint number, program file), the newest first; run logs) below a root."""
    programs, logs = [], []
    for folder, _, names in walk(root, problems):
        if folder.name == "programs":
            number = next((int(m[1][:9]) for p in folder.parents if (m := CHECKPOINT.match(p.name))), -1)
            programs += [(number, folder / n) for n in names if n.endswith(".json")]
        else:
            logs += [folder / n for n in names if n.endswith(".log")]
    return sorted(programs, key=lambda p: (-p[0], str(p[1]))), logs


def read(roots: list[Path], options: Options) -> Search:
    """One search from its roots. The rows are made while they are asked for."""
    ours = next((a for a in map(about, roots) if a), {})
    search = begin(roots, options, "skydiscover", ours, run_name(roots[0]))
    reader = _Rows(search, options)
    search.rows, search.dialects = reader.rows(), DIALECTS
    search.refused = reader.refused
    return search


class _Rows:
    """Reads one run. The index of files is in memory, programs are read one by one."""

    def __init__(self, search: Search, options: Options) -> None:
        self.search, self.options = search, options
        self.counts: Counter[str] = Counter()
        self.refused: list[Refused] = []

    def rows(self) -> Iterator[Transition]:
        problems, copies, logs = self.search.problems, {}, []
        for root in self.search.roots:
            programs, found = _files(root, problems)
            logs += found
            for _, path in programs:
                copies.setdefault(path.stem, []).append(path)
        order, good = [], {}
        for name, paths in copies.items():
            found = self._first(paths)
            if found is not None:
                path, value = found
                good[name] = path
                order.append((count(value.get("iteration_found")), name))
        self.counts["programs"] = len(good)
        last = 0
        for iteration, name in sorted(order):
            last = max(last, iteration)
            value = self._again(good[name])
            if value is None:
                continue
            child = self._made(value, name, good[name])
            parent = None
            if child.parent_id in good and (before := self._again(good[child.parent_id])) is not None:
                parent = self._made(before, child.parent_id, good[child.parent_id])
            yield from self._row(child, parent, value)
        log = _failures(logs)
        last = max(last, self._last(), *(log or {0: ""}))
        finish(self.search, self.counts, last, Counter(log.values()) if log is not None else None)
        if log is None:
            self.search.remarks.append("no run log: iterations that failed are not known")
        if n := self.counts["leaked_failures"]:
            self.search.notes.append(f"{n} failed programs were stored with a score of 0 (SkyDiscover before its pull "
                                     "request 62): marked as failed")  # fmt: skip

    def _first(self, paths: list[Path]) -> tuple[Path, dict[str, Any]] | None:
        """The newest copy of a program that can be read, one with a prompt before one without."""
        found = None
        for path in paths:
            value = self._again(path)
            if value is not None and mapping(value.get("prompts")):
                return path, value
            found = found or ((path, value) if value is not None else None)
        return found

    def _again(self, path: Path) -> dict[str, Any] | None:
        try:
            value = read_object(path)
        except Unreadable as e:
            self.search.problems.add(path, e)
            return None
        if not isinstance(value.get("solution"), str):
            self.search.problems.add(path, "no 'solution' in it: not a program record")
            return None
        return value

    def _made(self, value: dict[str, Any], name: str, path: Path) -> Made:
        extra, logged = mapping(value.get("metadata")), mapping(value.get("prompts"))
        key = next((k for k in (*KINDS, *map(str, logged)) if mapping(logged.get(k)) and "evaluat" not in k), "")
        prompt = mapping(logged.get(key))
        replies, before = prompt.get("responses"), extra.get("parent_metrics")
        language = text(value.get("language")) or "python"
        return Made(
            id=name, parent_id=text(value.get("parent_id")), code=text(value["solution"]), language=language,
            metrics=object_of(value["metrics"]) if isinstance(value.get("metrics"), dict) else None,
            artifacts=object_of(value.get("artifacts")),
            parent_metrics=object_of(before) if isinstance(before, dict) else None,
            iteration=count(value.get("iteration_found")), generation=count(value.get("generation")),
            island=integer(extra.get("island"), integer(value.get("island"), -1)), system=text(prompt.get("system")),
            user=text(prompt.get("user")), key=f"{key.removesuffix('_message')}_message",  # as later releases have it
            replies=tuple(text(r) for r in replies[-16:] if isinstance(r, str)) if isinstance(replies, list) else (),
            kinds=KINDS.get(key, ("diff", "rewrite")), inspirations=ids(value.get("other_context_ids")),
            source=_relative(path, self.search.roots),
        )  # fmt: skip

    def _row(self, child: Made, parent: Made | None, value: dict[str, Any]) -> Iterator[Transition]:
        extra = mapping(value.get("metadata"))
        self._attempts(child, extra)
        if not child.parent_id:
            self.counts["seeds"] += 1
        elif extra.get("migrant") is True or (not child.replies and parent is not None and parent.code == child.code):
            self.counts["copies"] += 1
        else:
            self._unmask(child, extra)
            yield row(child, parent, self.search, self.options, DIALECTS, self.counts)

    def _unmask(self, child: Made, extra: dict[str, Any]) -> None:
        """A failed program with a score of 0 gets the error that belongs to it."""
        metrics = child.metrics or {}
        if metrics.get("combined_score") != 0 or isinstance(metrics.get("error"), str):
            return
        tries = extra.get("failed_attempts")
        last = mapping(tries[-1]) if isinstance(tries, list) and tries else {}
        said = text(mapping(last.get("metadata")).get("error")) if text(last.get("solution")) == child.code else ""
        said = said or next((text(child.artifacts[k]) for k in TRACES if text(child.artifacts.get(k)).strip()), "")
        if said:
            self.counts["leaked_failures"] += 1
            child.metrics = {**metrics, "error": said.strip()[-500:]}

    def _attempts(self, child: Made, extra: dict[str, Any]) -> None:
        tries = extra.get("failed_attempts")
        for attempt in tries[:100] if isinstance(tries, list) else []:
            reply = mapping(attempt).get("llm_response")
            if isinstance(reply, str) and len(self.refused) < 10_000:
                why = text(mapping(mapping(attempt).get("metadata")).get("error")) or "not applied"
                self.refused.append(Refused(child.iteration, why[:500], response=text(reply)))

    def _last(self) -> int:
        """The last iteration that a checkpoint's name or metadata tells of."""
        found = [0]
        for root in self.search.roots:
            for folder, _, names in walk(root, Problems()):
                if (m := CHECKPOINT.match(folder.name)) and "metadata.json" in names:
                    try:
                        found.append(integer(read_object(folder / "metadata.json").get("last_iteration"), 0))
                    except Unreadable as e:
                        self.search.problems.add(folder / "metadata.json", e)
                        found.append(int(m[1][:9]))
        return max(found)


def _failures(logs: list[Path]) -> dict[int, str] | None:
    """iteration -> why it failed, from the run logs; None where there are none."""
    found: dict[int, str] | None = None
    for path in logs:
        try:
            raw = read_bytes(path, LOG_LIMIT)
        except Unreadable:
            continue
        if b"skydiscover" not in raw and b"Iteration" not in raw:
            continue
        found = {} if found is None else found
        for line in raw.decode("utf-8", "replace").splitlines():
            if m := FAILED.search(line[:2000]):
                reason = re.sub(r"\btmp\w{6,}", "tmp", m[2].strip())  # a file's name, other every time
                found[int(m[1])] = re.sub(r"\d+", "N", reason)[:120] or "unknown error"
    return found


def _relative(path: Path, roots: list[Path]) -> str:
    root = next((r for r in roots if path.is_relative_to(r)), None)
    return text(str(path.relative_to(root))) if root is not None else text(path.name)
