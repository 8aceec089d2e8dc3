"""The comparison in plain words, generated from the numbers and their intervals, with what they do not show.

Nothing is claimed unless the exact signed-rank test over the paired searches, corrected for the number of comparisons,
tells the two apart; how much then depends on the rest. `better`/`worse`: the interval over tasks and seeds excludes
zero, and the test over tasks agrees. `better_here`/`worse_here`: the interval over seeds does, which speaks of these
tasks alone. `ahead_here`/`behind_here`: neither; more searches are won than lost, by an amount that cannot be told.
`open`: nothing. `same`: every paired difference is exactly zero. A loss is said as plainly as a win.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from eft.evaluate.comparison import Comparison, Pair, Row
from eft.evaluate.contenders import engine, origin, subjects
from eft.evaluate.results import MutatorInfo, Results
from eft.evaluate.significance import ALPHA, Test
from eft.evaluate.text import (
    count,
    interval_percent,
    interval_points,
    p_value,
    percent,
    plural,
    points,
)

PAPER = {"iterations": 100, "max_tokens": 30_000}  # EFT, arXiv 2606.29082
FEW_TASKS, FEW_SEEDS = 8, 10  # below these, the spread between tasks or seeds dominates what is measured
NO_EDITS = 0.15  # a baseline whose valid-edit rate is surely below this is no baseline

GOOD, BAD, OPEN, NOTE = "good", "bad", "open", "note"
TONES = {"better": GOOD, "better_here": GOOD, "ahead_here": GOOD, "worse": BAD, "worse_here": BAD, "behind_here": BAD,
         "open": OPEN, "same": OPEN, "none": OPEN}  # fmt: skip


@dataclass(frozen=True)
class Sentence:
    """One finding and the numbers behind it. `tone`: good, bad, open (undecided) or note."""

    tone: str
    text: str
    detail: str = ""


@dataclass(frozen=True)
class Verdict:
    """`headline`: one sentence. `shows`: findings, losses first. `limits`: what the numbers do not show."""

    tone: str
    headline: str
    shows: tuple[Sentence, ...]
    limits: tuple[str, ...]


def _sure(test: Test | None) -> bool:
    return test is not None and test.adjusted <= ALPHA


def strength(pair: Pair) -> str:
    """How far the numbers of one comparison go (see the module's text)."""
    d, decided = pair.difference, pair.wins + pair.losses
    if not decided:
        return "same" if pair.ties else "none"
    if d is None:  # no best known value makes a gap: an exact sign test on the paired searches, of these tasks alone
        if not _sure(pair.by_sign):
            return "open"
        return "better_here" if pair.wins > pair.losses else "worse_here"
    if not _sure(pair.over_searches):
        return "open"
    if d.such is not None and d.such.sign and _sure(pair.over_tasks):
        return "better" if d.such.sign > 0 else "worse"
    if d.these is not None and d.these.sign:
        return "better_here" if d.these.sign > 0 else "worse_here"
    if d.point * (pair.wins - pair.losses) <= 0:  # many small wins and a few large losses, or the other way round
        return "open"
    return "ahead_here" if d.point > 0 else "behind_here"


_VERB = {
    "better": "beats", "worse": "loses to", "open": "cannot be told from",
    "ahead": "wins more searches than it loses against", "behind": "loses more searches than it wins against",
}  # fmt: skip


def _joined(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def _clause(verb: str, *names: str) -> str:
    if verb == "same":
        return f"ends exactly where {_joined(list(names))} {'does' if len(names) == 1 else 'do'}"
    return f"{_VERB[verb]} {_joined(list(names))}"


def _under(name: str) -> str:
    """Which scaffold a sentence is about, where there are several."""
    return f"{engine(name)}: " if engine(name) else ""


def _plain(p: Pair) -> Pair:
    """The same comparison with the mutators' own names."""
    return dataclasses.replace(p, mutator=origin(p.mutator), reference=origin(p.reference))


def _finding(p: Pair) -> Sentence:
    """One comparison in words and numbers."""
    found = _of_pair(_plain(p))
    return dataclasses.replace(found, text=_under(p.mutator) + found.text)


def _of_pair(p: Pair) -> Sentence:
    s, d = strength(p), p.difference
    if s == "none":
        return Sentence(OPEN, f"{p.mutator} and {p.reference} have no finished search in common.")
    numbers = [f"{p.wins} won, {p.ties} tied, {p.losses} lost of {plural(p.wins + p.ties + p.losses, 'paired search')}"]
    if p.unpaired:
        numbers.append(f"{plural(p.unpaired, 'search')} without a partner left out")
    if s == "same":
        return Sentence(
            OPEN, f"{p.mutator} ends exactly where {p.reference} does, in every paired search.", numbers[0] + "."
        )
    here = " on these tasks" if s.endswith("_here") else ""
    clause = _clause(s.removesuffix("_here"), p.reference) + here
    if d is None:
        numbers.append(f"for want of a best known value an exact sign test, {_p(p.by_sign)}")
        return Sentence(TONES[s], f"{p.mutator} {clause}.", "; ".join(numbers) + ".")
    over_tasks = [f"over tasks and seeds {interval_points(d.such)}"] if d.such else []
    over_seeds = [f"over seeds alone {interval_points(d.these)}"] if d.these else []
    bounds = over_tasks if s in ("better", "worse") else over_seeds + over_tasks
    test = p.over_tasks if s in ("better", "worse") else p.over_searches
    numbers.insert(0, f"95% interval {', '.join(bounds)}" if bounds else "a single value has no interval")
    if test is not None:
        numbers.insert(1, f"signed-rank test, {_p(test)}")
    size = f"{points(abs(d.point)).lstrip('+')} points of the gap"
    if here:
        numbers.append("too few tasks, or too unlike, to say so of others")
    if s in ("ahead_here", "behind_here"):
        text = f"{p.mutator} {clause}, by an amount that cannot be told ({points(d.point)} points of the gap)."
        return Sentence(TONES[s], text, "; ".join(numbers + _wanted(p)) + ".")
    if s == "open":
        lead = (
            "nothing between them"
            if d.point == 0
            else f"{p.mutator if d.point > 0 else p.reference} is ahead by {size}"
        )
        text = f"{p.mutator} {clause}: {lead}, within the noise."
        numbers += _wanted(p)
    else:
        text = f"{p.mutator} {clause} by {size}."
    return Sentence(TONES[s], text, "; ".join(numbers) + ".")


def _p(test: Test | None) -> str:
    return "no test" if test is None else f"p {p_value(test.adjusted)} after Holm's correction"


def _wanted(p: Pair) -> list[str]:
    """What would tell an undecided difference from zero."""
    if p.needs is None or p.difference is None or not p.difference.point:
        return []
    found = []
    if p.needs.seeds is not None:
        found.append(f"{plural(p.needs.seeds, 'seed')} on these tasks")
    if p.needs.tasks is not None:
        found.append(f"{plural(p.needs.tasks, 'task')} of this kind")
    return [f"a difference of this size needs about {' or '.join(found)}"] if found else []


def _regressions(p: Pair) -> Sentence | None:
    """The tasks on which a tuned mutator ends behind: an average must not hide them."""
    behind = [(task, d) for task, d in p.tasks if d < 0]
    if not behind:
        return None
    shown = ", ".join(f"{task} {points(d)}" for task, d in behind[:5]) + (", …" if len(behind) > 5 else "")
    plain = _plain(p)
    text = f"{_under(p.mutator)}{plain.mutator} ends behind {plain.reference}"
    text += f" on {len(behind)} of {plural(len(p.tasks), 'task')}"
    return Sentence(BAD, f"{text}: {shown}.", "Points of the gap closed, means over the seeds, the worst first.")


def speechless(row: Row) -> bool:
    """True for a mutator that (nearly) never produced a valid edit: beating it is no feat."""
    valid = row.behaviour.valid
    return row.mutator.role == "baseline" and valid is not None and valid.high < NO_EDITS


def _headline(comparison: Comparison) -> tuple[str, str]:
    """(tone, one sentence) about the last tuned mutator, the one that the recipe is for, under every scaffold."""
    last: dict[str, Row] = {}
    about = subjects([r.mutator for r in comparison.rows])
    for r in comparison.rows:
        if r.mutator in about:
            last[engine(r.mutator.name)] = r
    if not last:
        return OPEN, "No model was evaluated, so there is nothing to judge."
    found = [_clauses(comparison, r) for r in last.values()]
    worst = min((tone for tone, _ in found), key=[BAD, OPEN, GOOD].index)
    said = "; ".join(text for _, text in found) + "."
    return worst, said[0].upper() + said[1:] if said.startswith("under ") else said


def _clauses(comparison: Comparison, subject: Row) -> tuple[str, str]:
    """(tone, half a sentence): whom one mutator beats, cannot be told from, and loses to."""
    name = subject.mutator.name
    said = f"under {engine(name)}, {origin(name)}" if engine(name) else name
    if subject.mutator.error or not subject.done:
        return BAD, f"{said} was not measured: {subject.mutator.error or 'none of its searches finished'}"
    mute = {r.mutator.name for r in comparison.rows if speechless(r)}
    grouped: dict[str, list[str]] = {}
    for p in comparison.pairs:
        s = strength(p)
        if p.mutator == name and s != "none":
            notes = ["on these tasks"] if s.endswith("_here") else []
            notes += ["which made hardly any valid edit"] if p.reference in mute else []
            text = origin(p.reference) + (f" ({', '.join(notes)})" if notes else "")
            grouped.setdefault(s.removesuffix("_here"), []).append(text)
    if not grouped:
        return OPEN, f"{said} was measured, but nothing that it could be compared with"
    order = ("better", "ahead", "same", "open", "behind", "worse")
    clauses = [_clause(s, *grouped[s]) for s in order if s in grouped]
    sentence = clauses[0]
    if len(clauses) > 1:
        glue = " and " if set(grouped) <= {"same", "open"} else ", but "
        sentence = ", ".join(clauses[:-1]) + glue + clauses[-1]
    tones = {TONES[s] if s in TONES else TONES[f"{s}_here"] for s in grouped}
    return BAD if BAD in tones else GOOD if GOOD in tones else OPEN, f"{said} {sentence}"


def _edits(rows: list[Row]) -> list[Sentence]:
    """How many replies were edits at all, per mutator that answers as a model does."""
    found = []
    for r in rows:
        b = r.behaviour
        if b.valid is None or r.mutator.role == "control":
            continue
        name = r.mutator.name
        text = f"{_under(name)}{percent(b.valid.point)} of {origin(name)}'s {plural(b.proposals, 'proposal')}"
        text += " were valid edits."
        numbers = [f"95% interval {interval_percent(b.valid)}"]
        if b.no_op is not None and b.no_op.successes:
            numbers.append(f"{percent(b.no_op.point)} changed nothing")
        if b.improves is not None and b.improves_of_edits is not None:
            numbers.append(
                f"{percent(b.improves.point)} improved on their parent ({percent(b.improves_of_edits.point)} of those "
                "that changed something)"
            )
        if r.mutator.role == "tuned":
            tone = GOOD if b.valid.low >= 0.5 else BAD if b.valid.high < 0.5 else NOTE
        else:
            tone = NOTE
        found.append(Sentence(tone, text, "; ".join(numbers) + "."))
    return found


def _form_only(comparison: Comparison, bases: set[str]) -> list[Sentence]:
    """A tuned mutator that beats the baseline but not the format control has shown that it learned the form."""
    controls = {r.mutator.name for r in comparison.rows if r.mutator.role == "control" and r.mutator.kind == "served"}
    won = {p.mutator for p in comparison.pairs if p.reference in bases and strength(p).startswith("better")}
    return [
        Sentence(BAD, f"{_under(p.mutator)}{origin(p.mutator)} is not shown to have learned more than the form of "
                      f"an edit: it does not beat {origin(p.reference)}, which was trained on random valid edits.")
        for p in comparison.pairs
        if p.reference in controls and p.mutator in won and not strength(p).startswith("better")
    ]  # fmt: skip


def _no_ops(rows: list[Row]) -> list[Sentence]:
    """A later tuned mutator that answers with clearly more no-ops than the one before it (a known trap of KTO)."""
    tuned = [r for r in rows if r.mutator.role == "tuned" and r.behaviour.no_op]
    found = []
    for before, after in zip(tuned, tuned[1:], strict=False):
        a, b = before.behaviour.no_op, after.behaviour.no_op
        names = before.mutator.name, after.mutator.name
        if a and b and b.low > a.high and engine(names[0]) == engine(names[1]):
            text = f"{_under(names[1])}{origin(names[1])} answers with a no-op more often than {origin(names[0])}"
            found.append(Sentence(BAD, f"{text}: {percent(b.point)} against {percent(a.point)}."))
    return found


def _limits(results: Results, comparison: Comparison) -> list[str]:
    """What a reader must not conclude, from the budgets, the controls and the holes of this evaluation."""
    found: list[str] = []
    finished = len(results.searches) - len(comparison.failed)
    if finished < results.planned:
        missing = results.planned - finished
        found.append(f"{missing} of {results.planned} searches are missing or failed: what stands here is partial.")
    mute = [r for r in comparison.rows if speechless(r) and r.behaviour.valid]
    if mute:
        names = _joined(list(dict.fromkeys(origin(r.mutator.name) for r in mute)))
        valid = sum(r.behaviour.valid.successes for r in mute if r.behaviour.valid)
        total = sum(r.behaviour.valid.trials for r in mute if r.behaviour.valid)
        found.append(
            f"{names} hardly ever produced a valid edit ({count(valid)} of {count(total)}). Beating it shows that the "
            "form of an edit was learned, not that the search got better; the controls are what counts."
        )
    tasks = len({c.task for c in comparison.cells if c.done})
    seeds = len(results.seeds) or len({s.seed for s in results.searches})
    if tasks < FEW_TASKS or seeds < FEW_SEEDS:
        found.append(
            f"{plural(tasks, 'task')} and {plural(seeds, 'seed')}: few. The spread between tasks and seeds dominates, "
            "and a difference that cannot be told from zero is not shown to be zero."
        )
    iterations, cap = results.config.get("iterations"), results.config.get("max_tokens")
    if isinstance(iterations, int) and iterations < PAPER["iterations"]:
        found.append(
            f"Each search had {plural(iterations, 'proposal')}; published results use {PAPER['iterations']}. Nothing "
            "here says where longer searches end."
        )
    if isinstance(cap, int) and cap < PAPER["max_tokens"]:
        found.append(
            f"A reply could have {count(cap)} tokens at most ({count(PAPER['max_tokens'])} in published results)."
        )
    found += comparison.notes
    found += _circumstances(results, comparison)
    return found + _missing_controls([r.mutator for r in comparison.rows if r.mutator.role == "control"])


def _circumstances(results: Results, comparison: Comparison) -> list[str]:
    """What scaffold, sandbox and instances leave open."""
    found = []
    seen = len(results.tasks) - len(comparison.hidden)
    if seen:
        found.append(
            f"On {seen} of {plural(len(results.tasks), 'task')} the value is the one that the search itself "
            "maximised; on the others it is of instances that no candidate saw."
            if comparison.hidden
            else "Values are those that the searches themselves maximised: no task here has hidden instances, or they "
            "were not evaluated."
        )
    levels = sorted({s.sandbox for s in results.searches if s.sandbox})
    if len(levels) > 1:
        found.append(f"Searches ran under different sandboxes, which may fail differently: {'; '.join(levels)}.")
    if len(comparison.scaffolds) == 1:
        only = comparison.scaffolds[0]
        found.append(f"One scaffold ({only}) was used; another one may rank the mutators differently.")
    return found


def _missing_controls(controls: list[MutatorInfo]) -> list[str]:
    """What the absence of a control, or its budget, leaves open."""
    found = []
    if not any(m.kind == "ast" for m in controls):
        found.append("No mutator without a model was measured, so nothing tells learning from chance edits.")
    if not any(m.kind == "best_of_n" for m in controls):
        found.append("No best-of-N at equal budget was measured, so nothing tells evolution from repeated sampling.")
    if not any(m.kind == "served" for m in controls):
        found.append(
            "No model trained on random valid edits was measured, so learning the form of an edit and learning what "
            "improves a program are not told apart."
        )
    for m in controls:
        if m.lookahead > 1:
            found.append(
                f"{m.name} evaluates {m.lookahead} programs for every proposal: at equal proposals it spends "
                f"{m.lookahead} times the evaluations of the others."
            )
    return found


def verdict(results: Results, comparison: Comparison) -> Verdict:
    """The verdict of an evaluation; losses come first."""
    rows = list(comparison.rows)
    tone, headline = _headline(comparison)
    measured = {r.mutator.name for r in rows if r.done}
    found = [_finding(p) for p in comparison.pairs if {p.mutator, p.reference} <= measured]
    bases = {r.mutator.name for r in rows if r.mutator.role == "baseline"}
    tuned = [p for p in comparison.pairs if p.reference in bases and p.mutator not in bases]
    found += [r for r in map(_regressions, tuned) if r is not None]
    found += _form_only(comparison, bases)
    for r in rows:
        if r.mutator.error:
            found.append(Sentence(BAD, f"{r.mutator.name} could not be run: {r.mutator.error}"))
    reasons: dict[tuple[str, str], int] = {}
    for s in comparison.failed:
        reasons[s.mutator, s.reason] = reasons.get((s.mutator, s.reason), 0) + 1
    errors = {r.mutator.name for r in rows if r.mutator.error}
    found += [Sentence(BAD, f"{plural(n, 'search')} of {m} failed: {why.splitlines()[0] if why else 'no reason given'}")
              for (m, why), n in sorted(reasons.items()) if m not in errors]  # fmt: skip
    found += _no_ops(rows) + _edits(rows)
    rank = {BAD: 0, GOOD: 1, OPEN: 2, NOTE: 3}
    return Verdict(
        tone, headline, tuple(sorted(found, key=lambda s: rank[s.tone])), tuple(_limits(results, comparison))
    )
