"""CodeEvolve: `ckpt_<epoch>.pkl`, one series for each island, with all programs that were ever made, dead ones too.

A checkpoint is a pickle: read by `pickles.py`, which runs nothing in it. All checkpoints of all islands are read, the
newest first; a program is taken from the island that made it, since a migrant arrives elsewhere without its parent.
The children of an island's first epochs have no parent written down: it is the island's initial program (counted as
`initial_population`).

The reply is `model_msg`; what was asked is not kept as a whole: the evolved instruction stands in `prompt_system`, the
rest comes from a gateway's journal where there is one. Replies that no program could be made of are in the checkpoint's
list of errors (`Search.refused`), as far as it goes.

Limits: written by the public sources of December 2025; a config that renames the EVOLVE markers is not known.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data_tools.readers import pickles
from data_tools.readers.files import integer, mapping, text, walk
from data_tools.readers.scaffold_rows import Made, count, finish, ids, object_of, row
from data_tools.readers.search import Options, Refused, Search, about, begin, run_name
from eft.records import Transition

CHECKPOINT = re.compile(r"ckpt_(\d{1,9})\.pkl$")
DIALECTS = ("codeevolve@0",)
HELD = 192 << 20  # characters of text of one run that are kept; a checkpoint of 5,000 programs has some 50 million


def claims(folder: Path, folders: set[str], files: set[str]) -> bool:
    """Is `folder` the top of one run? It has islands (numbered folders) with checkpoints in them."""
    if any(CHECKPOINT.match(n) for n in files):
        return True
    inside = [folder / n / "ckpt" for n in folders if n.isdecimal()] + ([folder / "ckpt"] if "ckpt" in folders else [])
    return any(CHECKPOINT.match(p.name) for place in sorted(inside) for p in _listed(place))


def is_log(path: Path) -> bool:
    """Is this file a checkpoint? By its name: looking into it is for the reader."""
    return bool(CHECKPOINT.match(path.name)) and path.is_file()


def _listed(folder: Path) -> list[Path]:
    try:
        return [] if folder.is_symlink() else sorted(folder.iterdir())
    except OSError:
        return []


def ids_of(root: Path) -> set[str]:
    """Nothing: a run goes on in its own folder."""
    return set()


def read(roots: list[Path], options: Options) -> Search:
    """One search from its roots. The rows are made while they are asked for."""
    ours = next((a for a in map(about, roots) if a), {})
    search = begin(roots, options, "codeevolve", ours, _name(roots[0]))
    reader = _Rows(search, options)
    search.rows, search.dialects = reader.rows(), DIALECTS
    search.refused = reader.refused
    return search


def _name(root: Path) -> str:
    """A run's name; folders called ckpt, and those of islands, do not name it."""
    path = root.resolve()
    path = path.parent if path.is_file() else path
    while (path.name == "ckpt" or path.name.isdecimal()) and path.parent != path:
        path = path.parent
    return run_name(path)


