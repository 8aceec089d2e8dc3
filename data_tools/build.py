"""Build: training sets from clean transitions — SFT on improved rows, KTO on improved against regressed ones.

    eft build IN -o OUT [--push-to-hub ORG/NAME]

Writes OUT/sft/{train,validation}.parquet, OUT/kto/{train,validation}.parquet, OUT/kto/weights.json, OUT/README.md (the
data card), OUT/plots and OUT/manifest.json. Columns: id, task, domain, run, prompt (list of {role, content}, as
logged), completion (one assistant message: the reply as logged), reasoning, delta, label, prompt_format, edit_kind,
model. `label` is the transition's label in sft/, and whether the row is desirable (bool) in kto/. What both sides of
the split share is nothing: it goes by task.

With `tasks: [15, 30]` the same again for nested subsets of the training tasks, under OUT/tasks_15/, OUT/tasks_30/.
With `format: finch` OUT holds the clean rows in the Finch-Collection's columns instead, and no training sets.

Left out and counted: rows without prompt or reply, rows labelled on averaged scores (unless `include_averaged`), rows
over `max_prompt_tokens`. Raises EftError for rows of held-out or gate tasks, where no improved row is left, and where
the split would leave the training side without one class.

One task alone cannot be split by task: its validation rows are then children of other parents, which is said loudly.
Without regressed rows there is no kto/, which is said as well.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from data_tools import card, choose, pairing, sets, shards, split
from data_tools.choose import Row
from data_tools.counts import read_counts
from data_tools.source import check, start
from eft import hub, manifest
from eft.errors import EftError, UsageError
from eft.records import Label

WEIGHTS = "weights.json"
OURS = ("train.parquet", "validation.parquet", WEIGHTS)  # in the folder of a set
SPILL = ".spill"  # what waits on disk to be put in order


class Config(shards.Workers):
    positional: ClassVar[str] = "source"

    source: Path = Field(Path("clean"), description="Output folder of 'eft clean'.")
    format: Literal["sets", "finch"] = Field(
        "sets", description="sets: training sets; finch: all clean rows in the Finch-Collection's columns."
    )
    validation: float = Field(0.05, ge=0, lt=1, description="Share of the tasks that validate.")
    seed: int = Field(0, description="Decides the split, the order and the samples.")
    max_rows_per_task: int | None = Field(None, gt=0, description="At most so many rows of one task and label.")
    rank: Literal["random", "gain"] = Field(
        "random", description="Which rows a cap keeps: a sample, or the largest changes."
    )
    max_rows: int | None = Field(None, gt=0, description="At most so many training rows of each label.")
    task_weights: Literal["proportional", "sqrt", "uniform"] = Field(
        "proportional", description="How max_rows is shared among tasks: by their rows, the root of them, or equally."
    )
    tasks: list[int] = Field(
        default_factory=list, description="Also sets of so many training tasks, nested, for scaling studies."
    )
    tokenizer: str = Field(
        "", description="Whose counts max_prompt_tokens goes by; default: the first that 'eft clean' counted with."
    )
    max_prompt_tokens: int | None = Field(
        None, gt=0, description="Leave out longer prompts, as counted by 'eft clean'."
    )
    include_averaged: bool = Field(False, description="Take rows that were labelled on averaged scores.")
    include_repair: bool = Field(False, description="SFT also on repairs (an invalid parent became valid).")
    sft_weights: Literal["none", "gain"] = Field(
        "none", description="A column `weight` in sft/: by the relative gain of the row, with mean 1."
    )
    response: Literal["logged", "diff"] = Field(
        "logged",
        description="The reply as logged, or as the smallest SEARCH/REPLACE blocks (where a diff was asked for).",
    )
    kto: bool = Field(True, description="Write the KTO set.")
    negatives: Literal["logged", "on_policy", "both"] = Field(
        "logged",
        description="Undesirable rows of the KTO set: logged: regressions, whoever made them; on_policy: the failures of "
        "the model `policy` itself (regressions, broken programs, edits that change nothing, refused replies), and only "
        "its own improvements as desirable; both: all of these.",
    )
    policy: str = Field("", description="For on_policy: the model's name in 'eft collect', as logged in its rows.")
    kto_block: int = Field(
        2, ge=2, description="The KTO trainer's batch per device: row counts become a multiple of it."
    )
    license: str = Field("", description="Licence of the data set for its card, by the hub's name of it.")
    push_to_hub: str = Field("", description="Push the finished data set: ORG/NAME. The token is HF_TOKEN's.")
    private: bool = Field(False, description="A data set repository that is made anew is private.")
    revision: str | None = Field(None, description="Branch to push to; default: the main one.")

    @field_validator("tasks", mode="before")
    @classmethod
    def _commas(cls, value: Any) -> Any:
        """--tasks 15,30,60"""
        values = value if isinstance(value, list) else [value]
        return [part for v in values for part in (v.split(",") if isinstance(v, str) else [v])]

    @field_validator("tasks")
    @classmethod
    def _positive(cls, value: list[int]) -> list[int]:
        if any(size < 1 for size in value):
            raise ValueError("a subset has at least one task")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        if (self.negatives != "logged") != bool(self.policy):
            raise ValueError("negatives on_policy or both need `policy`, the name of the model, and only they do")
        if self.task_weights != "proportional" and self.max_rows is None:
            raise ValueError("task_weights needs max_rows: no row is taken twice, so without a limit all rows stay")
        return self


@dataclass
class Sides:
    """Rows of one set, by side of the split."""

    train: list[Row]
    validation: list[Row]

    def each(self) -> dict[str, list[Row]]:
        return {"train": self.train, "validation": self.validation}


def inputs(config: Config) -> list[Path]:
    return [config.path(config.source)]


def run(config: Config) -> Path:
    started, source, out = time.time(), config.path(config.source), config.out()
    check(source, out, "clean")
    if config.push_to_hub:
        hub.ready(_place(config))
    shards.check_executor(config)
    if (manifest.read(source) or {}).get("stage") == "label":
        print("warning: this is the output of 'eft label', nothing has been cleaned", file=sys.stderr)
    rows = choose.read(source, config)
    if config.policy:
        choose.check_policy(rows, config.policy, source)
    _only_ours(out)
    if config.format == "finch":
        return _finch(config, source, out, rows, started)
    tokens = _tokens(config, source)
    left_out: Counter[str] = Counter()
    rows = choose.usable(rows, source, repair=config.include_repair, averaged=config.include_averaged,
                         left_out=left_out, tokens=tokens, max_prompt=config.max_prompt_tokens,
                         policy=config.policy)  # fmt: skip
    validates = choose.validating(rows, config.validation, config.seed)
    _both_classes(config, rows, validates)
    subsets = choose.nested([r for r in rows if not validates(r)], config.tasks, config.seed)
    counts: dict[str, Any] = {"rows": len(rows), "left_out": dict(left_out)}
    _clear(out)
    with manifest.clear_disk_errors(out):
        plans, files = _plans(config, out, rows, validates, counts)
        for size, names in subsets.items():
            inner: dict[str, Any] = {}
            chosen = [r for r in rows if r.task in names or validates(r)]
            more, more_files = _plans(config, out / f"tasks_{size}", chosen, validates, inner)
            plans, files = plans + more, files + more_files
            counts[f"tasks_{size}"] = inner
        sets.write(source, plans, config.response, config, out / SPILL)
        files += [plan.file for plan in plans]
        files += card.write(out, config, source, plans, counts, tokens)
    _say(config, counts)
    manifest.write(out, "build", config.model_dump(mode="json"), inputs(config), files, counts, started)
    push(config)
    return out


def _place(config: Config) -> hub.Place:
    return hub.Place(config.push_to_hub, "dataset", config.private, config.revision)


def push(config: Config) -> None:
    """Upload the finished data set, where that was asked for and has not happened yet."""
    if config.push_to_hub:
        card.push(config.out(), _place(config))


def _finch(config: Config, source: Path, out: Path, rows: list[Row], started: float) -> Path:
    """The Finch-Collection's columns. Held-out rows are refused as everywhere."""
    from data_tools import finch_writer

    for row in rows:
        if row.suite_role in ("heldout", "gate"):
            raise EftError(f"a row of a {row.suite_role} task: it must never be trained on",
                           where=f"{row.task}, row {row.id}", way_out="run 'eft clean' first")  # fmt: skip
    left_out: Counter[str] = Counter()
    _clear(out)
    with manifest.clear_disk_errors(out):
        files = finch_writer.write(source, out, left_out=left_out)
    written = len(rows) - sum(left_out.values())
    counts = {"rows": written, "left_out": dict(left_out), "labels": choose.describe(rows, lambda r: r.label)}
    print(f"build: {written} rows in the Finch-Collection's columns", file=sys.stderr)
    for reason, number in sorted(left_out.items()):
        print(f"  left out x{number}: {reason} (the schema has no such label)", file=sys.stderr)
    manifest.write(out, "build", config.model_dump(mode="json"), inputs(config), files, counts, started)
    push(config)
    return out


