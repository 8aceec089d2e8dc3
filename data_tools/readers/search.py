"""What every reader returns: one search, as transitions, with what was found and what was missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_tools.readers.files import Problems, Unreadable, read_object, real, text
from eft.records import Transition

# Folder names that say nothing about the search in them: the run is named after the folder around it.
GENERIC = {"openevolve_output", "checkpoints", "programs", "output", "outputs", "logs", "db", "database", "best"}
RUN_FILE = "run.json"


@dataclass(frozen=True)
class Options:
    """What the user says about logs that do not say it themselves. "" or None: not given."""

    task: str = ""
    domain: str = ""
    role: str = ""
    release: str = ""
    diff_pattern: str | None = None
    rebuild: bool = True  # put prompts together again where none was logged
    folder: Path | None = None  # where temporary files may be; None: the system's temporary folder


@dataclass(frozen=True)
class Refused:
    """A reply of a model that left no program, or a request that was never answered (`response` None)."""

    iteration: int  # -1 where unknown
    reason: str
    system: str = ""
    user: str = ""
    response: str | None = None
    model: str = ""
    prompt_tokens: int = -1
    response_tokens: int = -1


@dataclass
class Search:
    """One search. `rows` may be a list, or a generator for a search that need not fit into memory; then the counts and
    notes are whole once it is through. `counts`: numbers for the report (see the reader); `notes`: what a user should
    be warned of; `remarks`: what is worth knowing, with nothing amiss; `refused`: replies that left no program, as the
    scaffold logged them."""

    name: str
    roots: list[Path]
    scaffold: str
    release: str = ""
    about: dict[str, Any] = field(default_factory=dict)  # run.json, where the search was ours
    rows: Iterable[Transition] = field(default_factory=list)
    refused: Iterable[Refused] = ()
    counts: dict[str, int] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)  # reason -> iterations that left no program
    notes: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    problems: Problems = field(default_factory=Problems)
    dialects: tuple[str, ...] = ()  # how this scaffold reads edits, the likeliest first (eft/edits.py, eft/dialects.py)
    gains: Counter[str] = field(default_factory=Counter)  # what a gateway journal added to the counts


def run_name(root: Path) -> str:
    """A run's name: its folder's, or the nearest one above whose name says something."""
    start = root.resolve()
    path = start.parent if start.is_file() else start
    while (path.name in GENERIC or path.name.startswith("checkpoint_")) and path.parent != path:
        path = path.parent
    return text(path.name) or "run"


def about(root: Path) -> dict[str, Any]:
    """The `run.json` in a folder, which says what our own searches were about; {} where there is none."""
    file = (root.parent if root.is_file() else root) / RUN_FILE
    if not file.is_file():
        return {}
    try:
        found = read_object(file)
    except Unreadable:
        return {}
    # Plain values only: they go into every row, and into a report that is strict JSON.
    plain = {text(k): text(v) if isinstance(v, str) else v for k, v in found.items()
             if isinstance(v, str | bool) or real(v) is not None}  # fmt: skip
    return plain if "task" in found else {}


def damage(root: Path) -> tuple[Path, str] | None:
    """The folder's `run.json` and why it cannot be read, None where it can or there is none. With it goes the suite
    role, which keeps held-out searches out of training data, so its loss must not be silent."""
    file = (root.parent if root.is_file() else root) / RUN_FILE
    if not file.is_file():
        return None
    try:
        read_object(file)
    except Unreadable as e:
        return file, f"{e}: task, domain and suite role are not known from it; give --task and --role"
    return None


def begin(roots: list[Path], options: Options, scaffold: str, ours: dict[str, Any], name: str) -> Search:
    """The search that a reader fills. `ours`: what run.json says (`about`); `name`: of the run, where that does not.
    A torn run.json is told: the suite role goes with it."""
    search = Search(text(ours.get("search")) or name, roots, scaffold, about=ours)
    tell_damage(search)
    search.release = options.release or text(ours.get("scaffold_release"))
    return search


def tell_damage(search: Search) -> None:
    """Say which run.json is torn."""
    for root in search.roots:
        if torn := damage(root):
            search.problems.add(*torn)
            search.notes.append(f"{torn[0].name} cannot be read, so the suite role of these rows is not known")