class _Rows:
    """Reads one run; its programs are in memory, as CodeEvolve has them itself."""

    def __init__(self, search: Search, options: Options) -> None:
        self.search, self.options = search, options
        self.counts: Counter[str] = Counter()
        self.refused: list[Refused] = []
        self.programs: dict[str, tuple[dict[str, Any], int, str]] = {}  # id -> (fields, island it was read from, file)
        self.prompts: dict[str, str] = {}
        self.usage: dict[tuple[int, int], dict[str, Any]] = {}  # (island, epoch) -> tokens and model
        self.failed: dict[tuple[int, int], str] = {}
        self.held = 0

    def rows(self) -> Iterator[Transition]:
        for path in self._checkpoints():
            self._take(path)
        seeds = {integer(f.get("island_found"), home): name for name, (f, home, _) in self.programs.items()
                 if count(f.get("iteration_found")) == 0 and not text(f.get("model_msg"))}  # fmt: skip
        self.counts["programs"] = len(self.programs)
        last = 0
        for name in sorted(self.programs, key=lambda n: (count(self.programs[n][0].get("iteration_found")), n)):
            fields, home, _ = self.programs[name]
            last = max(last, count(fields.get("iteration_found")))
            if not text(fields.get("model_msg")):
                self.counts["seeds"] += 1
                continue
            child = self._made(name)
            if not child.parent_id and fields.get("prompt_id") is not None:
                child.parent_id = seeds.get(child.island, "")
                self.counts["initial_population"] += bool(child.parent_id)
            parent = self._made(child.parent_id) if child.parent_id in self.programs else None
            yield row(child, parent, self.search, self.options, DIALECTS, self.counts)
        last = max(last, *(epoch for _, epoch in self.failed), 0) if self.failed else last
        finish(self.search, self.counts, last, Counter(self.failed.values()))

    def _checkpoints(self) -> list[Path]:
        found = []
        for root in self.search.roots:
            if root.is_file():
                found.append(root)
            else:
                for folder, _, names in walk(root, self.search.problems):
                    found += [folder / n for n in names if CHECKPOINT.match(n)]
        return sorted(found, key=lambda p: (-int(CHECKPOINT.match(p.name)[1]), str(p)))

    def _take(self, path: Path) -> None:
        island = next((int(p.name[:9]) for p in path.parents if p.name.isdecimal()), -1)
        for record in pickles.programs(path, self.search.problems):
            fields, kind = mapping(record.get("fields")), record.get("kind")
            island = integer(record.get("island"), island) if kind == "program" else island
            if kind == "program" and (name := text(fields.get("id"))):
                known = self.programs.get(name)
                if known is None or (_home(fields, island) and not _home(*known[:2])):
                    self.held += 1000 + sum(len(v) for v in fields.values() if isinstance(v, str))
                    if self.held > HELD:
                        why = f"the run has more than {HELD >> 20} million characters: the rest is not read"
                        self.search.problems.add(path, why)
                        return
                    self.programs[name] = (fields, island, _relative(path, self.search.roots))
            elif kind == "prompt" and (name := text(fields.get("id"))):
                self.prompts.setdefault(name, text(fields.get("code")))
            elif kind == "tok_usage" and fields.get("motive") == "generate_prog":
                self.usage.setdefault((island, count(fields.get("epoch"))), fields)
            elif kind == "errors" and fields.get("motive") in ("generate_prog", "sr_evolve_prog"):
                self._error(island, fields)

    def _error(self, island: int, fields: dict[str, Any]) -> None:
        """An epoch without a program: no reply, or one that could not be applied."""
        epoch, why = count(fields.get("epoch")), text(fields.get("error_msg")) or "unknown error"
        if (island, epoch) in self.failed:
            return
        self.failed[island, epoch] = re.sub(r"\d+", "N", why.partition(":")[0])[:120]
        reply = fields.get("sol_diff")
        if len(self.refused) < 10_000:
            self.refused.append(Refused(epoch, why[:500], response=text(reply) if isinstance(reply, str) else None))

    def _made(self, name: str) -> Made:
        fields, home, source = self.programs[name]
        island, epoch = integer(fields.get("island_found"), home), count(fields.get("iteration_found"))
        usage, reply = self.usage.get((island, epoch), {}), text(fields.get("model_msg"))
        return Made(
            id=name, parent_id=text(fields.get("parent_id")),
            code=text(fields["code"]) if isinstance(fields.get("code"), str) else None,
            language=text(fields.get("language")) or "python", metrics=_metrics(fields),
            artifacts={k: text(fields.get(k)) for k in ("output", "error", "warning") if text(fields.get(k))},
            iteration=epoch, generation=count(fields.get("generation")), island=island,
            system=self.prompts.get(text(fields.get("prompt_id")), "") if reply else "",
            replies=(reply,) if reply else (), model=text(usage.get("model_name")), kinds=("diff",),
            prompt_tokens=integer(usage.get("prompt_tok"), -1), response_tokens=integer(usage.get("compl_tok"), -1),
            inspirations=ids(fields.get("inspiration_ids")), source=source,
        )  # fmt: skip


def _home(fields: dict[str, Any], island: int) -> bool:
    """Was it read from the island that made it?"""
    return integer(fields.get("island_found"), island) == island


def _metrics(fields: dict[str, Any]) -> dict[str, Any]:
    """The evaluator's metrics, and the fitness as `combined_score`; a program that failed has an error and no score."""
    metrics = object_of(fields.get("eval_metrics"))
    if fields.get("returncode") == 0:
        return {**metrics, "combined_score": fields.get("fitness")}
    error = text(fields.get("error")).strip()
    timeout = {"timeout": True} if error.startswith("TimeoutError") else {}
    return {**metrics, "error": error[-500:] or "the evaluation failed", **timeout}


def _relative(path: Path, roots: list[Path]) -> str:
    root = next((r for r in roots if path != r and path.is_relative_to(r)), None)
    return text(str(path.relative_to(root))) if root is not None else text(path.name)