def _folders(out: Path) -> list[Path]:
    """The folders of training sets that an earlier build left."""
    subsets = (p for p in out.glob("tasks_*") if p.name[6:].isdigit())
    return [p for p in (out / "sft", out / "kto", *subsets) if p.is_dir() and not p.is_symlink()]


def _only_ours(out: Path) -> None:
    """Raises UsageError where a folder that is to be written anew holds anything else, a training run most likely."""
    for folder in _folders(out):
        for path in sorted(folder.rglob("*")):
            cache = any(part.startswith(".") for part in path.relative_to(folder).parts)  # token ids, reference values
            if not path.is_dir() and path.name not in OURS and not cache:
                raise UsageError("the output folder holds what no build wrote", where=path,
                                 why=f"'{folder.name}' would be replaced",
                                 way_out="give a folder of its own: -o OUT")  # fmt: skip


def _clear(out: Path) -> None:
    """Begin anew: what an earlier build wrote, in either format, would be taken for a part of this one."""
    old = manifest.read(out) or {}
    start(out)
    with manifest.clear_disk_errors(out):
        for folder in (*_folders(out), out / SPILL):
            shutil.rmtree(folder, ignore_errors=True)
        for name in old.get("outputs", {}) if old.get("stage") == "build" else ():
            path = out / name
            if path.resolve().is_relative_to(out.resolve()):
                path.unlink(missing_ok=True)
        for folder in (out, out / "plots", out / "data"):
            for left in folder.glob(".*.????????"):  # what a killed run was writing
                if left.name.startswith((".README.md.", ".tokens.png.", ".labels.png.", ".train-00000-")):
                    left.unlink(missing_ok=True)


