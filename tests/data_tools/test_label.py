"""Labels: validity first; a crash is never a score; a score is never a guess."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import output_of, transition

from data_tools import harvest, label, scores
from data_tools.scores import averaged, judge
from eft import manifest
from eft.errors import EftError, UsageError
from eft.records import Label, ScoreKind, Validity, read_transitions, to_json


def run(source, out, **options):
    folder = label.run(label.Config(source=source, output=out, **options))
    return list(read_transitions(folder)), manifest.read(folder)["counts"]


def of(parent, child, **options):
    row = transition(parent_metrics=to_json(parent), child_metrics=to_json(child))
    return label.label(row, **options)


class TestRealRuns:
    @pytest.mark.parametrize("name,expected", [
        ("circle_packing_v0_1", {"improved": 30, "regressed": 46, "repair": 1, "breakage": 11}),
        ("function_min_v0_4", {"improved": 16, "regressed": 38, "repair": 2, "breakage": 12}),
    ])  # fmt: skip
    def test_counts(self, real_runs, tmp_path, name, expected):
        source = harvest.run(harvest.Config(runs=[real_runs / name], output=tmp_path / "h"))
        rows, counts = run(source, tmp_path / "l")
        assert {k: counts[k] for k in map(str, Label) if counts[k]} == expected
        assert counts["averaged"] == 0 and counts["unlabelled"] == 0
        for row in rows:  # an independent reading of the raw metrics
            parent, child = json.loads(row.parent_metrics), json.loads(row.child_metrics)
            if row.label in ("improved", "regressed"):
                assert row.delta == child["combined_score"] - parent["combined_score"] != 0
                assert (row.delta > 0) == (row.label == "improved")
            else:
                assert row.delta is None


class TestVerdict:
    @pytest.mark.parametrize("metrics,validity", [
        ({"combined_score": 0.5}, Validity.VALID),
        ({"combined_score": -3.0, "eval_time": 2.0}, Validity.VALID),
        ({"combined_score": 0.0}, Validity.VALID),
        ({"combined_score": "0.25"}, Validity.VALID),
        ({"error": 0.0}, Validity.ERROR),
        ({"error": 0.0, "timeout": True}, Validity.TIMEOUT),
        ({"stage1_passed": 0.0, "error": 0.0, "timeout": True}, Validity.TIMEOUT),
        ({"combined_score": 0.0, "timeout": True}, Validity.TIMEOUT),
        ({"combined_score": 0.7, "timeout": False, "timeout_duration": 9}, Validity.VALID),
        ({"combined_score": 0.0, "error": "ZeroDivisionError"}, Validity.ERROR),
        ({"combined_score": 0.9, "error": 0.01}, Validity.VALID),  # a metric that is called error
        ({"combined_score": 0.9, "error": ""}, Validity.VALID),
        ({"combined_score": 0.0, "error": 1.0}, Validity.ERROR),
        ({"combined_score": 0.0, "error": 0.0}, Validity.VALID),
        ({"point_count": 0.0, "runtime": 263.7, "error": 1.0}, Validity.ERROR),
        ({"score": 0.4, "error": None}, Validity.VALID),
        ({"combined_score": math.nan}, Validity.NON_FINITE),
        ({"combined_score": -math.inf}, Validity.NON_FINITE),
        ({"combined_score": 10**400}, Validity.NO_SCORE),
        ({"combined_score": 0.8, "validity": 0.0}, Validity.INCORRECT),
        ({"combined_score": 0.8, "validity": -1}, Validity.INCORRECT),
        ({"combined_score": 0.8, "valid": False}, Validity.INCORRECT),
        ({"combined_score": 0.8, "correct": 0}, Validity.INCORRECT),
        ({"combined_score": 0.8, "validity": math.nan}, Validity.INCORRECT),
        ({"combined_score": 0.8, "validity": None, "correct": "yes"}, Validity.VALID),
        ({"combined_score": None}, Validity.NO_SCORE),
        ({}, Validity.NO_SCORE),
        ({"note": "fine"}, Validity.NO_SCORE),
    ])  # fmt: skip
    def test_rules(self, metrics, validity):
        for stored in (metrics, json.loads(to_json(metrics))):  # as logged, and as our tables hold it
            verdict = judge(stored)
            assert verdict.validity is validity and (verdict.score is not None) == (validity is Validity.VALID)

    def test_a_declared_key(self):
        assert judge({"acc": 0.5, "combined_score": 0.9}, key="acc").score == 0.5
        assert judge({"acc": 0.5, "combined_score": 0.9}, key="acc").kind is ScoreKind.KEY
        assert judge({"other": 0.5}, key="acc").validity is Validity.NO_SCORE
        assert judge({"correct": 3.0}, key="correct").score == 3.0  # a flag's name, but declared to be the score

    def test_average_by_release(self):
        metrics = {"a": 1.0, "b": 3.0, "passed": True, "complexity": 100.0, "text": "x", "bad": math.nan}
        assert averaged(metrics, booleans=False) == 2.0
        assert averaged(metrics, booleans=True) == pytest.approx(5 / 3)
        assert averaged({"complexity": 4.0}, booleans=False) == 4.0  # nothing but map axes: they count
        assert averaged({"passed": True}, booleans=False) is None
        assert (
            scores.counts_booleans("0.2.14") and scores.counts_booleans("0.3.1") and scores.counts_booleans("0.2.26+")
        )
        assert (
            not scores.counts_booleans("0.3.2")
            and not scores.counts_booleans("0.4.0")
            and not scores.counts_booleans("")
        )

    NUMBERS = st.one_of(st.floats(), st.integers(-(10**30), 10**30), st.booleans(), st.none(), st.text(max_size=4))

    @given(st.dictionaries(st.sampled_from(["combined_score", "a", "b", "complexity", "timeout", "error", "valid"]),
                           NUMBERS, max_size=6))  # fmt: skip
    @settings(max_examples=300, deadline=None)
    def test_the_average_is_the_installed_scaffolds(self, metrics):
        utils = pytest.importorskip("openevolve.utils.metrics_utils")
        ours = averaged(metrics, booleans=False)
        without = {k: v for k, v in metrics.items() if k != "combined_score"}
        theirs = utils.get_fitness_score(without, ["complexity", "diversity"])
        mine = averaged(without, booleans=False)
        assert mine is None or mine == theirs or (math.isnan(mine) and math.isnan(theirs))
        assert ours is None or isinstance(ours, float)

    @given(st.dictionaries(st.text(max_size=12) | st.sampled_from(["combined_score", "timeout", "error", "validity"]),
                           NUMBERS | st.lists(NUMBERS, max_size=2), max_size=5))  # fmt: skip
    @settings(max_examples=300, deadline=None)
    def test_any_metrics_have_a_verdict(self, metrics):
        for key in (None, "a"):
            verdict = judge(json.loads(to_json(metrics)), key=key)
            assert (verdict.validity is Validity.VALID) == (verdict.score is not None and math.isfinite(verdict.score))


class TestLabel:
    @pytest.mark.parametrize("parent,child,expected", [
        (1.0, 2.0, Label.IMPROVED), (2.0, 1.0, Label.REGRESSED), (1.0, 1.0, Label.NO_CHANGE),
        (-2.0, -1.0, Label.IMPROVED), (-1.0, math.nan, Label.BREAKAGE), (-math.inf, -5.0, Label.REPAIR),
        (math.nan, math.inf, Label.UNRECOVERABLE),
    ])  # fmt: skip
    def test_from_scores(self, parent, child, expected):
        row = of({"combined_score": parent}, {"combined_score": child})
        assert row.label == expected
        assert (row.delta is None) == (expected in (Label.BREAKAGE, Label.REPAIR, Label.UNRECOVERABLE))

    def test_a_crash_is_no_improvement_on_a_negative_score(self):
        assert of({"combined_score": -5.0}, {"error": 0.0}).label == Label.BREAKAGE
        assert (
            of(
                {"combined_score": -5.0},
                {"error": 0.0, "timeout": True},
            ).child_score
            is None
        )

    def test_eps(self):
        assert of({"combined_score": 1.0}, {"combined_score": 1.05}, eps=0.1).label == Label.NO_CHANGE
        assert of({"combined_score": 1.0}, {"combined_score": 0.85}, eps=0.1).label == Label.REGRESSED

    def test_not_logged_is_not_failed(self):
        row = label.label(transition(parent_metrics="", child_metrics=to_json({"combined_score": 1.0})))
        assert row.label == "" and row.parent_validity == "" and row.child_score == 1.0 and row.delta is None

    FINITE = st.floats(allow_nan=False, allow_infinity=False, width=32)

    @given(FINITE, FINITE, st.floats(0, 10))
    @settings(deadline=None)
    def test_swapping_the_ends_mirrors_the_label(self, a, b, eps):
        mirror = {Label.IMPROVED: Label.REGRESSED, Label.REGRESSED: Label.IMPROVED, Label.NO_CHANGE: Label.NO_CHANGE}
        forth, back = (of({"combined_score": x}, {"combined_score": y}, eps=eps) for x, y in ((a, b), (b, a)))
        assert back.label == mirror[Label(forth.label)] and back.delta == -forth.delta


class TestStage:
    def test_averaged_scores_are_marked_and_warned_about(self, tmp_path, capsys):
        ends = [to_json({"accuracy": a, "eval_time": 1.0, "valid": True}) for a in (0.1, 0.5)]
        rows = [transition(n, parent_metrics=ends[0], child_metrics=ends[1]) for n in (1, 2)]
        source = output_of("harvest", tmp_path / "h", rows)
        labelled, counts = run(source, tmp_path / "l")
        assert counts["averaged"] == 2 and {r.score_kind for r in labelled} == {"averaged"}
        assert {r.label for r in labelled} == {"improved"}
        said = capsys.readouterr().err
        assert "metrics: accuracy, eval_time, valid" in said and "--score-key accuracy" in said
        labelled, counts = run(source, tmp_path / "l2", score_key="accuracy")
        assert counts["averaged"] == 0 and {r.score_kind for r in labelled} == {"key"}
        assert labelled[0].delta == pytest.approx(0.4)

    def test_a_search_with_combined_scores_is_never_averaged(self, tmp_path):
        stopped = {"stage1_passed": 0.9, "stage1_time": 5.0}  # a cascade that ended early: another scale
        rows = [transition(1), transition(2, child_metrics=to_json(stopped))]
        labelled, _ = run(output_of("harvest", tmp_path / "h", rows), tmp_path / "l")
        assert [(r.label, r.child_validity) for r in labelled] == [("improved", "valid"), ("breakage", "no_score")]

    def test_a_key_that_nobody_has(self, tmp_path):
        source = output_of("harvest", tmp_path / "h", [transition()])
        with pytest.raises(EftError, match="combined_score"):
            run(source, tmp_path / "l", score_key="acuracy")

    def test_inputs_that_are_none(self, tmp_path):
        with pytest.raises(EftError, match="no finished output of 'eft harvest'"):
            run(tmp_path / "nowhere", tmp_path / "l")
        (tmp_path / "text.parquet").write_text("hello")
        with pytest.raises(EftError, match="not a Parquet file"):
            run(tmp_path / "text.parquet", tmp_path / "l")
        source = output_of("harvest", tmp_path / "h", [transition()])
        with pytest.raises(UsageError, match="output folder is the input"):
            run(source, source)


class TestBeyondTheLabel:
    def test_booleans_are_flags(self):
        assert judge({"combined_score": True}).validity is Validity.NO_SCORE
        assert judge({"passed": True}, key="passed").validity is Validity.NO_SCORE
        assert of({"combined_score": 0.5}, {"combined_score": True}).label == Label.BREAKAGE

    def test_relative_epsilon_and_relative_delta(self):
        small = of({"combined_score": -200.0}, {"combined_score": -199.0}, relative=0.01)
        assert (small.label, small.relative_delta, small.noise) == (Label.NO_CHANGE, 0.005, 2.0)
        assert of({"combined_score": -200.0}, {"combined_score": -197.0}, relative=0.01).label == Label.IMPROVED
        assert of({"combined_score": 10.0}, {"combined_score": 11.0}, relative=0.01, eps=2.0).label == Label.NO_CHANGE
        assert of({"combined_score": 0.0}, {"combined_score": 1.0}).relative_delta is None
        assert of({"combined_score": 5e-324}, {"combined_score": 1e308}).relative_delta is None

    def test_rank_within_the_run_and_task(self, tmp_path):
        scores_ = {1: 3.0, 2: 5.0, 3: 5.0, 4: None, 5: 1.0}
        rows = [transition(n, child_metrics=to_json({"error": 0.0} if s is None else {"combined_score": s}))
                for n, s in scores_.items()]  # fmt: skip
        rows.append(transition(6, run="other", child_metrics=to_json({"combined_score": 9.0})))
        labelled, _ = run(output_of("harvest", tmp_path / "h", rows), tmp_path / "l")
        assert [r.rank for r in labelled] == [3, 1, 1, None, 4, 1]

    def test_gap_closed_of_a_shipped_task_and_of_a_declared_one(self, tmp_path):
        from eft.tasks.task import find_task, shipped

        task = next(t for t in map(find_task, sorted(shipped())) if None not in (t.seed_raw, t.best_known))
        half = (task.seed_raw + task.best_known) / 2
        rows = [transition(1, task=task.name, child_metrics=to_json({"combined_score": 1.0, task.raw_metric: half})),
                transition(2, task="foreign", child_metrics=to_json({"combined_score": 2, "length": 7}))]  # fmt: skip
        source = output_of("harvest", tmp_path / "h", rows)
        labelled, counts = run(
            source, tmp_path / "l", raw_metric="length", direction="min", seed_raw=10.0, best_known=4.0
        )
        assert [r.gap_closed for r in labelled] == [pytest.approx(0.5), pytest.approx(0.5)]
        assert counts["best"]["foreign"] == {"score": 2.0, "raw": 7.0, "gap_closed": 0.5, "direction": "min"}
        assert run(source, tmp_path / "l2")[0][1].gap_closed is None
        with pytest.raises(ValueError, match="no better"):
            label.Config(seed_raw=1.0, best_known=2.0, direction="min")


NOISY = """import random
from eft.tasks import scoring

