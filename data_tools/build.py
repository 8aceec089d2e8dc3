"""Build: training sets from clean transitions — SFT on improved rows, KTO on improved against regressed ones.

    eft build IN -o OUT

Writes OUT/sft/{train,validation}.parquet, OUT/kto/{train,validation}.parquet, OUT/kto/weights.json and
OUT/manifest.json. Columns: id, task, domain, run, prompt (list of {role, content}, as logged), completion (one
assistant message: the reply as logged), reasoning, delta, label, prompt_format, edit_kind, model. `label` is the
transition's label in sft/, and whether the row is desirable (bool) in kto/. What both sides of the split share is
nothing: it goes by task.

Left out and counted: rows without prompt or reply, rows labelled on averaged scores (unless `include_averaged`), rows
over `max_prompt_tokens`. Raises EftError for rows of held-out or gate tasks, and where no improved row is left.

One task alone cannot be split by task: its validation rows are then children of other parents, which is said loudly.
Without regressed rows there is no kto/, which is said as well.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from data_tools import pairing, split
from data_tools.counts import messages, read_counts
from data_tools.source import check, start
from eft import edits, manifest
from eft.config import StageConfig
from eft.errors import EftError, UsageError
from eft.records import Label, ScoreKind, Transition, read_transitions, writing

WEIGHTS = "weights.json"


class Config(StageConfig):
    positional: ClassVar[str] = "source"

    source: Path = Field(Path("clean"), description="Output folder of 'eft clean'.")
    validation: float = Field(0.05, ge=0, lt=1, description="Share of the tasks that validate.")
    seed: int = Field(0, description="Decides the split, the order and the samples.")
    max_rows_per_task: int | None = Field(None, gt=0, description="At most so many rows of one task and label.")
    rank: Literal["random", "gain"] = Field(
        "random", description="Which rows a cap keeps: a sample, or the largest changes."
    )
    max_prompt_tokens: int | None = Field(
        None, gt=0, description="Leave out longer prompts, as counted by 'eft clean'."
    )
    include_averaged: bool = Field(False, description="Take rows that were labelled on averaged scores.")
    include_repair: bool = Field(False, description="SFT also on repairs (an invalid parent became valid).")
    response: Literal["logged", "diff"] = Field(
        "logged",
        description="The reply as logged, or as the smallest SEARCH/REPLACE blocks (where a diff was asked for).",
    )
    kto: bool = Field(True, description="Write the KTO set.")
    kto_block: int = Field(
        2, ge=2, description="The KTO trainer's batch per device: row counts become a multiple of it."
    )


def inputs(config: Config) -> list[Path]:
    return [config.path(config.source)]


def run(config: Config) -> Path:
    started, source, out = time.time(), config.path(config.source), config.out()
    check(source, out, "clean")
    if (manifest.read(source) or {}).get("stage") == "label":
        print("warning: this is the output of 'eft label', nothing has been cleaned", file=sys.stderr)
    left_out: Counter[str] = Counter()
    rows = _usable(config, source, left_out)
    sft = [r for r in rows if r.label == Label.IMPROVED or (config.include_repair and r.label == Label.REPAIR)]
    regressed = [r for r in rows if r.label == Label.REGRESSED]
    if not any(r.label == Label.IMPROVED for r in rows):
        raise EftError("there is no improved row to train on", where=source, why=_why_empty(rows, left_out),
                       way_out="harvest more; without combined_score: 'eft label --score-key NAME'")  # fmt: skip
    validates = _split(config, rows)
    start(out)
    files, counts = [], {"rows": len(rows), "left_out": dict(left_out)}

    sft = _cap(sft, config)
    for name, part in _parts(sft, validates).items():
        part = sorted(part, key=lambda r: split.rank(config.seed, "sft", r.id))
        files.append(_write(out / "sft" / f"{name}.parquet", part, config, flag=False))
        counts[f"sft_{name}"] = len(part)
    counts["tasks"] = len({r.task for r in sft})
    counts["validation_tasks"] = len({r.task for r in sft if validates(r)})

    desirable = _cap([r for r in rows if r.label == Label.IMPROVED], config)
    files += _kto(config, out, _parts(desirable, validates), _parts(_cap(regressed, config), validates), counts)
    _say(config, counts)
    manifest.write(out, "build", config.model_dump(mode="json"), inputs(config), files, counts, started)
    return out


# ------------------------------------------------------------------------------------------------------------ choose


def _usable(config: Config, source: Path, left_out: Counter[str]) -> list[Transition]:
    """The rows that can be trained on, by id. Raises EftError for roles that must never be."""
    tokens = read_counts(source) if config.max_prompt_tokens is not None else {}
    if config.max_prompt_tokens is not None and not tokens:
        raise UsageError("max_prompt_tokens needs token counts, and there are none", where=source,
                         way_out="run 'eft clean' with --tokenizer NAME")  # fmt: skip
    rows, wanted = [], {Label.IMPROVED, Label.REGRESSED} | ({Label.REPAIR} if config.include_repair else set())
    for row in read_transitions(source):
        if row.suite_role in ("heldout", "gate"):
            raise EftError(f"a row of a {row.suite_role} task: it must never be trained on",
                           where=f"{row.task}, row {row.id}", way_out="run 'eft clean' first")  # fmt: skip
        if row.label not in wanted:
            reason = row.label or "unlabelled"
        elif not row.prompt_user:
            reason = "no_prompt"
        elif not row.response.strip():
            reason = "no_response"
        elif row.score_kind == ScoreKind.AVERAGED and not config.include_averaged:
            reason = "averaged"
        elif tokens and tokens.get(row.id, (0, 0))[0] > (config.max_prompt_tokens or 0):
            reason = "prompt_too_long"
        else:
            rows.append(row)
            continue
        left_out[reason] += 1
    return sorted(rows, key=lambda r: r.id)


def _why_empty(rows: list[Transition], left_out: Counter[str]) -> str:
    found = Counter(r.label for r in rows) + left_out
    return ", ".join(f"{n} {name}" for name, n in sorted(found.items())) or "the table is empty"


def _split(config: Config, rows: list[Transition]):
    """A function that says whether a row validates. Rows whose suite role is `validation` always do."""
    named = {r.task for r in rows if r.suite_role == "validation"}
    if named:
        if not {r.task for r in rows if r.label == Label.IMPROVED} - named:
            raise EftError("every improved row is of a validation task", where=", ".join(sorted(named)[:5]),
                           way_out="harvest searches on training tasks too")  # fmt: skip
        return lambda row: row.task in named
    family = split.families(rows)
    for name in sorted(set(family.values())):
        members = sorted(task for task, first in family.items() if first == name)
        if len(members) > 1:
            print(f"warning: {', '.join(members)} share programs: they are split as one task (harvest them with the "
                  "same --task to cap and name them as one, too)", file=sys.stderr)  # fmt: skip
    improved = Counter(family[r.task] for r in rows if r.label == Label.IMPROVED)
    chosen = split.validation_tasks(improved, family.values(), config.validation, config.seed)
    if chosen or config.validation == 0:
        return lambda row: family[row.task] in chosen
    # One task with improved rows: by parent, within it.
    only = next(iter(improved))
    ours = [r for r in rows if family[r.task] == only]
    parents = split.validation_parents(ours, config.validation, config.seed)
    kind = "its validation rows have other parents, but the same task" if parents else "there are no validation rows"
    print(f"warning: only one task ({only}) has improved rows, so the split cannot go by task: {kind}; the validation "
          "loss will not show whether the model learned anything beyond it", file=sys.stderr)  # fmt: skip
    return lambda row: family[row.task] == only and split.parent_of(row) in parents


def _parts(rows: list[Transition], validates) -> dict[str, list[Transition]]:
    return {"train": [r for r in rows if not validates(r)], "validation": [r for r in rows if validates(r)]}


def _cap(rows: list[Transition], config: Config) -> list[Transition]:
    return split.capped(rows, config.max_rows_per_task, config.rank, config.seed)


# ------------------------------------------------------------------------------------------------------------- write


def _kto(config: Config, out: Path, desirable: dict, undesirable: dict, counts: dict[str, Any]) -> list[Path]:
    """Write kto/, or say why not. Returns its files; a KTO set of an earlier build is removed."""
    shutil.rmtree(out / "kto", ignore_errors=True)
    if not config.kto:
        return []
    parts = {name: pairing.interleave(desirable[name], undesirable[name], config.seed, config.kto_block)
             for name in ("train", "validation")}  # fmt: skip
    good = {name: sum(r.label == Label.IMPROVED for r in rows) for name, rows in parts.items()}
    bad = {name: len(rows) - good[name] for name, rows in parts.items()}
    if not good["train"] or not bad["train"]:
        missing = "regressed" if good["train"] else "improved" if bad["train"] else "whole block of"
        print(f"warning: no {missing} rows to train on: there is no KTO set, and 'eft kto' cannot run on this build",
              file=sys.stderr)  # fmt: skip
        return []
    weights = pairing.weights(good["train"], bad["train"])
    counts |= {"desirable_weight": weights[0], "undesirable_weight": weights[1]}
    files = []
    for name, rows in parts.items():
        files.append(_write(out / "kto" / f"{name}.parquet", rows, config, flag=True))
        trimmed = len(desirable[name]) + len(undesirable[name]) - len(rows)
        counts |= {f"kto_{name}": len(rows), f"kto_{name}_desirable": good[name], f"kto_{name}_trimmed": trimmed}
    counts |= {"kto_neighbours_of_one_task": pairing.neighbours_of_one_task(parts["train"]),
               "kto_longest_label_run": pairing.label_runs(parts["train"])}  # fmt: skip
    manifest.write_json(out / "kto" / WEIGHTS, {
        "desirable_weight": weights[0], "undesirable_weight": weights[1], "desirable": good["train"],
        "undesirable": bad["train"]})  # fmt: skip
    return [*files, out / "kto" / WEIGHTS]


def columns(*, flag: bool) -> Any:
    """The Arrow schema of a training set; `flag`: `label` is a bool (KTO), else the label's name."""
    import pyarrow as pa

    turn = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
    return pa.schema([
        ("id", pa.string()), ("task", pa.string()), ("domain", pa.string()), ("run", pa.string()), ("prompt", turn),
        ("completion", turn), ("reasoning", pa.string()), ("delta", pa.float64()),
        ("label", pa.bool_() if flag else pa.string()), ("prompt_format", pa.string()), ("edit_kind", pa.string()),
        ("model", pa.string()),
    ])  # fmt: skip