# ------------------------------------------------------------------------------------------------------------ choose


def _tokens(config: Config, source: Path) -> dict[str, tuple[int, int]]:
    tokens = read_counts(source, config.tokenizer)
    if config.max_prompt_tokens is not None and not tokens:
        raise UsageError("max_prompt_tokens needs token counts, and there are none", where=source,
                         way_out="run 'eft clean' with --tokenizer NAME")  # fmt: skip
    return tokens


def _both_classes(config: Config, rows: list[Row], validates: Callable[[Row], bool]) -> None:
    """Raises EftError where the split, not the data, takes one class from the training side."""
    bad = _classes(config, rows)[1]
    if config.kto and bad and all(map(validates, bad)):
        raise EftError("the split leaves no regressed row to train on", why=f"all {len(bad)} are of validation tasks",
                       way_out="another --seed, a smaller --validation, or --set kto=false")  # fmt: skip
    if all(validates(r) for r in rows if r.label == Label.IMPROVED):
        raise EftError(
            "the split leaves no improved row to train on", way_out="another --seed or a smaller --validation"
        )


def _classes(config: Config, rows: list[Row]) -> tuple[list[Row], list[Row]]:
    """The desirable and the undesirable rows of the KTO set."""
    own_only = config.negatives == "on_policy"
    good = [r for r in rows if r.label == Label.IMPROVED and (not own_only or r.model == config.policy)]
    bad = [r for r in rows if choose.own_failure(r, config.policy) or (r.label == Label.REGRESSED and not own_only)]
    return good, bad


def _sides(config: Config, rows: list[Row], validates: Callable[[Row], bool]) -> Sides:
    rows = split.capped(rows, config.max_rows_per_task, config.rank, config.seed)
    train = choose.by_weight([r for r in rows if not validates(r)], config.max_rows, config.task_weights, config.seed)
    return Sides(train, [r for r in rows if validates(r)])


