"""Plain words: a loss is called a loss, and nothing is claimed that the intervals do not carry."""

from __future__ import annotations

import dataclasses

from made_up_results import MAX, MIN, evaluation, results

from eft.evaluate.compare import compare
from eft.evaluate.results import MutatorInfo, Results
from eft.evaluate.verdict import BAD, GOOD, OPEN, verdict


def words(r: Results):
    return verdict(r, compare(r, draws=300))


def test_a_loss_to_ast_is_said_plainly_and_first():
    v = words(results())
    assert "loses to" in v.headline and "ast" in v.headline
    assert v.tone == BAD
    assert v.shows[0].tone == BAD and v.shows[0].text.startswith("sft loses to ast on these tasks by")
    tones = [s.tone for s in v.shows]
    assert tones == sorted(tones, key=[BAD, GOOD, OPEN, "note"].index)


def test_kto_worse_than_sft_is_said():
    v = words(results(seeds=12))
    assert any(s.tone == BAD and s.text.startswith("kto loses to sft") for s in v.shows)
    assert any("no-op more often" in s.text for s in v.shows)


def test_a_baseline_without_edits_is_no_feat_to_beat():
    v = words(results())
    assert "which made hardly any valid edit" in v.headline
    assert any("form of an edit was learned" in line for line in v.limits)


def test_few_seeds_decide_nothing():
    r = evaluation({"base": {"hits": [0.3, 0.5]}, "sft": {"hits": [0.5, 0.4]}}, (MAX,))
    v = words(r)
    assert v.tone == OPEN and "cannot be told from base" in v.headline
    assert any("within the noise" in s.text for s in v.shows)


def test_one_search_has_no_interval():
    v = words(evaluation({"base": {"hits": [0.3]}, "sft": {"hits": [0.6]}}, (MAX,)))
    assert v.tone == OPEN and any("no interval" in s.detail for s in v.shows)


def test_a_win_on_these_tasks_only_says_so():
    found = {"base": {"hits": [0.2, 0.21] * 3}, "sft": {"hits": [0.5, 0.52, 0.5, 0.51, 0.55, 0.5]}}
    v = words(evaluation(found, (MAX,)))
    assert v.tone == GOOD and "(on these tasks" in v.headline


def test_the_same_mutator_twice_is_the_same():
    found = {"hits": [0.3, 0.5], "tour": [7.0, 6.0]}
    v = words(evaluation({"base": found, "sft": found}, (MAX, MIN)))
    assert "ends exactly where base" in v.headline and v.tone == OPEN


def test_missing_controls_and_budgets_are_limits():
    r = evaluation({"base": {"hits": [0.3]}, "sft": {"hits": [0.6]}}, (MAX,))
    limits = " ".join(words(dataclasses.replace(r, config={"iterations": 20, "max_tokens": 256})).limits)
    for part in (
        "No mutator without a model",
        "No best-of-N",
        "random valid edits",
        "20 proposals",
        "256 tokens",
        "1 task and",
    ):
        assert part in limits
    full = results(seeds=10)
    assert "proposals; published" not in " ".join(words(dataclasses.replace(full, config={"iterations": 100})).limits)


def test_a_mutator_that_could_not_run():
    r = evaluation({"base": {"hits": [0.3]}, "sft": {"hits": []}}, (MAX,))
    broken = MutatorInfo("sft", error="the vLLM server ended with exit status 1")
    v = words(dataclasses.replace(r, mutators=(r.mutators[0], broken), planned=2))
    assert v.tone == BAD and "was not measured: the vLLM server ended" in v.headline
    assert any("partial" in line for line in v.limits)


def test_nothing_at_all():
    v = words(Results((), (), ()))
    assert "nothing to judge" in v.headline


def test_a_baseline_alone_is_compared_with_the_controls():
    v = words(evaluation({"base": {"hits": [0.3] * 6}, "ast": {"hits": [0.6] * 6}}, (MAX,)))
    assert "base loses to ast" in v.headline


def test_without_a_best_known_value_the_sign_test_decides():
    task = dataclasses.replace(MIN, best_known=None)
    found = {"base": {"tour": [8.0] * 8}, "sft": {"tour": [7.0] * 8}, "ast": {"tour": [6.0, 6.0, 9.0, 9.0] * 2}}
    v = words(evaluation(found, (task,)))
    assert v.tone == GOOD and "beats base (on these tasks" in v.headline and "cannot be told from ast" in v.headline
    assert any("exact sign test" in s.detail for s in v.shows)


