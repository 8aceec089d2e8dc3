"""Find: which of the files under a path are logs of searches, and whose?

The readers are asked folder by folder, from the top: whoever claims a folder has everything below it. Two folders (or
files) of one format that share program ids are one search, which was resumed elsewhere.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from data_tools.readers import codeevolve, finch, gateway, hub, openevolve, shinka, skydiscover
from data_tools.readers.search import Search, about
from eft.errors import EftError

# The formats that hold one search in a folder or a file, in the order in which they are asked: the more particular ones
# first (SkyDiscover's checkpoints look like OpenEvolve's from outside).
READERS: dict[str, ModuleType] = {
    "shinka": shinka,
    "codeevolve": codeevolve,
    "skydiscover": skydiscover,
    "openevolve": openevolve,
}
KNOWN = "OpenEvolve, ShinkaEvolve, SkyDiscover, CodeEvolve or the gateway, or like rows of the Finch-Collection"


@dataclass
class Found:
    """What is to be read. `searches`: each a format and its roots (a resumed run may have several); `collections`:
    published rows, with their files."""

    searches: list[tuple[str, list[Path]]]
    journals: list[Path]
    collections: list[tuple[Search, list[Path]]]


def find(paths: list[Path]) -> Found:
    """The searches, gateway journals and collections under `paths`; a hub id among them is downloaded.

    Raises EftError for a path that does not exist or holds nothing that a reader knows.
    """
    # resolved -> as given, so that nothing is read twice
    seen: dict[str, dict[Path, Path]] = {"journal": {}, "rows": {}, **{name: {} for name in READERS}}
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
                           way_out="name the folder that a search wrote (OpenEvolve's has checkpoints/, logs/ or "
                                   "evolution_trace.*), a gateway journal, or the Finch-Collection")  # fmt: skip
        if sum(map(len, seen.values())) == before:
            print(f"harvest: {path} was named twice", file=sys.stderr)
    for root in files:
        finch.check(files[root])
    searches = []
    claimed = [r for name in READERS for r in seen[name]]
    for name in READERS:
        roots = seen[name]
        # A root inside another one is part of it.
        top = [r for r in sorted(roots) if not any(r != other and r.is_relative_to(other) for other in claimed)]
        searches += [(name, group) for group in _same_search(READERS[name], [roots[r] for r in top])]
    searches.sort(key=lambda s: str(s[1][0].resolve()))
    journals = seen["journal"]
    collections = [(finch.search_of(root, origins[root]), files[root]) for root in sorted(files)]
    return Found(searches, [journals[j] for j in sorted(journals)], collections)


def _walk(path: Path) -> Iterator[tuple[str, Path]]:
    """(format, folder or file), ("journal", file) and ("rows", file of a collection) at or below `path`. Links to
    folders are not followed."""
    if path.is_file():
        if gateway.is_journal(path):
            yield "journal", path
        elif finch.claims(path):
            yield "rows", path
        else:
            name = next((n for n, reader in READERS.items() if reader.is_log(path)), None)
            if name:
                yield name, path
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
        if not any(folder.is_relative_to(c) for c in claimed):
            inside = set(folders), set(files)
            name = next((n for n, reader in READERS.items() if reader.claims(folder, *inside)), None)
            if name:
                claimed.append(folder)
                yield name, folder
        if claimed and folder.is_relative_to(claimed[-1]):  # where the most files are, and no journal ever
            folders[:] = [f for f in folders if f not in ("programs", "artifacts")]


def _same_search(reader: ModuleType, roots: list[Path]) -> list[list[Path]]:
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
        for program in reader.ids_of(root):
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
