"""ShinkaEvolve: `programs.sqlite`, the best of all logs: prompt, reply, reasoning, inspirations and output in one row.

A row is a program. No transitions: seeds (no parent), the copies that seed further islands, and failed proposals (rows
of kind `failed_proposal`, the attempt log, `gen_N/failure.json`: counted as failed generations). Every reply that was
refused and kept under `gen_N/attempts/` goes into `Search.refused`. Migration moves rows, so it leaves no copies.

Where a reply was the second attempt, its prompt is the complaint about the first one; the row then has the prompt of
the first turn, which shows the program, and is counted (`later_turns`). A program that is not `correct` has no score,
whatever number stands there. Private metrics are left out: prompts must not show them.

Limits: failed proposals are logged since April 2026 only; of several failed attempts the database has the last one.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data_tools.readers.files import Problems, Unreadable, integer, mapping, parse, read_bytes, read_object, text, walk
from data_tools.readers.scaffold_rows import Made, count, finish, ids, object_of, row
from data_tools.readers.search import Options, Refused, Search, about, begin, run_name
from data_tools.readers.sqlite import Reader, is_sqlite, reading
from eft.records import Transition

NEEDED = {"id", "code", "parent_id", "generation", "combined_score", "metadata"}
WANTED = ("id", "code", "language", "parent_id", "archive_inspiration_ids", "top_k_inspiration_ids", "generation",
          "combined_score", "public_metrics", "text_feedback", "correct", "metadata", "island_idx")  # fmt: skip
SUFFIXES = ("", ".sqlite", ".sqlite3", ".db")
KINDS = {"diff": ("diff", "rewrite"), "full": ("rewrite", "diff"), "cross": ("rewrite", "diff"),
         "fix": ("rewrite", "diff")}  # fmt: skip
GLUED = re.compile(r"\S[ \t]*(?:#|//) EVOLVE-BLOCK-END")  # an insertion that its pull request 185 repaired
KEPT = 32 << 20  # characters of programs that are kept at hand as parents


def claims(folder: Path, folders: set[str], files: set[str]) -> bool:
    """Is `folder` the results folder of one search? It has a database of programs, or is one of ours around it."""
    if "run.json" in files and about(folder).get("scaffold") == "shinka":
        return True
    return any(is_log(folder / name) for name in sorted(files) if _likely(folder / name))


def _likely(path: Path) -> bool:
    return path.suffix in SUFFIXES and not path.is_symlink()


def is_log(path: Path) -> bool:
    """Is this file a database of programs? By its tables."""
    if not is_sqlite(path):
        return False
    with reading(path, Problems()) as db:
        return db is not None and set(db.columns("programs")) >= NEEDED


def ids_of(root: Path) -> set[str]:
    """The program ids of a search."""
    found: set[str] = set()
    for path in _databases(root, Problems()):
        with reading(path, Problems()) as db:
            if db is not None:
                rows = (db.row("programs", ["id"], number) for number in db.rowids("programs"))
                found |= {text(r["id"]) for r in rows if r}
    return found - {""}


def _databases(root: Path, problems: Problems) -> list[Path]:
    if root.is_file():
        return [root]
    return [folder / name for folder, _, names in walk(root, problems) for name in names
            if _likely(folder / name) and is_log(folder / name)]  # fmt: skip


def read(roots: list[Path], options: Options) -> Search:
    """One search from its roots. The rows are made while they are asked for."""
    ours = next((a for a in (about(r) or about(r.parent) for r in roots) if a), {})
    search = begin(roots, options, "shinka", ours, run_name(roots[0]))
    reader = _Rows(search, options)
    search.rows, search.dialects = reader.rows(), reader.dialects
    search.refused = reader.refused()
    return search


class _Rows:
    """Reads one search, database by database."""

    def __init__(self, search: Search, options: Options) -> None:
        self.search, self.options = search, options
        self.counts: Counter[str] = Counter()
        self.failed: dict[int, str] = {}  # generation -> why it left no program
        self.made: set[int] = set()  # generations that did
        self.seen: set[str] = set()
        self.weight = 0  # of the parents at hand
        self.logged = False  # do the logs know of failures at all?
        old = re.match(r"0\.0\.[0-7]($|\D)", search.release)
        self.dialects = (("shinka@0.0",) if old else ("shinka@0",)) if search.release else ("shinka@0", "shinka@0.0")

    def rows(self) -> Iterator[Transition]:
        for root in self.search.roots:
            for path in _databases(root, self.search.problems):
                with reading(path, self.search.problems, self.options.folder) as db:
                    if db is not None:
                        yield from self._of(db)
        self._folders()
        failures = Counter(reason for generation, reason in self.failed.items() if generation not in self.made)
        last = max((*self.made, *self.failed), default=0)
        finish(self.search, self.counts, last, failures if self.logged else None)
        if not self.logged:
            self.search.remarks.append("failed proposals were not logged (ShinkaEvolve before April 2026)")
        if self.counts["glued_markers"]:
            self.search.notes.append(f"{self.counts['glued_markers']} programs have code glued to their END marker, "
                                     "which ShinkaEvolve did itself before its pull request 185")  # fmt: skip

    def _of(self, db: Reader) -> Iterator[Transition]:
        known = db.columns("programs")
        columns = [c for c in WANTED if c in known]
        light = ["id", "parent_id", "generation"]
        order, places = [], {}
        for number in db.rowids("programs"):
            first = db.row("programs", light, number)
            name = text(first["id"]) if first else ""
            if name and name not in self.seen:  # another database of the same search may have it too
                self.seen.add(name)
                places[name] = number
                order.append((count(first["generation"]), number))
        self.counts["programs"] += len(order)
        cache: OrderedDict[str, tuple[Made, str]] = OrderedDict()
        self.weight = 0

        def whole(number: int) -> tuple[Made, dict] | None:
            record = db.row("programs", columns, number)
            return self._made(record, db.path) if record else None

        def parent_of(name: str) -> tuple[Made | None, str]:
            """The program, and which one it is a copy of."""
            if name not in cache and name in places and (found := whole(places[name])):
                cache[name] = found[0], _original(found[1])
                self.weight += _weight(found[0])
                while len(cache) > 1 and self.weight > KEPT:
                    self.weight -= _weight(cache.popitem(last=False)[1][0])
            return cache.get(name, (None, ""))

        for _, number in sorted(order):
            found = whole(number)
            if found is not None:
                yield from self._row(*found, parent_of)
        self._attempt_log(db)

    def _row(self, child: Made, extra: dict[str, Any], parent_of: Any) -> Iterator[Transition]:
        if extra.get("node_kind") == "failed_proposal":
            self.logged = True
            self.counts["failed_proposals"] += 1
            self.failed.setdefault(child.generation, _reason(extra))
            return
        if _original(extra) or extra.get("_is_island_copy") is True:
            self.counts["copies"] += 1
            return
        if not child.parent_id:
            self.counts["seeds"] += 1
            return
        self.made.add(child.generation)
        self.counts["glued_markers"] += bool(GLUED.search(child.code or ""))
        parent, origin = parent_of(child.parent_id)
        yield row(child, parent, self.search, self.options, self.dialects, self.counts, origin=origin)

    def _made(self, record: dict[str, Any], path: Path) -> tuple[Made, dict[str, Any]]:
        """A row of the table, and its metadata."""
        extra = object_of(_json(record.get("metadata")))
        said = mapping(extra.get("llm_result"))
        user, system, later = _asked(said)
        self.counts["later_turns"] += later
        reply = text(said.get("content"))
        generation = count(record.get("generation"))
        shown = [n for k in ("archive", "top_k") for n in ids(_json(record.get(f"{k}_inspiration_ids")))]
        words = {"stdout": extra.get("stdout_log"), "stderr": extra.get("stderr_log"),
                 "text_feedback": record.get("text_feedback")}  # fmt: skip
        billed = count(said.get("input_tokens")), count(said.get("output_tokens")) + count(said.get("thinking_tokens"))
        return Made(
            id=text(record.get("id")), parent_id=text(record.get("parent_id")),
            code=text(record["code"]) if isinstance(record.get("code"), str) else None,
            language=text(record.get("language")) or "python", metrics=_metrics(record, extra),
            artifacts={k: text(v) for k, v in words.items() if text(v)},
            iteration=generation, generation=generation, island=integer(record.get("island_idx"), -1), system=system,
            user=user, replies=(reply,) if reply else (), reasoning=text(said.get("thought")),
            model=text(said.get("model_name")) or text(extra.get("model_name")),
            prompt_tokens=billed[0] or -1, response_tokens=billed[1] or -1,  # 0: the endpoint did not tell
            kinds=KINDS.get(text(extra.get("patch_type")), ("diff", "rewrite")),
            inspirations=tuple(dict.fromkeys(shown)), source=path.name,
        ), extra  # fmt: skip

    def _attempt_log(self, db: Reader) -> None:
        columns = db.columns("attempt_log")
        if not {"generation", "status", "details"} <= set(columns):
            return
        self.logged = True
        for number in db.rowids("attempt_log"):
            entry = db.row("attempt_log", ["generation", "status", "details"], number)
            if entry and entry["status"] == "failed":
                details = object_of(_json(entry["details"]))
                self.failed.setdefault(count(entry["generation"]), _reason(details))

    def _folders(self) -> None:
        """Failures that only the generations' folders tell of."""
        for folder, names in _generations(self.search.roots, self.search.problems):
            if "failure.json" in names:
                self.logged = True
                try:
                    said = read_object(folder / "failure.json")
                except Unreadable as e:
                    self.search.problems.add(folder / "failure.json", e)
                    said = {}
                self.failed.setdefault(_number(folder), _reason(said))

    def refused(self) -> Iterator[Refused]:
        """Replies that were kept and not applied. Their prompts were not kept."""
        for folder, names in _attempts(self.search.roots, Problems()):
            try:
                said = read_object(folder / "metadata.json")
                if said.get("success") is True:
                    continue
                reply = text(read_bytes(folder / "llm_response.txt").decode("utf-8", "replace")) \
                    if "llm_response.txt" in names else None  # fmt: skip
            except Unreadable as e:
                self.search.problems.add(folder, e)
                continue
            yield Refused(iteration=count(said.get("generation")), reason=text(said.get("error_msg")) or "not applied",
                          response=reply, model=text(said.get("llm_model")))  # fmt: skip


