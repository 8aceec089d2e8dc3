"""Clean: drop what must not be learned, with a reason for every row; redact what must not be seen.

    eft clean IN -o OUT [--tokenizer NAME]

Reads the output of `eft label`; writes OUT/transitions.parquet (what stays), OUT/dropped.parquet (what does not, with a
column `reason`), OUT/tokens.parquet (tokens of every row, by tokenizer), OUT/leaks.json and OUT/near_duplicates.json
(every hit by name) and OUT/manifest.json (drops by reason).

The rules are the paper's (EFT, arXiv 2606.29082: systematic errors, hard-negative breakages, overlong rows) and ours
(replies that do not explain their child, copies, near copies, leaks of held-out tasks). Each can be switched off by its
config key. A row has the first reason that applies, in the order of `REASONS`. Repairs stay: they are what a broken
program needs. What is known of the rows is kept in OUT/facts, so a second run with other options decides anew and
counts nothing twice.

Raises EftError where a length limit cannot be decided without a tokenizer, and where two runs that claim the same task
score the same program differently.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from data_tools import facts, near, shards
from data_tools.conflicts import check_scores
from data_tools.counts import TOKENS, token_schema
from data_tools.redact import redact_table
from data_tools.source import check, start
from data_tools.split import rank
from eft import manifest
from eft.errors import EftError
from eft.records import TABLE, Label, Validity, schema

DROPPED, LEAKS, NEAR = "dropped.parquet", "leaks.json", "near_duplicates.json"
REASONS = {
    "heldout_role": "the task is held out or guards the gate",
    "leak": "it comes from a held-out or gate task under another name (see leaks.json)",
    "unlabelled": "metrics of the parent or the child were not logged",
    "system_error": "the machine failed, not the program",
    "timeout": "the child's evaluation timed out",
    "syntax_error": "the edit broke the syntax",
    "breakage": "a valid parent became an invalid child",
    "unrecoverable": "neither parent nor child is valid",
    "identical": "the child is the parent",
    "replay_mismatch": "the child is not what the reply makes of the parent",
    "odd_language": "the language is not one of `languages`",
    "response_too_long": "the response has too many tokens",
    "too_long": "prompt and response together have too many tokens",
    "duplicate": "the same edit of the same parent is there already",
    "near_duplicate": "nearly the same edit of the same task is there already (see near_duplicates.json)",
    "parent_cap": "its parent has `max_rows_per_parent` children already",
    "task_cap": "its task has `max_rows_per_task` rows already",
}


class Config(shards.Workers):
    positional: ClassVar[str] = "source"

    source: Path = Field(Path("label"), description="Output folder of 'eft label'.")
    tokenizer: str = Field(
        "", description="Tokenizer of the model to train: a folder, a hub id, embedded:smollm2-135m or random:qwen3."
    )
    also_count: list[str] = Field(
        default_factory=list, description="Further tokenizers: their counts are kept, and what the limits would drop."
    )
    max_response_tokens: int | None = Field(16_384, gt=0, description="Longest response, in tokens.")
    max_tokens: int | None = Field(32_768, gt=0, description="Longest prompt and response together, in tokens.")
    suite: str = Field(
        "standard", description="Rows that leak its held-out and gate tasks go: a shipped suite or its YAML file; ''."
    )
    redact: bool = Field(True, description="Take secrets and home folders out of prompts, logs and programs.")
    drop_system_errors: bool = Field(True, description="Drop rows where the machine failed.")
    drop_syntax_errors: bool = Field(True, description="Drop children that do not parse.")
    drop_timeouts: bool = Field(True, description="Drop children that timed out.")
    drop_breakage: bool = Field(True, description="Drop valid parents with invalid children.")
    drop_unrecoverable: bool = Field(True, description="Drop rows with both ends invalid.")
    drop_identical: bool = Field(True, description="Drop children identical to their parent.")
    drop_duplicates: bool = Field(True, description="Drop exact duplicates of an edit.")
    drop_replay_mismatch: bool = Field(True, description="Drop children that their reply does not explain.")
    near_duplicates: float | None = Field(
        None, gt=0, le=1, description="Drop edits this similar (Jaccard, 0 to 1) to an earlier one of the same task "
        "and label; null: keep them."
    )  # fmt: skip
    languages: list[str] = Field(default_factory=list, description="Only these languages; default: all.")
    max_rows_per_parent: int | None = Field(None, gt=0, description="At most so many children of one program.")
    max_rows_per_task: int | None = Field(None, gt=0, description="At most so many rows of one task.")
    allow_mixed_scores: bool = Field(
        False, description="Take runs that score the same program of the same task differently."
    )


def inputs(config: Config) -> list[Path]:
    suite = config.path(config.suite) if config.suite else None
    return [config.path(config.source), *([suite] if suite is not None and suite.is_file() else [])]


def run(config: Config) -> Path:
    started, source, out = time.time(), config.path(config.source), config.out()
    check(source, out, "label")
    shards.check_executor(config)
    wanted = _wanted(config)
    wanted.check()  # a mistyped name must not cost an earlier output
    start(out)
    with manifest.clear_disk_errors(out):
        tables, anew = facts.find(source, out / "facts", wanted, config)
        known = tables["facts"].to_pydict()
        total = len(known.get("id", ()))
        if total == 0:
            raise EftError("there are no rows to clean", where=source)
        if not config.allow_mixed_scores:
            check_scores(known, source)
        lengths = _lengths(config, tables, known)
        reasons, reports = decide(config, known, lengths, tables)
        files, redacted = _write(config, source, out, reasons)
    files += [_write_counts(config, out, known, tables), *_write_reports(out, reports)]
    dropped = Counter(r for r in reasons if r)
    kept = [label for label, reason in zip(known["label"], reasons, strict=True) if not reason]
    counts = {"rows": total, "kept": len(kept), "dropped": total - len(kept),
              "reasons": {r: dropped[r] for r in REASONS if dropped[r]},
              **{str(k): kept.count(k) for k in Label}, "tokenizer": config.tokenizer, "redacted": dict(redacted),
              "over_limits": _over(config, tables), "found_anew": anew}  # fmt: skip
    _say(config, counts, reports)
    manifest.write(out, "clean", config.model_dump(mode="json"), inputs(config), files, counts, started)
    return out


def _wanted(config: Config) -> facts.Wanted:
    suite = config.suite
    if suite and config.path(suite).is_file():
        suite = str(config.path(suite))
    names = dict.fromkeys([config.tokenizer, *config.also_count] if config.tokenizer else config.also_count)
    return facts.Wanted(
        redact=config.redact, tokenizers=tuple(names), near=config.near_duplicates is not None, suite=suite
    )


# ------------------------------------------------------------------------------------------------------------ reasons


def decide(config: Config, known: dict[str, list], lengths: list[tuple[int, int]] | None,
           tables: dict[str, Any]) -> tuple[list[str], dict[str, list]]:  # fmt: skip
    """The reason of every row, "" for those that stay; and the reports on leaks and near duplicates."""
    rows = [dict(zip(known, values, strict=True)) for values in zip(*known.values(), strict=True)]
    hits = tables["leaks"]["hits"].to_pylist() if "leaks" in tables else [""] * len(rows)
    leaked = leaking(rows, hits)
    seen: set[tuple[str, str, str]] = set()
    reasons = []
    for i, row in enumerate(rows):
        if row["suite_role"] in ("heldout", "gate"):
            reasons.append("heldout_role")
        elif i in leaked:
            reasons.append("leak")
        else:
            long = too_long(*lengths[i], config) if lengths is not None else ""
            reasons.append(reason_of(row, config, seen, long))
    reports = {"leaks": _leaks_report(rows, leaked, hits), "near": []}
    if config.near_duplicates is not None:
        reports["near"] = _drop_near(config, rows, reasons, tables["near"])
    for cap, reason, group in ((config.max_rows_per_parent, "parent_cap", lambda r: (r["task"], r["parent"])),
                               (config.max_rows_per_task, "task_cap", lambda r: r["task"])):  # fmt: skip
        if cap is not None:
            _cap(rows, reasons, cap, reason, group)
    return reasons, reports


def reason_of(row: dict[str, Any], config: Config, seen: set[tuple[str, str, str]], long: str = "") -> str:
    """Why a row (`facts.facts_of`) must go for what it is itself, "" where it may stay. `seen`: edits before it that
    stay; `long`: the length limit that it breaks. A row that goes makes no other one a duplicate."""
    if not row["label"]:
        return "unlabelled"
    if config.drop_system_errors and row["system_error"]:
        return "system_error"
    if config.drop_timeouts and row["child_validity"] == Validity.TIMEOUT:
        return "timeout"
    if config.drop_syntax_errors and row["syntax_error"]:
        return "syntax_error"
    if config.drop_breakage and row["label"] == Label.BREAKAGE:
        return "breakage"
    if config.drop_unrecoverable and row["label"] == Label.UNRECOVERABLE:
        return "unrecoverable"
    if config.drop_identical and row["parent"] == row["child"]:
        return "identical"
    if config.drop_replay_mismatch and row["replay"] == "mismatch":
        return "replay_mismatch"
    if config.languages and row["language"].lower() not in {name.lower() for name in config.languages}:
        return "odd_language"
    if long:
        return long
    if config.drop_duplicates and row["parent"] != row["child"]:  # different replies that come to nothing are not one
        edit = (row["task"], row["parent"], row["child"])
        if edit in seen:
            return "duplicate"
        seen.add(edit)
    return ""


def leaking(rows: list[dict[str, Any]], hits: list[str]) -> set[int]:
    """Rows that show a held-out task, and all rows of a search in which one does (`leaks`, kind "lineage")."""
    searches = {(row["run"], row["task"]) for row, hit in zip(rows, hits, strict=True) if hit}
    return {i for i, row in enumerate(rows) if (row["run"], row["task"]) in searches}


def _leaks_report(rows: list[dict[str, Any]], leaked: set[int], hits: list[str]) -> list[dict[str, Any]]:
    """One entry per search and sign: how many rows show it, the first of them by id."""
    found: dict[tuple, dict[str, Any]] = {}
    lineage: Counter[tuple[str, str]] = Counter()
    for i in sorted(leaked):
        row = rows[i]
        # the highest share last: parent and child may both show a sign, and that is one row
        signs = {(kind, task): share for kind, task, share in sorted(json.loads(hits[i]) if hits[i] else [])}
        lineage[row["run"], row["task"]] += not signs
        for (kind, task), share in signs.items():
            entry = found.setdefault((row["run"], row["task"], kind, task), {
                "run": row["run"], "task": row["task"], "kind": kind, "of": task, "rows": 0, "share": share,
                "first": row["id"]})  # fmt: skip
            entry["rows"] += 1
            entry["share"] = max(entry["share"], share)
    for (run_name, task), number in lineage.items():
        if number:
            of = sorted({e["of"] for e in found.values() if (e["run"], e["task"]) == (run_name, task)})
            found[run_name, task, "lineage", ""] = {
                "run": run_name, "task": task, "kind": "lineage", "of": ", ".join(of), "rows": number, "share": None,
                "first": next(rows[i]["id"] for i in sorted(leaked)
                              if (rows[i]["run"], rows[i]["task"]) == (run_name, task) and not hits[i])}  # fmt: skip
    return [found[key] for key in sorted(found)]


def _drop_near(config: Config, rows: list[dict[str, Any]], reasons: list[str], table: Any) -> list[dict[str, Any]]:
    import numpy as np

    raw = b"".join(table["signature"].to_pylist())
    signatures = np.frombuffer(raw, np.uint32).reshape(len(rows), facts.PERMUTATIONS)
    groups = [(r["task"], r["label"]) for r in rows]
    found = near.duplicates(signatures, groups, [not r for r in reasons], config.near_duplicates or 1.0)
    report = []
    for i, j in enumerate(found):
        if j >= 0:
            reasons[i] = "near_duplicate"
            report.append({"id": rows[i]["id"], "of": rows[j]["id"], "task": rows[i]["task"],
                           "similarity": round(float((signatures[i] == signatures[j]).mean()), 3)})  # fmt: skip
    return report


def _cap(rows: list[dict[str, Any]], reasons: list[str], cap: int, reason: str, group: Any) -> None:
    """Keep a sample of every group: the same rows whatever the order of the table."""
    members: dict[Any, list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        if not reasons[i]:
            members[group(row)].append(i)
    for indices in members.values():
        if len(indices) > cap:
            for i in sorted(indices, key=lambda i: rank(0, reason, rows[i]["id"]))[cap:]:
                reasons[i] = reason


# ------------------------------------------------------------------------------------------------------------- length


def _lengths(config: Config, tables: dict[str, Any], known: dict[str, list]) -> list[tuple[int, int]] | None:
    """(prompt tokens, response tokens) of every row; None where no limit is set, or every row is short in any
    tokenizer's tokens (a token is at least a byte). Raises EftError where bytes do not decide."""
    if config.max_tokens is None and config.max_response_tokens is None:
        return None
    if config.tokenizer:
        table = tables[f"tokens:{config.tokenizer}"]
        return list(zip(table["prompt_tokens"].to_pylist(), table["response_tokens"].to_pylist(), strict=True))
    for i, (response, both) in enumerate(zip(known["response_bytes"], known["both_bytes"], strict=True)):
        if (config.max_response_tokens is not None and response > config.max_response_tokens) or (
            config.max_tokens is not None and both > config.max_tokens
        ):
            raise EftError("the length of a row cannot be decided without a tokenizer",
                           where=f"{known['task'][i]}, row {known['id'][i]}",
                           why=f"{both} bytes could be more than {config.max_tokens} tokens",
                           way_out="give --tokenizer NAME (of the model to train), or switch the limits off with "
                                   "--set max_tokens=null --set max_response_tokens=null")  # fmt: skip
    return None


