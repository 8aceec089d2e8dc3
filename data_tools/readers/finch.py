"""The Finch-Collection (EFT, arXiv 2606.29082) and whatever has its columns: published transitions, Parquet or JSONL.

    eft harvest FOLDER              a copy on disk: a Parquet or JSONL file, or a folder of them (data/train-*.parquet)
    eft harvest hub:ORG/NAME@REV    the same from the hub, at a pinned revision (`data_tools/readers/hub.py`)

A file is known by its columns. One row is one transition, and they are read one by one: a collection larger than memory
is no harm. Rows keep what was published; nothing here is trusted more than a log is: the reply is applied to the parent
in every dialect of OpenEvolve (`replay`), and `eft label` labels from the metrics.

The published label stands in `sources` ("published label: improved"), never in the column `label`. What it says is held
against what the metrics say (`data_tools.label`), and the harvest tells how often the two differ. A label that is none
of the three known ones ends the harvest: it would mean that the schema has changed.

Limits: `trajectory` (prompt and reply once more) and `improvement_delta` (the difference of the metrics) are not read;
the token lengths are some tokenizer's, not what a server billed, so `prompt_tokens` and `response_tokens` stay -1.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data_tools.finch_writer import KEPT
from data_tools.label import label
from data_tools.readers.files import Problems, Unreadable, first_object, integer, numbered_json_lines, text
from data_tools.readers.openevolve_rows import dialects, replay
from data_tools.readers.search import Options, Search, run_name
from eft import prompts
from eft.errors import EftError
from eft.records import Label, Transition, Validity, code_hash, to_json, transition_id

REQUIRED = ("task", "improvement_label", "parent_id", "child_id", "parent_metrics", "child_metrics", "parent_code",
            "child_code", "user_prompt", "response")  # fmt: skip
OPTIONAL = ("domain", "global_uid", "instance_uid", "iteration", "island_id", "generation", "metadata", "system_prompt",
            "reasoning")  # fmt: skip
UNREAD = ("trajectory", "improvement_delta", "system_token_length", "user_token_length", "reasoning_token_length",
          "response_token_length")  # fmt: skip

# A file is one of these when it has two columns that no search's log has, and two that tell of a parent and a child.
OWN = {"improvement_label", "global_uid", "instance_uid", "system_prompt", "user_prompt", "response_token_length"}
EDGE = {"parent_id", "child_id", "parent_code", "child_code", "parent_metrics", "child_metrics"}
SUFFIXES = (".parquet", ".jsonl", ".jsonl.gz")
LABELS = {"improved": Label.IMPROVED, "nochange": Label.NO_CHANGE, "unchanged": Label.NO_CHANGE,
          "regressed": Label.REGRESSED}  # fmt: skip
BATCH = 64  # rows decoded at once: a row may hold a prompt of 32,768 tokens
_POINTER = b"version https://git-lfs"
SNIFFED = 4  # lines of a JSONL file that may be torn before the first one that tells what it is


# -------------------------------------------------------------------------------------------------------------- find


def columns(path: Path) -> set[str]:
    """The columns of a Parquet file (its footer) or a JSONL file (its first record). Raises Unreadable."""
    if not path.name.endswith(".parquet"):
        return set(first_object(path, lines=SNIFFED))
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if path.stat().st_size == 0:
            raise Unreadable("the file is empty")
        with open(path, "rb") as f:
            if f.read(len(_POINTER)) == _POINTER:
                raise Unreadable("a Git LFS pointer, not the file itself: 'git lfs pull' brings it")
        return set(pq.read_schema(path).names)
    except (pa.ArrowException, OSError, ValueError) as e:
        raise Unreadable(f"not Parquet, or cut off: {e}") from None


def claims(path: Path) -> bool:
    """Does this file hold rows in this schema? Files that cannot be read are not claimed."""
    if not path.name.endswith(SUFFIXES):
        return False
    try:
        found = columns(path)
    except Unreadable:
        return False
    return len(OWN & found) >= 2 and len(EDGE & found) >= 2


def shards(folder: Path, names: set[str]) -> list[Path]:
    """The files of the collection in `folder` (`names`: of the files in it), unreadable ones among them included."""
    names = {name for name in names if name.endswith(SUFFIXES)}
    if not any(claims(folder / name) for name in names):
        return []
    return [folder / name for name in sorted(names) if claims(folder / name) or _damaged(folder / name)]


def _damaged(path: Path) -> str:
    """Why a file that bears the name of one of these cannot be read at all, "" where it can."""
    if not path.name.endswith(SUFFIXES) or not path.is_file():
        return ""
    if path.stat().st_size == 0:
        return "the file is empty"
    try:
        return "" if columns(path) else "nothing in its first lines is a record"
    except Unreadable as e:
        return str(e)


def why_not(path: Path) -> str:
    """Why nothing at `path`, a file or a folder, is in this schema; "" where nothing there is a Parquet file."""
    files = [path] if path.is_file() else sorted(path.rglob("*.parquet"))
    for file in files:
        if file.name.endswith(".parquet") and not claims(file):
            return f"{file.name}: {_damaged(file) or _lacking(columns(file))}"
    return ""


def _lacking(found: set[str]) -> str:
    return f"missing columns of the Finch-Collection: {', '.join(c for c in REQUIRED if c not in found)}"


def check(files: list[Path]) -> None:
    """Raises EftError for a file that lacks columns. Files that cannot be read are met again by `rows`."""
    for file in files:
        if not _damaged(file) and not columns(file) >= set(REQUIRED):
            raise EftError("this file lacks columns of the Finch-Collection", where=file, why=_lacking(columns(file)),
                           way_out=f"every file needs {', '.join(REQUIRED)}")  # fmt: skip


def search_of(root: Path, origin: str = "") -> Search:
    """The collection at `root`, nothing read yet. `origin`: its hub id, which is then its name.

    Else the name is the file's, or the folder's (one called `data` is named after the folder around it).
    """
    place = root.resolve()
    if origin:
        name = origin.removeprefix("hub:")
    elif root.is_file():
        name = next((root.name.removesuffix(s) for s in SUFFIXES if root.name.endswith(s)), root.name)
    else:
        name = run_name(place.parent if place.name == "data" else place)
    return Search(text(name), [root], "finch", about={"origin": origin} if origin else {})


# -------------------------------------------------------------------------------------------------------------- read


def rows(search: Search, files: list[Path], options: Options) -> Iterator[Transition]:
    """The transitions of a collection, one after another; at the end `search` has the counts, remarks and problems.

    A row that was published twice (task, parent, child and their code) is counted and given once. Raises EftError for
    a label that is not known.
    """
    counts: Counter[str] = Counter()
    verdicts: Counter[tuple[str, str]] = Counter()  # (published, recomputed)
    absent: set[str] = set()
    tasks: set[str] = set()
    seen: set[bytes] = set()
    for file in files:
        place = _place(search, file)
        for number, record in _records(file, search.problems, absent):
            counts["rows"] += 1
            published = _published(record.get("improvement_label"), f"{file}, {number}")
            row = _row(record, published, f"{place}, {number}", search, options, counts, f"{file}, {number}")
            if row is None:
                continue
            identity = bytes.fromhex(row.id) + bytes.fromhex(code_hash(row.parent_code + "\0" + row.child_code))[:4]
            if identity in seen:
                counts["repeated"] += 1
                continue
            seen.add(identity)
            tasks.add(row.task)
            verdicts[published, _recomputed(row)] += 1
            _count(row, counts)
            yield row
    _report(search, counts, verdicts, absent, len(tasks))


def _place(search: Search, file: Path) -> str:
    """How `sources` calls a file: below its root, with the hub id in front where there is one."""
    root, origin = search.roots[0], search.about.get("origin", "")
    name = str(file.relative_to(root)) if root.is_dir() and file.is_relative_to(root) else file.name
    return text(f"{origin}/{name}" if origin else name)


def _records(file: Path, problems: Problems, absent: set[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(where in the file, row); what cannot be read is in `problems`, optional columns that it lacks in `absent`."""
    if why := _damaged(file):
        problems.add(file, why)
    elif file.name.endswith(".parquet"):
        yield from _parquet(file, problems, absent)
    else:
        for number, record in numbered_json_lines(file, problems):
            missing = [c for c in REQUIRED if c not in record]
            if missing:
                problems.add(f"{file}, line {number}", f"missing: {', '.join(missing)}")
            else:
                absent |= set(OPTIONAL) - set(record)
                yield f"line {number}", record