def suite(seeds: int = 6, tasks: int = 8, **values):
    """Every mutator of `values` with one value (plus a little noise by seed and task) on `tasks` alike tasks."""
    many = tuple(dataclasses.replace(MAX, name=f"t{k}") for k in range(tasks))
    found = {m: {t.name: [v + 0.001 * ((7 * k + 3 * s) % 5) for s in range(seeds)] for k, t in enumerate(many)}
             for m, v in values.items()}  # fmt: skip
    return evaluation(found, many)


def test_a_claim_about_other_tasks_needs_six_of_them():
    assert words(suite(tasks=8, base=0.3, sft=0.4)).headline == "sft beats base."
    assert words(suite(tasks=5, base=0.3, sft=0.4)).headline == "sft beats base (on these tasks)."


def test_many_comparisons_need_more():
    """Six tasks all alike have p 0.031: enough for one comparison, not for two after Holm's correction."""
    assert "beats base." in words(suite(tasks=6, base=0.3, sft=0.4)).headline
    assert "beats base (on these tasks)" in words(suite(tasks=6, base=0.3, sft=0.4, ast=0.6)).headline


def test_regressions_are_listed_behind_a_win():
    r = suite(base=0.3, sft=0.4)
    worse = [dataclasses.replace(s, best_raw=0.1) if (s.mutator, s.task) == ("sft", "t3") else s for s in r.searches]
    v = words(dataclasses.replace(r, searches=tuple(worse)))
    assert any(s.tone == BAD and "behind base on 1 of 8 tasks: t3 −40" in s.text for s in v.shows)


def test_not_beating_the_format_control_is_said():
    r = suite(base=0.3, sft=0.4, random=0.4)
    control = MutatorInfo("random", "served", "control")
    r = dataclasses.replace(r, mutators=(*r.mutators[:2], control))
    v = words(r)
    assert any("not shown to have learned more than the form" in s.text for s in v.shows)
    assert not any("No model trained on random valid edits" in line for line in v.limits)


def test_an_open_difference_says_what_it_would_need():
    r = evaluation({"base": {"hits": [0.3, 0.5, 0.4]}, "sft": {"hits": [0.5, 0.4, 0.45]}}, (MAX,))
    (found,) = [s for s in words(r).shows if "within the noise" in s.text]
    assert "needs about" in found.detail and "seeds on these tasks" in found.detail


def test_mixed_sandboxes_and_unseen_instances_are_limits():
    r = suite(base=0.3, sft=0.4)
    mixed = [dataclasses.replace(s, sandbox="bubblewrap" if s.seed else "rlimits") for s in r.searches]
    limits = " ".join(words(dataclasses.replace(r, searches=tuple(mixed))).limits)
    assert "different sandboxes" in limits and "searches themselves maximised" in limits
    assert "One scaffold (openevolve)" in limits


def test_two_scaffolds_are_two_clauses():
    r = suite(base=0.3, sft=0.4)
    value = {"base": 0.5, "sft": 0.4}
    other = [dataclasses.replace(s, scaffold="tournament", best_raw=value[s.mutator]) for s in r.searches]
    v = words(dataclasses.replace(r, searches=(*r.searches, *other)))
    assert v.headline == "Under openevolve, sft beats base; under tournament, sft loses to base." and v.tone == BAD
    assert "tournament: sft ends behind base on 8 of 8 tasks" in " ".join(s.text for s in v.shows)


def test_a_sure_direction_of_an_unsure_size():
    """Fourteen small wins and one huge one: sixteen searches say who is ahead, but not by how much."""
    many = tuple(dataclasses.replace(MAX, name=f"t{k}") for k in range(8))
    base = {t.name: [0.3, 0.3] for t in many}
    sft = {t.name: [0.301 + 0.001 * k, 0.302] for k, t in enumerate(many)}
    sft["t0"] = [0.303, 0.9]
    v = words(evaluation({"base": base, "sft": sft}, many))
    assert v.headline == "sft wins more searches than it loses against base (on these tasks)." and v.tone == GOOD
    assert any("by an amount that cannot be told" in s.text for s in v.shows)
    worse = {t: [0.2, 0.9] if t == "t0" else v for t, v in sft.items()}
    lost = {t: [0.6 - v for v in values] for t, values in worse.items()}
    assert words(evaluation({"base": base, "sft": lost}, many)).tone in (BAD, OPEN)
    mixed = {**sft, "t0": [0.303, 0.0]}  # the mean goes the other way: nothing is claimed
    assert "cannot be told from base" in words(evaluation({"base": base, "sft": mixed}, many)).headline


def test_grammar_of_ties():
    found = {"base": {"hits": [0.3]}, "sft": {"hits": [0.3]}, "ast": {"hits": [0.3]}}
    assert words(evaluation(found, (MAX,))).headline == "sft ends exactly where base and ast do."