def too_long(prompt: int, response: int, config: Config) -> str:
    """Which length limit a row breaks, "" for none. Counts are tokens."""
    if config.max_response_tokens is not None and response > config.max_response_tokens:
        return "response_too_long"
    if config.max_tokens is not None and prompt + response > config.max_tokens:
        return "too_long"
    return ""


def _over(config: Config, tables: dict[str, Any]) -> dict[str, int]:
    """Rows of the whole table over a length limit, by tokenizer: what another model family would lose."""
    return {
        kind[7:]: sum(bool(too_long(p, r, config)) for p, r in zip(
            table["prompt_tokens"].to_pylist(), table["response_tokens"].to_pylist(), strict=True))
        for kind, table in tables.items() if kind.startswith("tokens:")
    }  # fmt: skip


# -------------------------------------------------------------------------------------------------------------- write


def _write(config: Config, source: Path, out: Path, reasons: list[str]) -> tuple[list[Path], Counter[str]]:
    """Both tables, row group by row group: read, redacted and parted by workers, written here."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    files, redacted = [out / TABLE, out / DROPPED], Counter()
    parts = shards.units(source)
    work = functools.partial(_parted, reasons=reasons, redact=config.redact)
    with (
        manifest.atomic_file(files[0]) as first, pq.ParquetWriter(first, schema(), compression="zstd") as kept,
        manifest.atomic_file(files[1]) as second,
        pq.ParquetWriter(second, schema(reason="str"), compression="zstd") as dropped,
    ):  # fmt: skip
        for blocks, counts in shards.mapped(work, parts, config):
            redacted.update(counts)
            for writer, block in zip((kept, dropped), blocks, strict=True):
                table = pa.ipc.open_stream(block).read_all()
                if len(table):
                    writer.write_table(table)
    return files, redacted


def _parted(unit: shards.Unit, *, reasons: list[str], redact: bool) -> tuple[list[bytes], Counter[str]]:
    """A row group's rows that stay, and those that do not with their reasons, as Arrow streams. Runs in a worker."""
    import pyarrow as pa
    import pyarrow.compute as pc

    table, counts = unit.transitions(), Counter()
    if redact:
        table = redact_table(table, counts)
    ours = pa.array(reasons[unit.first : unit.first + unit.rows], pa.string())
    stays = pc.equal(ours, "")
    leaves = pc.invert(stays)
    blocks = []
    for part in (table.filter(stays), table.filter(leaves).append_column("reason", ours.filter(leaves))):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, part.schema) as writer:
            writer.write_table(part)
        blocks.append(sink.getvalue().to_pybytes())
    return blocks, counts