def _plans(config: Config, out: Path, rows: list[Row], validates: Callable[[Row], bool],
           counts: dict[str, Any]) -> tuple[list[sets.Plan], list[Path]]:  # fmt: skip
    """What is to be written under `out`, and the files that are written already; `counts` is filled in."""
    labels = (Label.IMPROVED, Label.REPAIR) if config.include_repair else (Label.IMPROVED,)
    sft = _sides(config, [r for r in rows if r.label in labels], validates)
    plans = []
    for name, part in sft.each().items():
        part = sorted(part, key=lambda r: split.rank(config.seed, "sft", r.id))
        weights = choose.gain_weights(part) if config.sft_weights == "gain" else {}
        plans.append(sets.Plan(out / "sft" / f"{name}.parquet", part, False, weights))
        counts[f"sft_{name}"] = len(part)
    counts["tasks"] = len({r.task for r in sft.train + sft.validation})
    counts["validation_tasks"] = len({r.task for r in sft.validation})
    more, files = _kto(config, out, rows, validates, counts) if config.kto else ([], [])
    return plans + more, files


def _kto(config: Config, out: Path, rows: list[Row], validates: Callable[[Row], bool],
         counts: dict[str, Any]) -> tuple[list[sets.Plan], list[Path]]:  # fmt: skip
    """kto/, or why there is none."""
    good_rows, bad_rows = _classes(config, rows)
    desirable = _sides(config, good_rows, validates).each()
    undesirable = _sides(config, bad_rows, validates).each()
    parts = {name: pairing.interleave(desirable[name], undesirable[name], config.seed, config.kto_block)
             for name in ("train", "validation")}  # fmt: skip
    good = {name: sum(r.label == Label.IMPROVED for r in found) for name, found in parts.items()}
    bad = {name: len(found) - good[name] for name, found in parts.items()}
    if not good["train"] or not bad["train"]:
        lacking = "regressed" if config.negatives == "logged" else "undesirable"
        missing = lacking if good["train"] else "improved" if bad["train"] else "whole block of"
        print(f"warning: no {missing} rows to train on: there is no KTO set, and 'eft kto' cannot run on this build",
              file=sys.stderr)  # fmt: skip
        return [], []
    if parts["validation"] and not (good["validation"] and bad["validation"]):
        lacking = "regressed" if good["validation"] else "improved"
        print(f"warning: the KTO validation rows have no {lacking} one: margins cannot be watched", file=sys.stderr)
    weights = pairing.weights(good["train"], bad["train"])
    counts |= {"desirable_weight": weights[0], "undesirable_weight": weights[1]}
    for name, found in parts.items():
        trimmed = len(desirable[name]) + len(undesirable[name]) - len(found)
        counts |= {f"kto_{name}": len(found), f"kto_{name}_desirable": good[name], f"kto_{name}_trimmed": trimmed}
    counts |= {"kto_neighbours_of_one_task": pairing.neighbours_of_one_task(parts["train"]),
               "kto_undesirable": choose.describe((r for r in parts["train"] if r.label != Label.IMPROVED), _failure),
               "kto_longest_label_run": pairing.label_runs(parts["train"])}  # fmt: skip
    manifest.write_json(out / "kto" / WEIGHTS, {
        "desirable_weight": weights[0], "undesirable_weight": weights[1], "desirable": good["train"],
        "undesirable": bad["train"]})  # fmt: skip
    plans = [sets.Plan(out / "kto" / f"{name}.parquet", found, True) for name, found in parts.items()]
    return plans, [out / "kto" / WEIGHTS]


def _failure(row: Row) -> str:
    return "no_op" if row.no_op else str(row.label)


def _say(config: Config, counts: dict[str, Any]) -> None:
    c = counts
    if config.negatives != "logged" and "kto_undesirable" in c:
        found = ", ".join(f"{n} {name}" for name, n in c["kto_undesirable"].items())
        print(f"build: undesirable, {config.negatives} ({config.policy}): {found}", file=sys.stderr)
    print(f"build: sft {c['sft_train']} train + {c['sft_validation']} validation rows of {c['tasks']} tasks "
          f"({c['validation_tasks']} validate)", file=sys.stderr)  # fmt: skip
    if "kto_train" in counts:
        print(f"build: kto {c['kto_train']} train ({c['kto_train_desirable']} desirable) + {c['kto_validation']} "
              f"validation; weights {c['desirable_weight']} / {c['undesirable_weight']}", file=sys.stderr)  # fmt: skip
    for size in config.tasks:
        inner = counts[f"tasks_{size}"]
        print(
            f"build: {size} tasks: sft {inner['sft_train']} train, kto {inner.get('kto_train', 0)} train",
            file=sys.stderr,
        )
    for reason, number in sorted(counts["left_out"].items()):
        print(f"  left out x{number}: {reason}", file=sys.stderr)
    if config.validation and not counts["sft_validation"]:
        print("warning: there are no validation rows", file=sys.stderr)