def evaluate(program_path):
    text = open(program_path).read()
    return {"combined_score": float(text.split("=")[1]) + random.uniform(-SPREAD, SPREAD)}
"""


def noisy_task(folder, spread: float):
    folder.mkdir()
    (folder / "initial_program.py").write_text("x = 1.0\n")
    (folder / "evaluator.py").write_text(NOISY.replace("SPREAD", str(spread)))
    (folder / "config.yaml").write_text("task:\n  domain: toys\n  isolation: isolated\n")
    return folder


class TestNoise:
    ROWS = ((1, 1.0, 1.05), (2, 1.0, 3.0), (3, 3.0, 2.97), (4, 3.0, 0.5))

    def source(self, folder):
        ends = [(n, {k: to_json({"combined_score": v}) for k, v in (("parent_metrics", a), ("child_metrics", b))}, b)
                for n, a, b in self.ROWS]  # fmt: skip
        rows = [transition(n, child_code=f"x = {b}", **metrics) for n, metrics, b in ends]
        return output_of("harvest", folder, rows)

    def test_noise_is_never_called_improvement(self, tmp_path, capsys):
        source = self.source(tmp_path / "h")
        assert [r.label for r in run(source, tmp_path / "l0")[0]] == ["improved", "improved", "regressed", "regressed"]
        task = noisy_task(tmp_path / "task", 0.1)
        labelled, counts = run(source, tmp_path / "l", noise=3, tasks={"t": task}, sandbox="rlimits")
        assert [r.label for r in labelled] == ["no_change", "improved", "no_change", "regressed"]
        floor = counts["noise_floor"]["t"]
        assert 0.05 < floor < 0.8 and all(r.noise == floor for r in labelled)
        measured = json.loads((tmp_path / "l" / "noise.json").read_text())
        assert measured[0]["programs"] == 3 and measured[0]["evaluations"] == 9
        assert "noise floor" in capsys.readouterr().err

    def test_an_exact_evaluator_has_none_and_another_ones_scores_are_told(self, tmp_path, capsys):
        source = self.source(tmp_path / "h")
        task = noisy_task(tmp_path / "task", 0.0)
        labelled, counts = run(source, tmp_path / "l", noise=2, tasks={"t": task}, sandbox="rlimits")
        assert counts["noise_floor"] == {"t": 0.0} and labelled[0].label == "improved"
        assert "is this the evaluator" not in capsys.readouterr().err
        other = noisy_task(tmp_path / "other", 0.0)
        (other / "evaluator.py").write_text(NOISY.replace("SPREAD", "0").replace("float(", "9 * float("))
        run(source, tmp_path / "l2", noise=2, tasks={"t": other}, sandbox="rlimits")
        assert "is this the evaluator that made the logs?" in capsys.readouterr().err

    def test_a_task_without_an_evaluator(self, tmp_path):
        source = self.source(tmp_path / "h")
        with pytest.raises(UsageError, match="noise of task 't' cannot be measured"):
            run(source, tmp_path / "l", noise=2, sandbox="rlimits")
        task = noisy_task(tmp_path / "task", 0.0)
        (task / "evaluator.py").write_text("def evaluate(path):\n    return {'error': 0.0}\n")
        with pytest.raises(EftError, match="none of 2 programs"):
            run(source, tmp_path / "l", noise=2, tasks={"t": task}, sandbox="rlimits")

    def test_a_task_that_a_log_names_by_a_path_runs_nothing(self, tmp_path):
        task = noisy_task(tmp_path / "task", 0.0)
        (task / "evaluator.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef evaluate(path): return {{}}\n")
        source = output_of("harvest", tmp_path / "h", [transition(1, task=str(task))])
        with pytest.raises(UsageError, match="cannot be measured"):
            run(source, tmp_path / "l", noise=1, sandbox="rlimits")
        run(source, tmp_path / "l")
        assert not (tmp_path / "ran").exists()

    def test_the_sample_does_not_depend_on_the_order(self):
        from data_tools import noise

        rows = [("t", f"x = {n}", "python", float(n)) for n in range(40)]
        one, two = noise.sample(rows, 5)["t"].programs(), noise.sample(rows[::-1] + rows, 5)["t"].programs()
        assert one == two and len({code for code, _, _ in one}) == 5