def _generations(roots: list[Path], problems: Problems) -> Iterator[tuple[Path, list[str]]]:
    for root in filter(Path.is_dir, roots):
        for folder, _, names in walk(root, problems):
            if re.fullmatch(r"gen_\d{1,9}", folder.name):
                yield folder, names


def _attempts(roots: list[Path], problems: Problems) -> Iterator[tuple[Path, list[str]]]:
    for root in filter(Path.is_dir, roots):
        for folder, _, names in walk(root, problems):
            if "metadata.json" in names and "attempts" in folder.parts:
                yield folder, names


def _number(folder: Path) -> int:
    return int(folder.name.removeprefix("gen_"))


def _json(value: Any) -> Any:
    """The value of a cell that holds JSON text, None where it does not."""
    if not isinstance(value, str | bytes):
        return None
    try:
        return parse(value.encode("utf-8", "replace") if isinstance(value, str) else value)
    except Unreadable:
        return None


def _weight(made: Made) -> int:
    """About how many characters a program holds."""
    texts = (made.code or "", made.user, made.system, made.reasoning, *made.replies, *map(str, made.artifacts.values()))
    return 1000 + sum(map(len, texts))


def _original(extra: dict[str, Any]) -> str:
    """The program that this one is a copy of, "" where it is none."""
    return text(extra.get("_original_program_id")) if extra.get("_is_island_copy") is not False else ""