def _write(file: Path, rows: Iterable[Transition], config: Config, *, flag: bool) -> Path:
    with writing(file, columns(flag=flag)) as table:
        for row in rows:
            table.add({
                "id": row.id, "task": row.task, "domain": row.domain, "run": row.run, "prompt": messages(row),
                "completion": [{"role": "assistant", "content": completion(row, config.response)}],
                "reasoning": row.reasoning, "delta": row.delta,
                "label": row.label == Label.IMPROVED if flag else row.label, "prompt_format": row.prompt_format,
                "edit_kind": row.edit_kind, "model": row.model,
            })  # fmt: skip
    return file


def completion(row: Transition, form: str) -> str:
    """The reply to learn: as logged; or (`form` "diff") the smallest diff that says the same, where a diff was
    asked for and can say it."""
    if form == "diff" and row.edit_kind == "diff":
        try:
            return edits.render_diff(row.parent_code, row.child_code)
        except ValueError:
            pass
    return row.response


def _say(config: Config, counts: dict[str, Any]) -> None:
    c = counts
    print(f"build: sft {c['sft_train']} train + {c['sft_validation']} validation rows of {c['tasks']} tasks "
          f"({c['validation_tasks']} validate)", file=sys.stderr)  # fmt: skip
    if "kto_train" in counts:
        print(f"build: kto {c['kto_train']} train ({c['kto_train_desirable']} desirable) + {c['kto_validation']} "
              f"validation; weights {c['desirable_weight']} / {c['undesirable_weight']}", file=sys.stderr)  # fmt: skip
    for reason, number in sorted(counts["left_out"].items()):
        print(f"  left out x{number}: {reason}", file=sys.stderr)
    if config.validation and not counts["sft_validation"]:
        print("warning: there are no validation rows", file=sys.stderr)
