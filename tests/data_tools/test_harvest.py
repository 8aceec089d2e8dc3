"""Harvest: everything that a search left behind, once, and nothing that it did not make."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from synthetic_runs import SEED, checkpoint, child, code, diff, log, program_json, seed_json, trace, trace_json

from data_tools import harvest
from data_tools.readers import openevolve
from data_tools.readers.search import Options
from eft import manifest
from eft.errors import EftError, UsageError
from eft.records import Transition, read_transitions


def harvested(*runs: Path, out: Path, **options) -> tuple[list[Transition], dict]:
    folder = harvest.run(harvest.Config(runs=list(runs), output=out, **options))
    return list(read_transitions(folder)), manifest.read(folder)["counts"]


def by_child(rows: list[Transition]) -> dict[str, Transition]:
    assert len({r.child_id for r in rows}) == len(rows)
    return {r.child_id: r for r in rows}


class TestRealRuns:
    def test_circle_packing(self, real_runs, tmp_path):
        rows, counts = harvested(real_runs / "circle_packing_v0_1", out=tmp_path / "h")
        assert counts["transitions"] == 88 and counts["programs"] == 89 and counts["seeds"] == 1
        assert all(r.prompt_user and r.response and r.parent_code and r.child_code for r in rows)
        assert {r.replay for r in rows} == {"match"} and {r.edit_kind for r in rows} == {"rewrite"}
        assert {r.prompt_format for r in rows} == {"openevolve@0.1"}

    def test_function_min(self, real_runs, tmp_path, capsys):
        rows, counts = harvested(real_runs / "function_min_v0_4", out=tmp_path / "h")
        assert (counts["transitions"], counts["iterations"], counts["failed_iterations"]) == (68, 80, 12)
        assert counts["copies"] == 2 and counts["replay_match"] == 68 and counts["lost"] == 0
        assert {r.scaffold_release for r in rows} == {"0.4.0"}
        said = capsys.readouterr().err
        assert "failed x6: No valid diffs found in response" in said and "warning" not in said

    def test_the_last_checkpoint_and_the_trace_alone_have_less(self, real_runs, tmp_path):
        run = real_runs / "function_min_v0_4"
        assert harvested(run / "evolution_trace.jsonl", out=tmp_path / "t")[1]["transitions"] == 67
        assert harvested(run / "checkpoints" / "checkpoint_80", out=tmp_path / "c")[1]["transitions"] == 28

    def test_a_killed_run_gives_what_reached_the_disk_and_a_warning(self, real_runs, tmp_path, capsys):
        _, counts = harvested(real_runs / "killed_v0_4_jsonl", out=tmp_path / "h")
        assert counts["transitions"] == 50 and counts["cut_off"] == 1 and counts["lost"] == 26
        said = capsys.readouterr().err
        assert "cut off" in said and "26 of 76 children in the log never reached the disk" in said

    def test_a_run_that_left_only_a_log(self, real_runs, tmp_path):
        with pytest.raises(EftError, match=r"nothing but a log was written: 41 iterations in it, 33 children made, 8"):
            harvested(real_runs / "killed_v0_4_json", out=tmp_path / "h")
        assert not (tmp_path / "h" / "transitions.parquet").exists()

    def test_all_of_them_as_one_folder(self, real_runs, tmp_path, capsys):
        rows, counts = harvested(real_runs, out=tmp_path / "h")
        assert counts["searches"] == 4 and len(rows) == counts["transitions"] == 88 + 68 + 50
        assert len({r.id for r in rows}) == len(rows)
        assert {r.task for r in rows} == {"circle_packing_v0_1", "function_min_v0_4", "killed_v0_4_jsonl"}
        assert "nothing but a log was written" in capsys.readouterr().err


class TestUnion:
    def test_all_places_are_read_and_each_child_counted_once(self, tmp_path):
        run = tmp_path / "run"
        one, two, three, four, five = (child(n) for n in range(1, 6))
        checkpoint(run, 10, [seed_json(), program_json(one), program_json(two)])
        checkpoint(run, 20, [seed_json(), program_json(two), program_json(three)])
        checkpoint(
            run / "checkpoints" / "checkpoint_20", 30, [program_json(four), program_json(three)]
        )  # resumed, nested
        trace(run / "evolution_trace.jsonl", [trace_json(two), trace_json(five)])
        rows, counts = harvested(run, out=tmp_path / "h")
        assert set(by_child(rows)) == {f"child-{n}" for n in range(1, 6)}
        assert counts["programs"] == 6 and counts["replay_match"] == 5

    def test_the_richest_record_wins_field_by_field(self, tmp_path):
        run, c = tmp_path / "run", child(1)
        checkpoint(run, 10, [program_json(c)])
        checkpoint(run, 20, [program_json(c, prompts=None, metadata={"island": 2})])
        trace(run / "evolution_trace.jsonl", [trace_json(c, with_code=False) | {"artifacts": {"stderr": "oh"}}])
        row = by_child(harvested(run, out=tmp_path / "h")[0])["child-1"]
        assert row.child_code == c["code"] and row.prompt_user == c["user"] and row.response == c["response"]
        assert json.loads(row.child_artifacts) == {"stderr": "oh"} and row.model == "m"
        assert (row.prompt_tokens, row.response_tokens) == (7, 3)
        assert len(json.loads(row.sources)) >= 2

    @pytest.mark.parametrize("name", ["evolution_trace.jsonl", "evolution_trace.jsonl.gz", "evolution_trace.json",
                                      "evolution_trace.hdf5", "my_own_name.jsonl"])  # fmt: skip
    def test_every_trace_format(self, tmp_path, name):
        if name.endswith("hdf5"):
            pytest.importorskip("h5py")
        trace(tmp_path / "run" / name, [trace_json(child(n)) for n in (3, 1, 2)])
        rows, _ = harvested(tmp_path / "run", out=tmp_path / "h")
        assert [r.iteration for r in rows] == [1, 2, 3] and {r.replay for r in rows} == {"match"}

    def test_a_db_path_folder(self, tmp_path):
        folder = tmp_path / "mydb" / "programs"
        folder.mkdir(parents=True)
        (folder / "child-1.json").write_text(json.dumps(program_json(child(1), prompts=None)))
        rows, counts = harvested(tmp_path / "mydb", out=tmp_path / "h")
        assert counts["transitions"] == 1 and rows[0].prompt_user == "" and rows[0].replay == "unknown"
        assert rows[0].prompt_format == rows[0].edit_kind == ""

    def test_a_resumed_run_in_another_folder_is_one_search(self, tmp_path):
        checkpoint(tmp_path / "first", 10, [seed_json(), program_json(child(1))])
        checkpoint(tmp_path / "second", 20, [seed_json(), program_json(child(1)), program_json(child(2))])
        rows, counts = harvested(tmp_path / "first", tmp_path / "second", out=tmp_path / "h")
        assert counts["searches"] == 1 and set(by_child(rows)) == {"child-1", "child-2"}

    def test_a_db_path_folder_beside_the_run(self, tmp_path):
        folder = tmp_path / "all" / "a_database" / "programs"
        folder.mkdir(parents=True)
        for n in (1, 2):  # every child that was ever added, without prompts
            (folder / f"child-{n}.json").write_text(json.dumps(program_json(child(n), prompts=None)))
        checkpoint(tmp_path / "all" / "the_run", 10, [seed_json(), program_json(child(2))])
        rows, counts = harvested(tmp_path / "all", out=tmp_path / "h")
        assert counts["searches"] == 1 and {r.run for r in rows} == {"the_run"}
        assert {c: bool(r.response) for c, r in by_child(rows).items()} == {"child-1": False, "child-2": True}

    def test_a_folder_of_many_runs_and_equal_names(self, tmp_path):
        for group in ("a", "b"):
            trace(tmp_path / "all" / group / "run1" / "evolution_trace.jsonl", [trace_json(child(1, id=f"{group}-1"))])
        rows, counts = harvested(tmp_path / "all", out=tmp_path / "h")
        assert counts["searches"] == 2 and {r.run for r in rows} == {"run1", "b/run1"}
        assert len({r.id for r in rows}) == 2 and {r.task for r in rows} == {"run1", "b/run1"}

    def test_the_order_on_disk_does_not_matter(self, tmp_path):
        records = [trace_json(child(n)) for n in range(1, 8)]
        trace(tmp_path / "a" / "run" / "evolution_trace.jsonl", records)
        trace(tmp_path / "b" / "run" / "evolution_trace.jsonl", records[::-1] + records[:3])
        first, _ = harvested(tmp_path / "a" / "run", out=tmp_path / "h1")
        second, _ = harvested(tmp_path / "b" / "run", out=tmp_path / "h2")
        assert [r.replace(sources="") for r in first] == [r.replace(sources="") for r in second]

    def test_generic_folder_names_do_not_name_a_run(self, tmp_path):
        checkpoint(tmp_path / "packing" / "openevolve_output", 10, [program_json(child(1))])
        for given_path in (
            "openevolve_output",
            "openevolve_output/checkpoints",
            "openevolve_output/checkpoints/checkpoint_10",
        ):
            rows, _ = harvested(tmp_path / "packing" / given_path, out=tmp_path / "h", task="")
            assert rows[0].run == rows[0].task == "packing"


class TestWhatIsNoTransition:
    def test_seeds_migrants_and_copies(self, tmp_path):
        run, c = tmp_path / "run", child(1)
        migrant = program_json(c, id="new-uuid", parent_id="child-1", prompts=None, iteration_found=0)
        migrant["metadata"] = {**migrant["metadata"], "migrant": True}
        old_migrant = program_json(c, id="child-1_migrant_2", parent_id="child-1", prompts=None)
        refill = program_json(c, id="refill", parent_id="child-1", prompts=None, iteration_found=0)
        orphan = program_json(c, id="orphan", parent_id="gone", prompts=None, iteration_found=0)
        grandchild = child(2, 1, parent_id="new-uuid")
        checkpoint(
            run, 10, [seed_json(), program_json(c), migrant, old_migrant, refill, orphan, program_json(grandchild)]
        )
        rows, counts = harvested(run, out=tmp_path / "h")
        assert set(by_child(rows)) == {"child-1", "child-2"} and counts["copies"] == 4 and counts["seeds"] == 1
        assert by_child(rows)["child-2"].parent_code == code(1)  # the migrant's code is its source's

    def test_an_edit_that_changed_nothing_is_one_all_the_same(self, tmp_path):
        c = child(1, code=SEED, response=diff("nowhere", 1))  # before 0.4: not found, skipped, evaluated and stored
        checkpoint(tmp_path / "run", 10, [seed_json(), program_json(c)])
        rows, _ = harvested(tmp_path / "run", out=tmp_path / "h", release="0.2.14")
        assert len(rows) == 1 and rows[0].replay == "match"
        rows, _ = harvested(tmp_path / "run", out=tmp_path / "h", release="0.4.1")
        assert rows[0].replay == "mismatch"  # such a child cannot come from 0.4


class TestRecovery:
    def test_parent_from_the_prompt_and_metrics_from_the_snapshot(self, tmp_path):
        checkpoint(tmp_path / "run", 10, [program_json(child(1, parent_metrics={"combined_score": 0.25}))])
        rows, counts = harvested(tmp_path / "run", out=tmp_path / "h")
        assert counts["parent_missing"] == counts["parent_recovered"] == 1
        assert rows[0].parent_code == SEED and json.loads(rows[0].parent_metrics) == {"combined_score": 0.25}
        assert rows[0].replay == "match"

    def test_child_from_the_reply_where_the_trace_has_no_code(self, tmp_path):
        trace(tmp_path / "run" / "evolution_trace.jsonl", [trace_json(child(1), with_code=False)])
        rows, counts = harvested(tmp_path / "run", out=tmp_path / "h")
        assert rows[0].child_code == code(1) and rows[0].replay == "unknown" and counts["child_recovered"] == 1

    def test_a_parent_nobody_knows(self, tmp_path):
        c = child(1, user="Make it better.", parent_metrics=None)
        checkpoint(tmp_path / "run", 10, [program_json(c)])
        rows, counts = harvested(tmp_path / "run", out=tmp_path / "h")
        assert rows[0].parent_code == "" and rows[0].parent_metrics == "" and rows[0].prompt_format == "custom"
        assert counts["parent_missing"] == 1 and counts["parent_recovered"] == 0

    def test_a_reply_that_does_not_make_the_child(self, tmp_path, capsys):
        checkpoint(tmp_path / "run", 10, [seed_json(), program_json(child(1, response=diff(0, 7)))])
        rows, _ = harvested(tmp_path / "run", out=tmp_path / "h")
        assert rows[0].replay == "mismatch" and "not what their reply makes of their parent" in capsys.readouterr().err

    def test_a_rewrite_in_a_run_that_asked_for_diffs_is_found_out(self, tmp_path):
        c = child(1, code="x = 1", response="```python\nx = 1\n```")
        checkpoint(tmp_path / "run", 10, [seed_json(), program_json(c)])
        assert harvested(tmp_path / "run", out=tmp_path / "h")[0][0].edit_kind == "rewrite"

    def test_own_diff_pattern(self, tmp_path):
        c = child(1, response="<old>x = 0</old><new>x = 1</new>")
        checkpoint(tmp_path / "run", 10, [seed_json(), program_json(c)])
        assert harvested(tmp_path / "run", out=tmp_path / "a")[0][0].replay == "mismatch"
        pattern = "<old>(.*?)</old><new>(.*?)</new>"
        assert harvested(tmp_path / "run", out=tmp_path / "b", diff_pattern=pattern)[0][0].replay == "match"
        (tmp_path / "run" / "config.yaml").write_text(json.dumps({"diff_pattern": pattern}))
        assert harvested(tmp_path / "run", out=tmp_path / "c")[0][0].replay == "match"

    def test_an_evaluators_own_prompt_is_not_the_mutation_prompt(self, tmp_path):
        value = program_json(child(1))
        value["prompts"] = {
            "evaluation": {"system": "judge", "user": "judge this", "responses": ["0.5"]},
            **value["prompts"],
        }
        checkpoint(tmp_path / "run", 10, [value])
        assert harvested(tmp_path / "run", out=tmp_path / "h")[0][0].response == diff(0, 1)


class TestReport:
    def test_failures_from_the_log_and_from_the_failures_file(self, tmp_path):
        run, made = tmp_path / "run", [child(1), child(2)]
        trace(run / "evolution_trace.jsonl", [trace_json(c) for c in made])
        (run / "evolution_trace_failures.jsonl").write_text(json.dumps({"iteration": 3, "error": "no"}) + "\n")
        assert harvested(run, out=tmp_path / "a")[1]["failed_iterations"] == 1
        log(run, made, {3: "No valid diffs", 4: "LLM generation failed: 429"})
        counts = harvested(run, out=tmp_path / "b")[1]
        assert counts["failed_iterations"] == 2 and counts["iterations"] == 4  # the log knows more; not both
        report = json.loads((tmp_path / "b" / "searches.json").read_text())
        assert report[0]["failures"] == {"LLM generation failed: N": 1, "No valid diffs": 1}

    def test_without_a_log_failures_are_unknown_not_zero(self, tmp_path, capsys):
        checkpoint(tmp_path / "run", 10, [seed_json(), program_json(child(1))])
        counts = harvested(tmp_path / "run", out=tmp_path / "h")[1]
        assert "failed_iterations" not in counts and counts["iterations"] == 10
        assert "9 of 10 iterations left no child, nobody knows why" in capsys.readouterr().err

    def test_what_the_log_has_and_the_disk_has_not(self, tmp_path, capsys):
        made = [child(n) for n in range(1, 5)]
        trace(tmp_path / "run" / "evolution_trace.jsonl", [trace_json(c) for c in made[:2]])
        log(tmp_path / "run", made, planned=9, finished=False)
        counts = harvested(tmp_path / "run", out=tmp_path / "h")[1]
        assert counts["lost"] == 2 and counts["cut_off"] == 1
        assert "its log ends after 4 of 9 iterations" in capsys.readouterr().err

    def test_a_finished_search_of_ours_is_not_cut_off(self, tmp_path, capsys):
        run, made = tmp_path / "run", [child(1)]
        trace(run / "evolution_trace.jsonl", [trace_json(c) for c in made])
        log(run, made, planned=9, finished=False)
        about = {
            "search": "s1",
            "task": "maths/x",
            "domain": "maths",
            "role": "train",
            "prompt_format": "eft@1",
            "model": "ast",
        }
        (run / "run.json").write_text(json.dumps(about))
        assert harvested(run, out=tmp_path / "a")[1]["cut_off"] == 1
        (run / "result.json").write_text("{}")
        rows, counts = harvested(run, out=tmp_path / "b", task="other", role="gate")
        assert counts["cut_off"] == 0
        assert (
            rows[0].task,
            rows[0].domain,
            rows[0].suite_role,
            rows[0].prompt_format,
            rows[0].run,
            rows[0].model,
        ) == (
            "maths/x",
            "maths",
            "train",
            "eft@1",
            "s1",
            "m",
        )  # run.json before options, the reply's own model before both

    def test_seeded_searches_of_ours_may_share_ids(self, tmp_path):
        for name in ("one", "two"):
            trace(tmp_path / name / "evolution_trace.jsonl", [trace_json(child(1))])
            (tmp_path / name / "run.json").write_text(json.dumps({"search": name, "task": name}))
        rows, counts = harvested(tmp_path / "one", tmp_path / "two", out=tmp_path / "h")
        assert counts["searches"] == 2 and {r.task for r in rows} == {"one", "two"}

    @pytest.mark.parametrize("damage", ['{"task": "t", "ro', "[1]", ""])
    def test_a_torn_run_file_is_named_since_the_role_goes_with_it(self, tmp_path, capsys, damage):
        trace(tmp_path / "run" / "evolution_trace.jsonl", [trace_json(child(1))])
        (tmp_path / "run" / "run.json").write_text(damage)
        rows, counts = harvested(tmp_path / "run", out=tmp_path / "h")
        assert len(rows) == 1 and rows[0].suite_role == "" and counts["bad_files"] == 1
        assert "suite role" in capsys.readouterr().err

    def test_options_for_logs_that_do_not_tell(self, tmp_path):
        trace(tmp_path / "run" / "evolution_trace.jsonl", [trace_json(child(1))])
        row = harvested(tmp_path / "run", out=tmp_path / "h", task="t", domain="d", role="train")[0][0]
        assert (row.task, row.domain, row.suite_role) == ("t", "d", "train")

    def test_an_iteration_that_was_run_again_counts_again(self, tmp_path):
        trace(tmp_path / "run" / "evolution_trace.jsonl", [trace_json(child(1))])
        log(tmp_path / "run", [child(1)], {2: "no"}, name="openevolve_1.log", finished=False)
        log(tmp_path / "run", [], {1: "no", 2: "no"}, name="openevolve_2.log")
        counts = harvested(tmp_path / "run", out=tmp_path / "h")[1]
        assert (counts["iterations"], counts["failed_iterations"], counts["cut_off"]) == (4, 3, 0)

    def test_releases(self):
        assert openevolve.release_of({"metadata.evolution_mode", "metadata.token_usage"}, set()) == "0.4.1"
        assert openevolve.release_of({"metadata.token_usage", "changes_description"}, set()) == "0.4.0"
        assert openevolve.release_of({"changes_description", "embedding"}, set()) == "0.2.26+"
        assert openevolve.release_of(set(), {"feature_map"}) == "0.1"
        assert openevolve.release_of(set(), set()) == ""


class TestBadInput:
    def test_bad_files_are_counted_and_named(self, tmp_path, capsys):
        run = tmp_path / "run"
        folder = checkpoint(run, 10, [seed_json(), program_json(child(1))]) / "programs"
        text = (folder / "child-1.json").read_text()
        (folder / "cut.json").write_text(text[: len(text) // 2])
        (folder / "empty.json").write_text("")
        (folder / "list.json").write_text("[1, 2]")
        (folder / "foreign.json").write_text('{"name": "package"}')
        (folder / "deep.json").write_text("[" * 100_000)
        (folder / "bytes.json").write_bytes(b"\xff\xfe{}")
        rows, counts = harvested(run, out=tmp_path / "h")
        assert len(rows) == 1 and counts["bad_files"] == 6
        said = capsys.readouterr().err
        assert "cut.json" in said and "and 1 more bad files" in said
        assert len(json.loads((tmp_path / "h" / "searches.json").read_text())[0]["bad_files"]) == 6

    def test_nan_and_infinity_in_json(self, tmp_path):
        metrics = {"combined_score": math.nan, "loss": math.inf}
        checkpoint(tmp_path / "run", 10, [seed_json(), program_json(child(1, metrics=metrics))])
        row = harvested(tmp_path / "run", out=tmp_path / "h")[0][0]
        assert json.loads(row.child_metrics) == {"combined_score": "NaN", "loss": "Infinity"}

    def test_integers_beyond_any_float(self, tmp_path):
        odd = {"iteration_found": 10**400, "generation": -(10**400), "timestamp": 10**400}
        records = [seed_json(), program_json(child(1)), {**program_json(child(2)), **odd}]
        checkpoint(tmp_path / "run", 10, records)
        assert len(harvested(tmp_path / "run", out=tmp_path / "h")[0]) == 2

    def test_a_torn_trace_keeps_the_records_before_the_tear(self, tmp_path):
        for name in ("evolution_trace.jsonl", "evolution_trace.jsonl.gz"):
            run = tmp_path / name.replace(".", "_")
            path = trace(run / name, [trace_json(child(n)) for n in (1, 2, 3)])
            path.write_bytes(path.read_bytes()[:-40])
            rows, counts = harvested(run, out=tmp_path / "h")
            assert {r.child_id for r in rows} == {"child-1", "child-2"} and counts["bad_files"] == 1

    @pytest.mark.parametrize("content", [None, {}, {"package.json": "{}"}, {"a.jsonl": '{"kind": "other"}\n'},
                                         {"programs/readme.txt": "hello"}, {"x.parquet": "PAR1"}])  # fmt: skip
    def test_missing_empty_and_foreign_folders(self, tmp_path, content):
        run = tmp_path / "run"
        if content is not None:
            run.mkdir()
            for name, text in content.items():
                (run / name).parent.mkdir(exist_ok=True)
                (run / name).write_text(text)
        with pytest.raises(EftError) as e:
            harvested(run, out=tmp_path / "h")
        assert e.value.where == run and (content is None or e.value.way_out)
        assert not (tmp_path / "h").exists()

    def test_a_run_with_nothing_but_its_seed(self, tmp_path):
        checkpoint(tmp_path / "run", 10, [seed_json()])
        with pytest.raises(EftError, match="no transition was found"):
            harvested(tmp_path / "run", out=tmp_path / "h")

    def test_bad_requests(self, tmp_path):
        with pytest.raises(UsageError, match="no run was named"):
            harvest.run(harvest.Config(output=tmp_path / "h"))
        checkpoint(tmp_path / "run", 10, [program_json(child(1))])
        with pytest.raises(UsageError, match="one of the runs"):
            harvested(tmp_path / "run", out=tmp_path / "run")
        assert (tmp_path / "run" / "checkpoints").is_dir()
        (tmp_path / "file").write_text("mine")
        for out in (tmp_path / "file", tmp_path / "file" / "below"):
            with pytest.raises(UsageError, match="a file is in the way"):
                harvested(tmp_path / "run", out=out)
        assert (tmp_path / "file").read_text() == "mine"

    def test_links_are_not_followed_and_hidden_folders_not_read(self, tmp_path):
        checkpoint(tmp_path / "elsewhere", 10, [program_json(child(1))])
        (tmp_path / "runs").mkdir()
        (tmp_path / "runs" / "link").symlink_to(tmp_path / "elsewhere")
        checkpoint(tmp_path / "runs" / ".hidden", 10, [program_json(child(2))])
        with pytest.raises(EftError, match="no search logs"):
            harvested(tmp_path / "runs", out=tmp_path / "h")

    # Values of every wrong type in every field, and records cut anywhere: read on, never raise anything but EftError.
    PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    WRONG = PLAIN | st.lists(PLAIN, max_size=2) | st.dictionaries(st.text(max_size=3), PLAIN, max_size=2)

    @given(field=st.sampled_from(sorted(program_json(child(1))) + ["metadata", "prompts"]), value=WRONG,
           other=st.sampled_from(sorted(trace_json(child(1)))), wrong=WRONG, cut=st.integers(0, 400))  # fmt: skip
    @settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_wrong_types_and_cuts(self, tmp_path, field, value, other, wrong, cut):
        import shutil

        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        run = tmp_path / "run"
        folder = checkpoint(run, 10, [program_json(child(2))]) / "programs"
        (folder / "odd.json").write_text(json.dumps(program_json(child(1)) | {field: value}))
        (folder / "cut.json").write_text(json.dumps(program_json(child(3)))[: -cut or None])
        lines = [json.dumps(trace_json(child(4))), json.dumps(trace_json(child(5)) | {other: wrong})]
        (run / "evolution_trace.jsonl").write_text("\n".join(lines)[: -cut or None])
        search = openevolve.read([run], Options())
        rows = list(search.rows)
        assert {"child-2"} <= {r.child_id for r in rows}
        for row in rows:
            row.id.encode(), json.loads(row.sources), json.loads(row.child_artifacts)
            assert row.parent_metrics == "" or isinstance(json.loads(row.parent_metrics), dict)
            assert abs(row.iteration) < 2**63


def test_a_search_log_that_is_read_twice_is_up_to_date(tmp_path):
    trace(tmp_path / "run" / "evolution_trace.jsonl", [trace_json(child(1))])
    config = harvest.Config(runs=[tmp_path / "run"], output=tmp_path / "h")
    harvest.run(config)
    arguments = (tmp_path / "h", "harvest", config.model_dump(mode="json"), harvest.inputs(config))
    assert manifest.up_to_date(*arguments)
    trace(tmp_path / "run" / "evolution_trace.jsonl", [trace_json(child(n)) for n in (1, 2)])
    assert not manifest.up_to_date(*arguments)


@pytest.mark.integration
def test_the_command(eft, tmp_path, real_runs):
    done = eft("harvest", real_runs / "function_min_v0_4", "-o", tmp_path / "h", "--json")
    assert done.returncode == 0 and json.loads(done.stdout.splitlines()[-1])["transitions"] == 68
    done = eft("harvest", real_runs / "killed_v0_4_json", "-o", tmp_path / "k")
    assert done.returncode == 1 and "Traceback" not in done.stderr and "nothing but a log was written" in done.stderr
    done = eft("harvest", tmp_path / "nowhere", "-o", tmp_path / "n")
    assert done.returncode == 1 and "does not exist" in done.stderr
