"""Found: what a harvest tells of the searches that it read, on the terminal and as data."""

from __future__ import annotations

import sys
from collections import Counter

from data_tools.readers.files import text
from data_tools.readers.search import Search

NAMED = 5  # bad files named on the terminal; all of them are in searches.json
SHOWN = 12  # searches told of on the terminal


def total(report: list[Search]) -> dict[str, int]:
    """The counts of all searches together."""
    counts: Counter[str] = Counter(searches=len({s.name for s in report}), transitions=0)
    for search in report:
        counts.update(search.counts)
    counts["cut_off"] = sum(any("cut off" in n for n in s.notes) for s in report)
    counts.pop("logs", None)
    counts.pop("children", None)
    return dict(counts)


def as_json(search: Search) -> dict:
    return {"name": text(search.name), "scaffold": search.scaffold, "release": search.release,
            "roots": [text(str(r)) for r in search.roots], "about": search.about, "counts": search.counts,
            "failures": search.failures, "notes": [text(n) for n in search.remarks + search.notes],
            "bad_files": search.problems.found}  # fmt: skip


def shortfall(search: Search) -> str:
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


def say(report: list[Search], counts: dict[str, int], file: str) -> None:
    """What was found, search by search (the first ones, and all that something is amiss with), on standard error."""

    def line(words: str) -> None:
        print(words, file=sys.stderr)

    shown = 0
    for s in report:
        c, amiss = s.counts, bool(s.notes or s.problems)
        if s.scaffold == "gateway" and not c["proposals"] and not amiss:
            continue
        if shown >= SHOWN and not (amiss and shown < 3 * SHOWN):
            continue
        shown += 1
        if s.scaffold == "gateway":
            line(f"{s.name} (gateway journal): {c['transitions']} proposals as transitions; "
                f"{c['proposals_in_scaffold']} more are the scaffold's own children")  # fmt: skip
        elif s.scaffold == "finch":
            line(f"{s.name} (published rows): {c['rows']} rows of {c['tasks']} tasks; {_kept(c)}")
        else:
            release = f" {s.release}" if s.release else ""
            line(f"{s.name} ({s.scaffold}{release}): {_found(c)}")
        for remark in s.remarks:
            line(f"  {remark}")
        for reason, number in list(s.failures.items())[:NAMED]:
            line(f"  failed x{number}: {reason}")
        for note in s.notes:
            line(f"  warning: {note}")
        for where, why in s.problems.found[:NAMED]:
            line(f"  bad file: {where}: {why}")
        if len(s.problems) > NAMED:
            line(f"  … and {len(s.problems) - NAMED} more bad files, see {file}")
    if shown < len(report):
        line(f"… and {len(report) - shown} more logs, see {file}")
    if counts["searches"] > 1:
        line(f"all of them: {_found(Counter({'failed_iterations': 0, **counts, 'children': counts['transitions']}))}")
    line(f"harvest: {counts['transitions']} transitions from {counts['searches']} searches")


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
