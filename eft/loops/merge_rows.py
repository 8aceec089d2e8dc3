"""What a merge is scored on: recorded transitions, teacher-forced. Three sets of rows that share no program:

    search   transitions of `validation` tasks; decides the search
    hidden   other programs of the same tasks; the final score
    fresh    transitions of `gate` tasks; confirms the best recipes

A row is a prompt and a recorded reply, improved or regressed. The fitness is, task by task and then averaged,

    auc_weight · AUC + (1 - auc_weight) · likelihood

AUC: how often an improved reply of the task is more likely, per token, than a regressed one. likelihood: exp(-NLL), the
geometric mean of a token's probability in improved replies. Both are in [0, 1]; the margin between the two kinds of
replies is not used, since it grows with the scale of the weights.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eft import manifest
from eft.errors import EftError, UsageError
from eft.records import Label, Transition, code_hash

SPLITS = ("search", "hidden", "fresh")
ROLES = {"search": "validation", "hidden": "validation", "fresh": "gate"}
LEAST = 2  # replies of each kind that a task needs in a set of rows


@dataclass(frozen=True)
class Row:
    """A prompt and a reply to it. `group`: the parent program; rows of one group depend on each other."""

    id: str
    task: str
    group: str
    improved: bool
    messages: tuple[dict[str, str], ...]
    response: str


def select(
    rows: Iterable[Transition], fresh: Iterable[Transition], *, counts: Mapping[str, int], seed: int, tokenizer: Any = None,
    max_tokens: int = 1024, hidden_share: float = 0.4,
) -> dict[str, list[Row]]:  # fmt: skip
    """The rows of each set, at most `counts` of them, as many improved as regressed ones of each task; always the same.

    `tokenizer`: leaves out rows with more than `max_tokens`. Raises UsageError where a set would be empty, or where the
    two tables are of tasks of other roles, or share tasks or programs.
    """
    validation, gate = _usable(rows, "validation", "rows"), _usable(fresh, "gate", "fresh")
    both = sorted({r.task for r in validation} & {r.task for r in gate})
    if both:
        raise UsageError("the rows of the search and the fresh rows must be of different tasks", where="loops: merge",
                         why=f"both hold {both[0]}")  # fmt: skip
    twins = {r.group for r in validation} & {r.group for r in gate}
    validation, gate = _within(validation, tokenizer, max_tokens), _within(gate, tokenizer, max_tokens)
    hidden = {g for g in {r.group for r in validation} if _share(seed, g) < hidden_share}
    sets = {
        "search": [r for r in validation if r.group not in hidden],
        "hidden": [r for r in validation if r.group in hidden],
        "fresh": [r for r in gate if r.group not in twins],
    }
    chosen = {split: _balanced(found, counts[split], seed) for split, found in sets.items()}
    for split, found in chosen.items():
        if not found:
            raise UsageError(f"there are no {split} rows for the merge", where=f"loops: merge: {'fresh' if split == 'fresh' else 'rows'}",
                             why=f"no task has {LEAST} improved and {LEAST} regressed replies with logged prompts among {len(sets[split])} rows",
                             way_out="record more searches: eft collect, harvest, label")  # fmt: skip
    disjoint(chosen)
    return chosen


def disjoint(sets: Mapping[str, Sequence[Row]]) -> None:
    """Raises EftError where two sets share a row or a program."""
    seen: dict[str, str] = {}
    for split, rows in sets.items():
        for key in {r.id for r in rows} | {r.group for r in rows}:
            if seen.setdefault(key, split) != split:
                raise EftError(f"the {seen[key]} and {split} rows overlap", where=key)


def _usable(rows: Iterable[Transition], role: str, name: str) -> list[Row]:
    found, seen = [], set()
    for r in rows:
        if r.suite_role not in (role, ""):
            raise UsageError(f"the {name} of a merge must be of {role} tasks", where=f"loops: merge: {name}",
                             why=f"{r.task} is a {r.suite_role} task",
                             way_out=f"record searches with 'eft collect --role {role}'")  # fmt: skip
        if r.label not in (Label.IMPROVED, Label.REGRESSED) or not r.prompt_user or not r.response:
            continue
        key = (r.task, code_hash(r.parent_code), r.prompt_user, r.response)
        if key in seen:
            continue
        seen.add(key)
        system = ({"role": "system", "content": r.prompt_system},) if r.prompt_system else ()
        messages = (*system, {"role": "user", "content": r.prompt_user})
        found.append(Row(r.id, r.task, code_hash(r.parent_code), r.label == Label.IMPROVED, messages, r.response))
    return found


def _within(rows: list[Row], tokenizer: Any, max_tokens: int) -> list[Row]:
    if tokenizer is None:
        return rows
    from eft.tokenizers import count, prompt_text

    texts = count(tokenizer, [prompt_text(tokenizer, list(r.messages)) + r.response for r in rows])
    return [r for r, n in zip(rows, texts, strict=True) if n < max_tokens]


def _share(seed: int, text: str) -> float:
    return int.from_bytes(hashlib.sha256(f"{seed}\0{text}".encode()).digest()[:6], "big") / 2**48


def _balanced(rows: list[Row], count: int, seed: int) -> list[Row]:
    kinds = Counter((r.task, r.improved) for r in rows)
    tasks = [t for t in sorted({r.task for r in rows}) if min(kinds[t, True], kinds[t, False]) >= LEAST]
    found = []
    for task in tasks:
        # whole programs as far as it goes: replies to one prompt cost little more than one
        ordered = sorted((r for r in rows if r.task == task), key=lambda r: (_share(seed, r.group), _share(seed, r.id)))
        each = max(LEAST, min(count // (2 * len(tasks)), kinds[task, True], kinds[task, False]))
        for kind in (True, False):
            found += [r for r in ordered if r.improved is kind][:each]
    return found


def write(file: Path, sets: Mapping[str, Sequence[Row]]) -> None:
    """All sets as JSON lines, atomically."""
    lines = [json.dumps({"split": split, **asdict(r)}) for split, rows in sets.items() for r in rows]
    manifest.write_text(file, "\n".join(lines) + "\n")


def read(file: Path) -> dict[str, list[Row]]:
    """What `write` wrote. Raises EftError for a file that is missing or damaged."""
    sets: dict[str, list[Row]] = {split: [] for split in SPLITS}
    try:
        for line in file.read_text(encoding="utf-8").splitlines():
            value = json.loads(line)
            sets[value.pop("split")].append(Row(**{**value, "messages": tuple(value["messages"])}))
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise EftError("the rows of the merge cannot be read", where=file, why=str(e)) from None
    return sets


def digest(sets: Mapping[str, Sequence[Row]]) -> str:
    """16 hex digits of all rows, in order."""
    text = json.dumps({s: [asdict(r) for r in rows] for s, rows in sets.items()}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# ---- the statistic -----------------------------------------------------------------------------------------------


def fitness(rows: Sequence[Row], values: Sequence[float], auc_weight: float) -> dict[str, Any]:
    """{fitness, auc, likelihood, nll, by_task: {task: {auc, nll}}} of log-likelihoods per token (nats), a row each."""
    import numpy as np

    told = np.asarray(values, dtype=float)
    by_task = {}
    for task in sorted({r.task for r in rows}):
        better = told[[i for i, r in enumerate(rows) if r.task == task and r.improved]]
        worse = told[[i for i, r in enumerate(rows) if r.task == task and not r.improved]]
        by_task[task] = {"auc": float(_wins(better, worse).mean()), "nll": float(-better.mean())}
    auc = float(np.mean([t["auc"] for t in by_task.values()]))
    likelihood = float(np.mean([np.exp(-t["nll"]) for t in by_task.values()]))
    return {
        "fitness": auc_weight * auc + (1 - auc_weight) * likelihood,
        "auc": auc,
        "likelihood": likelihood,
        "nll": float(np.mean([t["nll"] for t in by_task.values()])),
        "by_task": by_task,
    }


def _wins(better: Any, worse: Any) -> Any:
    """1 where the improved reply is the more likely one, 1/2 for a tie: (improved, regressed)."""
    return (better[:, None] > worse[None]) + 0.5 * (better[:, None] == worse[None])


def interval(
    rows: Sequence[Row], one: Sequence[float], other: Sequence[float], auc_weight: float, *, draws: int = 2000, seed: int = 0
) -> tuple[float, float, float]:
    """(difference of the fitness of `one` and `other`, low, high): a paired bootstrap, 95 %.

    A draw takes tasks with replacement, and of each the programs with replacement, both models on the same ones.
    """
    import numpy as np

    a, b = np.asarray(one, dtype=float), np.asarray(other, dtype=float)
    rng = np.random.default_rng(seed)
    tasks = sorted({r.task for r in rows})
    each = np.empty((len(tasks), draws))
    for k, task in enumerate(tasks):
        good = [i for i, r in enumerate(rows) if r.task == task and r.improved]
        bad = [i for i, r in enumerate(rows) if r.task == task and not r.improved]
        groups = sorted({rows[i].group for i in (*good, *bad)})
        place = {g: j for j, g in enumerate(groups)}
        times = rng.multinomial(len(groups), np.full(len(groups), 1 / len(groups)), size=draws).astype(float)
        up, down = times[:, [place[rows[i].group] for i in good]], times[:, [place[rows[i].group] for i in bad]]
        wins = _wins(a[good], a[bad]) - _wins(b[good], b[bad])
        with np.errstate(invalid="ignore", divide="ignore"):  # a draw without one of the kinds says nothing of the task
            auc = ((up @ wins) * down).sum(1) / (up.sum(1) * down.sum(1))
            likely = np.exp(up @ a[good] / up.sum(1)) - np.exp(up @ b[good] / up.sum(1))
        each[k] = auc_weight * auc + (1 - auc_weight) * likely
    drawn = rng.integers(len(tasks), size=(len(tasks), draws))
    means = np.nanmean(np.take_along_axis(each, drawn, axis=0), axis=0)
    low, high = np.nanpercentile(means, [2.5, 97.5])
    difference = fitness(rows, one, auc_weight)["fitness"] - fitness(rows, other, auc_weight)["fitness"]
    return difference, float(low), float(high)