def _write_counts(config: Config, out: Path, known: dict[str, list], tables: dict[str, Any]) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = [kind[7:] for kind in tables if kind.startswith("tokens:")]
    parts = []
    for name in names:
        table, count = tables[f"tokens:{name}"], len(known["id"])
        parts.append(pa.table([
            pa.array(known["id"]), pa.array([facts.identity(name)] * count), pa.array([name] * count),
            table["prompt_tokens"], table["response_tokens"]], schema=token_schema()))  # fmt: skip
    with manifest.atomic_file(out / TOKENS) as temporary:
        pq.write_table(
            pa.concat_tables(parts) if parts else token_schema().empty_table(), temporary, compression="zstd"
        )
    return out / TOKENS


def _write_reports(out: Path, reports: dict[str, list]) -> list[Path]:
    for name, key in ((LEAKS, "leaks"), (NEAR, "near")):
        manifest.write_json(out / name, reports[key])
    return [out / LEAKS, out / NEAR]


def _say(config: Config, counts: dict[str, Any], reports: dict[str, list]) -> None:
    share = counts["kept"] / counts["rows"]
    print(
        f"clean: {counts['kept']} of {counts['rows']} rows stay ({share:.1%}; the paper's Finch-Collection kept 90.6%)",
        file=sys.stderr,
    )
    for reason, number in counts["reasons"].items():
        print(f"  dropped x{number}: {reason} ({REASONS[reason]})", file=sys.stderr)
    for kind, number in sorted(counts["redacted"].items()):
        print(f"  redacted x{number}: {kind.replace('_', ' ')}", file=sys.stderr)
    if config.near_duplicates is not None:
        lost = len(reports["near"])
        print(
            f"  near duplicates at {config.near_duplicates:g}: {lost} lost, {counts['kept']} rows survive",
            file=sys.stderr,
        )
    for name in config.also_count:
        print(f"  with the tokenizer {name}, {counts['over_limits'][name]} rows are over the limits", file=sys.stderr)
    if counts["reasons"].get("heldout_role"):
        print("warning: rows of held-out or gate tasks were harvested; they must never be trained on", file=sys.stderr)
    grouped: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for hit in reports["leaks"]:
        grouped[hit["of"], hit["kind"], hit["task"]].append(hit)
    for (of, kind, task), hits in grouped.items():
        runs = f"'{hits[0]['run']}'" + (f" and {len(hits) - 1} more runs" if len(hits) > 1 else "")
        print(f"warning: leak of {of} by {kind}: {sum(h['rows'] for h in hits)} rows of task '{task}' in {runs}, e.g. "
              f"row {hits[0]['first']} (all in {LEAKS})", file=sys.stderr)  # fmt: skip