def _parquet(file: Path, problems: Problems, absent: set[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Row group by row group: neither memory nor damage goes beyond one of them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(file, pre_buffer=False) as table:
        names = table.schema_arrow.names
        wanted = [c for c in (*REQUIRED, *OPTIONAL) if c in names]
        absent |= set(OPTIONAL) - set(names)
        if table.metadata.num_rows == 0:
            problems.add(file, "no row in it")
        end = 0
        for group in range(table.num_row_groups):
            number, end = end, end + table.metadata.row_group(group).num_rows
            try:
                for batch in table.iter_batches(batch_size=BATCH, row_groups=[group], columns=wanted):
                    for record in batch.to_pylist():
                        number += 1
                        yield f"row {number}", record
            except (pa.ArrowException, OSError, ValueError) as e:
                problems.add(f"{file}, rows {number + 1} to {end}", f"damaged: {' '.join(str(e).split())}")


def _published(value: Any, where: str) -> str:
    """The published label, in our spelling; "" where none was given. Raises EftError for one that is not known."""
    if value is None or value == "":
        return ""
    known = LABELS.get(re.sub(r"[\s_-]+", "", value).lower()) if isinstance(value, str) else None
    if known is None:
        raise EftError(f"unknown label {value!r}", where=where,
                       why="known are improved, no_change (unchanged) and regressed, in any spelling",
                       way_out="look at the column improvement_label: a new label is a new schema, and wants a "
                               "decision what it means")  # fmt: skip
    return str(known)


def _row(
    record: dict[str, Any], published: str, source: str, search: Search, options: Options, counts: Counter[str],
    where: str,
) -> Transition | None:  # fmt: skip
    parent, child = (text(v) if isinstance(v := record.get(k), str) else None for k in ("parent_code", "child_code"))
    system, user, response = (text(record.get(k)) for k in ("system_prompt", "user_prompt", "response"))
    metrics = {}
    for name in ("parent_metrics", "child_metrics"):
        metrics[name] = _object(record.get(name))
        if metrics[name] is None and record.get(name) not in (None, ""):
            search.problems.add(where, f"{name} is no JSON object: {str(record.get(name))[:60]!r}")
    about = _object(record.get("metadata")) or {}
    ours = _ours(about)
    release = options.release or ours.get("scaffold_release", "")
    language = ours.get("language") or _language(about, user, parent or child or "")
    shown = prompts.current_program(user)
    asked = prompts.edit_kind(user)
    found = replay(
        candidates=[c for c in dict.fromkeys((parent, shown)) if c is not None],
        responses=[response] if response else [], child=child,
        kinds=[asked, "rewrite" if asked == "diff" else "diff"] if asked else ["diff", "rewrite"],
        dialects=dialects(release), language=language, pattern=options.diff_pattern,
    )  # fmt: skip
    if not found.parent and not found.child:
        search.problems.add(where, "no parent and no child code in it")
        return None
    counts["parent_missing"] += parent is None
    counts["parent_recovered"] += parent is None and shown is not None
    counts["child_recovered"] += child is None and bool(found.child)
    task = text(record.get("task")) or options.task or search.name
    ids = (text(record.get("parent_id")) or f"code:{code_hash(found.parent)}",
           text(record.get("child_id")) or f"code:{code_hash(found.child)}")  # fmt: skip
    sources = [source, *(f"{k}: {v}" for k in ("global_uid", "instance_uid") if (v := text(record.get(k)))),
               *([f"published label: {published}"] if published else [])]  # fmt: skip
    return Transition(
        id=transition_id(f"{search.name}/{task}", *ids), run=search.name, scaffold=search.scaffold,
        scaffold_release=options.release, task=task, domain=text(record.get("domain")) or options.domain,
        suite_role=options.role, iteration=integer(record.get("iteration"), 0),
        island=integer(record.get("island_id"), -1), generation=integer(record.get("generation"), 0),
        parent_id=ids[0], child_id=ids[1], language=language, parent_code=found.parent, child_code=found.child,
        parent_metrics=_stored(metrics["parent_metrics"]), child_metrics=_stored(metrics["child_metrics"]),
        parent_artifacts="{}", child_artifacts="{}", prompt_system=system, prompt_user=user,
        prompt_format=prompts.detect_format(system, user, release=options.release), response=response,
        reasoning=text(record.get("reasoning")), edit_kind=found.kind, replay=found.state,
        model=text(about.get("model")), prompt_tokens=-1, response_tokens=-1, sources=to_json(sources),
        prompt_source="logged" if user or system else "", origin_id=ids[0],
    ).replace(**ours, **({"id": transition_id(ours["run"], *ids)} if "run" in ours else {}))  # fmt: skip


def _ours(about: dict[str, Any]) -> dict[str, Any]:
    """What data_tools/finch_writer.py put into `metadata`, as columns of a Transition; {} in anybody else's file."""
    found = {}
    for name, value in (about["eft"] if isinstance(about.get("eft"), dict) else {}).items():
        if name not in KEPT:
            continue
        if name in ("prompt_tokens", "response_tokens"):
            found[name] = integer(value, -1)
        elif isinstance(value, str) and (name not in _JSON or _is(_JSON[name], value)):
            found[name] = text(value)
    return found if {"run", "scaffold"} <= set(found) else {}


_JSON = {"parent_artifacts": dict, "child_artifacts": dict, "inspirations": list}


def _is(kind: type, value: str) -> bool:
    try:
        return isinstance(json.loads(value), kind)
    except (ValueError, RecursionError):
        return False


def _object(value: Any) -> dict[str, Any] | None:
    """An object out of JSON text (NaN and Infinity literals are accepted), or as it is; None where it is none."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict) else None


def _stored(metrics: dict[str, Any] | None) -> str:
    return "" if metrics is None else text(to_json(metrics))


_FENCE = re.compile(r"^# Current Program[ \t]*\r?\n\s*```[ \t]*([A-Za-z+#]+)", re.MULTILINE)
_C = re.compile(r"^[ \t]*#[ \t]*include\b|^int main\b", re.MULTILINE)


def _language(about: dict[str, Any], user: str, code: str) -> str:
    """The schema has no column for it: what the prompt calls its current program, else what the code looks like."""
    tags = _FENCE.findall(user)
    return text(about.get("language")) or (tags[-1].lower() if tags else "cpp" if _C.search(code) else "python")


# ------------------------------------------------------------------------------------------------------------ report


def _recomputed(row: Transition) -> str:
    """The label by the metrics' combined_score; "" where one end has none: then only the published label speaks."""
    judged = label(row, allow_average=False)
    ends = {judged.parent_validity, judged.child_validity}
    return "" if ends & {"", str(Validity.NO_SCORE)} else judged.label


def _count(row: Transition, counts: Counter[str]) -> None:
    counts["children"] += 1
    counts["with_prompt"] += bool(row.prompt_user)
    counts["with_response"] += bool(row.response)
    counts["with_reasoning"] += bool(row.reasoning)
    counts[f"replay_{row.replay}"] += 1


def _report(
    search: Search, counts: Counter[str], verdicts: Counter[tuple[str, str]], absent: set[str], tasks: int
) -> None:
    """Fill the search's counts and tell what the published labels are worth."""
    unpublished = sum(n for (published, _), n in verdicts.items() if not published)
    unscored = sum(n for (published, own), n in verdicts.items() if published and not own)
    agree = sum(n for (published, own), n in verdicts.items() if published and published == own)
    differ = {pair: n for pair, n in verdicts.most_common() if all(pair) and pair[0] != pair[1]}
    names = ("rows", "children", "with_prompt", "with_response", "with_reasoning", "parent_missing", "repeated",
             "parent_recovered", "child_recovered", "replay_match", "replay_mismatch", "replay_unknown")  # fmt: skip
    search.counts = {
        **{name: counts[name] for name in names}, "iterations": counts["rows"], "programs": counts["children"],
        "tasks": tasks, "transitions": counts["children"], "labels_agree": agree,
        "labels_differ": sum(differ.values()), "labels_without_score": unscored, "labels_absent": unpublished,
        "bad_files": len(search.problems),
    }  # fmt: skip
    compared = agree + sum(differ.values())
    search.remarks = [f"published labels: {agree} of {compared} are what combined_score says"]
    if differ:
        pairs = ", ".join(f"{published} is {own} x{n}" for (published, own), n in differ.items())
        search.notes.append(f"{sum(differ.values())} published labels are not what combined_score says ({pairs}); "
                            "'eft label' goes by the metrics")  # fmt: skip
    if unscored:
        search.notes.append(f"{unscored} rows have a published label, but no combined_score at both ends to hold it "
                            "against: 'eft label' goes by --score-key or by the scaffold's average")  # fmt: skip
    if unpublished:
        search.notes.append(f"{unpublished} rows have no published label")
    if counts["repeated"]:
        search.notes.append(f"{counts['repeated']} rows were there twice (same task, parent and child), read once")
    if absent:
        search.notes.append(f"columns that are missing in some rows or files: {', '.join(sorted(absent))}")
    if counts["replay_mismatch"]:
        search.notes.append(f"{counts['replay_mismatch']} children are not what their reply makes of their parent")