def _asked(said: dict[str, Any]) -> tuple[str, str, bool]:
    """(user, system, was it a later turn?): the prompt, of the first turn where there were several."""
    system, last = text(said.get("system_msg")), text(said.get("msg"))
    turns = said.get("new_msg_history")
    users = [text(mapping(t).get("content")) for t in turns if mapping(t).get("role") == "user"] \
        if isinstance(turns, list) else []  # fmt: skip
    first = next((u for u in users if u), "")
    return (first, system, True) if first and first != last else (last, system, False)


def _metrics(record: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    """Public metrics, score and verdict. Where an evaluation left no results, its default score is not one."""
    metrics = object_of(_json(record.get("public_metrics")))
    if extra.get("results_missing") is True:
        return {**metrics, "error": "no results were written"}
    if isinstance(record.get("combined_score"), int | float | str):
        metrics["combined_score"] = record["combined_score"]
    if "correct" in record:
        metrics["correct"] = record["correct"] in (1, True)
    return metrics


def _reason(said: dict[str, Any]) -> str:
    stage, kind = text(said.get("failure_stage")) or "proposal", text(said.get("failure_class"))
    reason = kind or (text(said.get("failure_reason")).splitlines() or ["unknown"])[0]
    return f"{stage}: {re.sub(chr(92) + 'd+', 'N', reason)[:120]}"
