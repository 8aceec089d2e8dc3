"""Harvest of other scaffolds' logs: every program that a model was asked for, once, with all that its logs say."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from scaffold_logs import (
    SEED,
    checkpoint_bytes,
    code,
    codeevolve_program,
    codeevolve_run,
    diff,
    shinka_db,
    shinka_prompt,
    shinka_row,
    sky_checkpoint,
    sky_program,
)

from data_tools import harvest, label
from data_tools.readers import codeevolve, pickles, shinka, skydiscover
from data_tools.readers.files import Problems, Unreadable
from data_tools.readers.search import Options
from eft import manifest, prompts
from eft.errors import EftError
from eft.records import Transition, read_transitions


def harvested(*runs: Path, out: Path, **options) -> tuple[dict[str, Transition], dict]:
    folder = harvest.run(harvest.Config(runs=list(runs), output=out, **options))
    rows = list(read_transitions(folder))
    assert len({r.child_id for r in rows}) == len(rows)
    return {r.child_id: r for r in rows}, manifest.read(folder)["counts"]


FAILED = {"failure_stage": "proposal", "failure_class": "patch_apply_failed"}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


class TestShinka:
    def test_a_row_has_prompt_reply_reasoning_inspirations_and_logs(self, tmp_path):
        shinka_db(tmp_path / "run" / "programs.sqlite", [shinka_row(0, None), shinka_row(1), shinka_row(2, 1)])
        rows, counts = harvested(tmp_path / "run", out=tmp_path / "h")
        assert set(rows) == {"p1", "p2"} and counts["seeds"] == 1 and counts["replay_match"] == 2
        row = rows["p2"]
        assert (row.scaffold, row.iteration, row.parent_id, row.parent_code) == ("shinka", 2, "p1", code(1))
        assert (row.prompt_format, row.prompt_source, row.prompt_system) == ("shinka@0", "logged", "You improve x.")
        assert row.response == diff(1, 2) and row.reasoning == "why 2" and row.edit_kind == "diff"
        assert (row.model, row.prompt_tokens, row.response_tokens) == ("m", 7, 4)
        assert json.loads(row.inspirations) == ["p0"] and json.loads(row.child_artifacts) == {"stdout": "out 2"}
        assert json.loads(row.child_metrics) == {"size": 2, "combined_score": 0.2, "correct": True}
        assert "secret" not in row.child_metrics

    def test_full_cross_and_fix_patches_are_rewrites(self, tmp_path):
        reply = f"<NAME>\na\n</NAME>\n<CODE>\n```python\n{code(7)}\n```\n</CODE>"
        rows = [shinka_row(0, None, correct=0)] + [
            shinka_row(n, 0, id=kind, code=code(7), meta={"patch_type": kind},
                       said={"content": reply, "msg": shinka_prompt(SEED, fix=kind == "fix")})
            for n, kind in enumerate(("full", "cross", "fix"), 1)
        ]  # fmt: skip
        shinka_db(tmp_path / "run" / "programs.sqlite", rows)
        found, _ = harvested(tmp_path / "run", out=tmp_path / "h")
        assert {r.edit_kind for r in found.values()} == {"rewrite"} and {r.replay for r in found.values()} == {"match"}
        labelled = label.label(found["fix"])
        assert labelled.label == "repair" and labelled.parent_validity == "incorrect"

    def test_copies_seeds_and_failed_proposals_are_no_transitions(self, tmp_path):
        rows = [shinka_row(0, None),
                shinka_row(0, None, id="copy", island_idx=1, metadata=json.dumps(
                    {"_is_island_copy": True, "_original_program_id": "p0"})),
                shinka_row(1, 0, parent_id="copy"),
                shinka_row(2, 0, code="", correct=0, meta={"node_kind": "failed_proposal", **FAILED})]  # fmt: skip
        alike = {"failure_stage": "novelty", "failure_reason": "too alike"}
        attempts = [(2, "proposal", "failed", json.dumps(FAILED)), (3, "novelty", "failed", json.dumps(alike))]
        shinka_db(tmp_path / "run" / "programs.sqlite", rows, attempts=attempts)
        found, counts = harvested(tmp_path / "run", out=tmp_path / "h")
        assert set(found) == {"p1"} and found["p1"].parent_code == SEED and found["p1"].origin_id == "p0"
        assert (counts["copies"], counts["seeds"], counts["failed_iterations"], counts["iterations"]) == (1, 1, 2, 3)
        report = json.loads((tmp_path / "h" / "searches.json").read_text())[0]
        assert report["failures"] == {"proposal: patch_apply_failed": 1, "novelty: too alike": 1}

    def test_a_score_of_an_incorrect_program_is_none(self, tmp_path):
        rows = [shinka_row(0, None), shinka_row(1, 0, correct=0, combined_score=0.0),
                shinka_row(2, 0, correct=1, meta={"results_missing": True})]  # fmt: skip
        shinka_db(tmp_path / "run" / "programs.sqlite", rows)
        found, _ = harvested(tmp_path / "run", out=tmp_path / "h")
        one, two = (label.label(found[f"p{n}"]) for n in (1, 2))
        assert (one.child_validity, one.label, one.child_score) == ("incorrect", "breakage", None)
        assert (two.child_validity, two.label) == ("evaluator_error", "breakage")

    def test_a_second_attempt_gets_the_prompt_that_shows_the_program(self, tmp_path):
        history = [{"role": "user", "content": shinka_prompt(SEED)}, {"role": "assistant", "content": "no block"},
                   {"role": "user", "content": "Try again."}, {"role": "assistant", "content": diff(0, 1)}]  # fmt: skip
        row = shinka_row(1, 0, said={"msg": "Try again.", "new_msg_history": history})
        shinka_db(tmp_path / "run" / "programs.sqlite", [shinka_row(0, None), row])
        found, counts = harvested(tmp_path / "run", out=tmp_path / "h")
        assert found["p1"].prompt_user == shinka_prompt(SEED) and found["p1"].replay == "match"
        assert counts["later_turns"] == 1

    @pytest.mark.parametrize("name", ["programs.sqlite", "None", "evolution.db"])
    def test_a_database_is_known_by_what_is_in_it(self, tmp_path, name):
        shinka_db(tmp_path / "run" / name, [shinka_row(0, None), shinka_row(1)])
        sqlite3.connect(tmp_path / "run" / "prompts.sqlite").execute("CREATE TABLE system_prompts (id TEXT)")
        assert set(harvested(tmp_path / "run", out=tmp_path / "h")[0]) == {"p1"}
        assert set(harvested(tmp_path / "run" / name, out=tmp_path / "h2")[0]) == {"p1"}

    def test_what_is_only_in_the_write_ahead_log_is_read_and_nothing_is_written(self, tmp_path):
        run, live = tmp_path / "run", tmp_path / "live" / "programs.sqlite"
        shinka_db(live, [shinka_row(0, None), shinka_row(1)])
        db = sqlite3.connect(live)
        db.execute("PRAGMA journal_mode = WAL")
        row = shinka_row(2)
        db.execute(f"INSERT INTO programs ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", tuple(row.values()))
        db.commit()
        run.mkdir()
        for name in ("programs.sqlite", "programs.sqlite-wal"):  # as a killed run leaves them
            shutil.copy(live.with_name(name), run / name)
        db.close()
        before = contents(run)
        assert set(harvested(run, out=tmp_path / "h")[0]) == {"p1", "p2"}
        assert contents(run) == before

    def test_older_databases_without_newer_columns_and_newer_ones_with_more(self, tmp_path):
        old = {k: v for k, v in shinka_row(1).items() if k not in ("text_feedback", "island_idx", "public_metrics")}
        shinka_db(tmp_path / "old" / "programs.sqlite", [shinka_row(0, None), old])
        schema = "CREATE TABLE programs (id, code, parent_id, generation, combined_score, metadata, novel)"
        row = {"id": "p1", "code": code(1), "generation": 1}
        shinka_db(tmp_path / "few" / "programs.sqlite", [row], schema=schema)
        assert set(harvested(tmp_path / "old", out=tmp_path / "h")[0]) == {"p1"}
        with pytest.raises(EftError, match="no transition was found"):
            harvested(tmp_path / "few", out=tmp_path / "h2")

    def test_refused_replies_are_read_from_the_folders_of_attempts(self, tmp_path):
        shinka_db(tmp_path / "run" / "programs.sqlite", [shinka_row(0, None), shinka_row(1)])
        attempt = tmp_path / "run" / "gen_2" / "attempts" / "novelty_1" / "resample_1" / "patch_1"
        attempt.mkdir(parents=True)
        (attempt / "metadata.json").write_text(json.dumps({"generation": 2, "success": False, "error_msg": "no match"}))
        (attempt / "llm_response.txt").write_text("I would not.")
        (tmp_path / "run" / "gen_2" / "failure.json").write_text(json.dumps({"failure_class": "patch_apply_failed"}))
        search = shinka.read([tmp_path / "run"], Options())
        assert len(list(search.rows)) == 1 and search.failures == {"proposal: patch_apply_failed": 1}
        assert [(r.iteration, r.reason, r.response) for r in search.refused] == [(2, "no match", "I would not.")]

    def test_programs_of_another_language_than_the_database_says(self, tmp_path):
        block = "#include <cstdio>\n// EVOLVE-BLOCK-START\nint x = {};\n// EVOLVE-BLOCK-END\nint main() {{}}"
        cpp = [block.format(n) for n in (0, 1)]
        rewrite = {"content": f"```cpp\n{cpp[1]}\n```"}
        child = shinka_row(1, 0, code=cpp[1], meta={"patch_type": "full"}, said=rewrite)
        rows = [shinka_row(0, None, code=cpp[0]), child]
        shinka_db(tmp_path / "run" / "programs.sqlite", rows)
        found, counts = harvested(tmp_path / "run", out=tmp_path / "h")
        assert found["p1"].language == "cpp" and found["p1"].replay == "match" and counts["odd_language"] == 1

    def test_parents_may_be_gone_and_go_in_circles(self, tmp_path):
        rows = [shinka_row(1, 0), shinka_row(2, 3), shinka_row(3, 2)]
        shinka_db(tmp_path / "run" / "programs.sqlite", rows)
        found, counts = harvested(tmp_path / "run", out=tmp_path / "h")
        assert set(found) == {"p1", "p2", "p3"} and counts["parent_missing"] == counts["parent_recovered"] == 1
        assert found["p1"].parent_code == SEED and found["p1"].replay == "match"


class TestSkyDiscover:
    def test_the_union_of_all_checkpoints_with_artifacts_and_context(self, tmp_path):
        run = tmp_path / "run"
        sky_checkpoint(run, 2, [sky_program(0, None), sky_program(1), sky_program(2, 1)])
        sky_checkpoint(run, 4, [sky_program(0, None), sky_program(2, 1, prompts=None), sky_program(3, 2)])
        rows, counts = harvested(run, out=tmp_path / "h")
        assert set(rows) == {"s1", "s2", "s3"} and counts["replay_match"] == counts["with_prompt"] == 3
        row = rows["s3"]
        assert (row.scaffold, row.prompt_format, row.parent_code) == ("skydiscover", "skydiscover@0", code(2))
        assert json.loads(row.parent_metrics) == {"combined_score": 0.2} and json.loads(row.inspirations) == ["s0"]
        assert json.loads(row.child_artifacts) == {"stderr": "log 3"} and counts["iterations"] == 4

    @pytest.mark.parametrize("place", [".", "checkpoints", "checkpoints/checkpoint_2"])
    def test_any_part_of_a_run_may_be_named(self, tmp_path, place):
        sky_checkpoint(tmp_path / "run", 2, [sky_program(0, None), sky_program(1)])
        assert set(harvested(tmp_path / "run" / place, out=tmp_path / "h")[0]) == {"s1"}

    def test_failures_that_leaked_in_as_a_score_of_0_are_failures(self, tmp_path):
        tries = [{"solution": code(2), "metrics": {}, "metadata": {"error": "it fails"}},
                 {"solution": "", "llm_response": "no block", "metadata": {"error": "no diffs"}}]  # fmt: skip
        programs = [
            sky_program(0, None),
            sky_program(1, 0, metrics={"combined_score": 0.0}, artifacts={"traceback": "ValueError: x"}),
            sky_program(2, 0, metrics={"combined_score": 0.0}, artifacts={}, metadata={"failed_attempts": tries[::-1]}),
            sky_program(3, 0, metrics={"combined_score": 0.0}, artifacts={}),  # nobody says that this one failed
        ]
        sky_checkpoint(tmp_path / "run", 4, programs)
        rows, counts = harvested(tmp_path / "run", out=tmp_path / "h")
        assert {n: label.label(r).child_validity for n, r in rows.items()} == {
            "s1": "evaluator_error", "s2": "evaluator_error", "s3": "valid"}  # fmt: skip
        assert counts["leaked_failures"] == 2
        search = skydiscover.read([tmp_path / "run"], Options())
        assert len(list(search.rows)) == 3 and [r.response for r in search.refused] == ["no block"]

    def test_failed_iterations_are_counted_from_the_log(self, tmp_path):
        sky_checkpoint(tmp_path / "run", 3, [sky_program(0, None), sky_program(1)])
        (tmp_path / "run" / "logs").mkdir()
        (tmp_path / "run" / "logs" / "topk.log").write_text(
            "skydiscover - INFO\nWARNING - Iteration 2 failed: No valid diffs found (after 3 attempts)\n")  # fmt: skip
        counts = harvested(tmp_path / "run", out=tmp_path / "h")[1]
        assert counts["failed_iterations"] == 1 and counts["iterations"] == 3

    def test_torn_programs_and_unknown_fields(self, tmp_path):
        folder = sky_checkpoint(tmp_path / "run", 2, [sky_program(0, None), sky_program(1, 0, hyper={"a": 1})])
        (folder / "programs" / "s2.json").write_text(json.dumps(sky_program(2))[:80])
        (folder / "programs" / "s3.json").write_text('{"id": "s3"}')
        rows, counts = harvested(tmp_path / "run", out=tmp_path / "h")
        assert set(rows) == {"s1"} and counts["bad_files"] == 2

    def test_an_edit_that_matched_nothing_is_replayed_as_older_runs_stored_it(self, tmp_path):
        same = sky_program(1, 0, solution=SEED, prompts=sky_program(1, 9)["prompts"])
        sky_checkpoint(tmp_path / "run", 1, [sky_program(0, None), same])
        assert harvested(tmp_path / "run", out=tmp_path / "h")[0]["s1"].replay == "match"


class TestCodeEvolve:
    def test_all_programs_dead_ones_too_with_replies_tokens_and_instruction(self, tmp_path):
        usage = [{"epoch": 2, "motive": "generate_prog", "prompt_tok": 11, "compl_tok": 5, "model_name": "m"}]
        errors = [{"epoch": 3, "motive": "sr_evolve_prog", "sol_diff": "no block", "error_msg": "No block."},
                  {"epoch": 4, "motive": "generate_prog", "error_msg": "Error: 500"}]  # fmt: skip
        dead = codeevolve_program(2, 1, returncode=1, error="TimeoutError: too long", fitness=0, eval_metrics={})
        data = checkpoint_bytes([codeevolve_program(0, None), codeevolve_program(1), dead], usage=usage, errors=errors)
        codeevolve_run(tmp_path / "run", 4, data)
        rows, counts = harvested(tmp_path / "run", out=tmp_path / "h")
        assert set(rows) == {"c1", "c2"} and counts["replay_match"] == 2
        assert (counts["iterations"], counts["failed_iterations"]) == (4, 2)
        row = rows["c2"]
        assert (row.model, row.prompt_tokens, row.response_tokens) == ("m", 11, 5)
        assert row.prompt_system == "Improve x." and row.prompt_user == "" and row.response == diff(1, 2)
        assert label.label(row).child_validity == "timeout" and json.loads(row.inspirations) == ["c0"]
        assert json.loads(rows["c1"].child_metrics) == {"score": 0.1, "size": 1, "combined_score": 0.1}
        search = codeevolve.read([tmp_path / "run"], Options())
        assert len(list(search.rows)) == 2
        assert [(r.iteration, r.response) for r in search.refused] == [(3, "no block"), (4, None)]

    def test_migrants_are_taken_from_home_and_the_first_children_get_their_seed(self, tmp_path):
        away = codeevolve_program(2, 1, parent_id=None, prompt_id=None)
        first = codeevolve_program(1, 0, parent_id=None)  # while the first population is made
        home = [codeevolve_program(0, None), first, codeevolve_program(2, 1)]
        codeevolve_run(tmp_path / "run", 3, checkpoint_bytes(home), island=0)
        other = [codeevolve_program(9, None, iteration_found=0, island_found=1), away]
        codeevolve_run(tmp_path / "run", 6, checkpoint_bytes(other, island=1), island=1)
        rows, counts = harvested(tmp_path / "run", out=tmp_path / "h")
        assert rows["c2"].parent_id == "c1" and rows["c1"].parent_id == "c0" and rows["c1"].replay == "match"
        assert counts["seeds"] == 2 and counts["initial_population"] == 1

    def test_a_torn_checkpoint_leaves_the_older_one(self, tmp_path):
        data = checkpoint_bytes([codeevolve_program(0, None), codeevolve_program(1)])
        codeevolve_run(tmp_path / "run", 3, data)
        codeevolve_run(tmp_path / "run", 6, data[: len(data) // 2])
        rows, counts = harvested(tmp_path / "run", out=tmp_path / "h")
        assert set(rows) == {"c1"} and counts["bad_files"] == 1

    def test_numbers_of_numpy_are_numbers(self, tmp_path):
        metrics = {"score": np.float64(0.5), "n": np.int32(3), "ok": np.bool_(True), "array": np.zeros(4)}
        program = codeevolve_program(1, 0, eval_metrics=metrics, fitness=np.float32(0.5))
        codeevolve_run(tmp_path / "run", 1, checkpoint_bytes([codeevolve_program(0, None), program]))
        rows, _ = harvested(tmp_path / "run", out=tmp_path / "h")
        assert json.loads(rows["c1"].child_metrics) == {
            "score": 0.5, "n": 3, "ok": True, "array": None, "combined_score": 0.5}  # fmt: skip


class Evil:
    """Pickled, it asks for a call when it is read."""

    def __init__(self, function, *arguments) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


class TestPickles:
    @pytest.mark.parametrize("function, argument", [(__import__("os").system, "touch {}"), (eval, "open('{}', 'w')"),
                                                    (exec, "open('{}', 'w')"), (open, "{}")])  # fmt: skip
    def test_nothing_in_a_pickle_is_called(self, tmp_path, function, argument):
        victim = tmp_path / "victim"
        arguments = (argument.format(victim), "w") if function is open else (argument.format(victim),)
        evil = codeevolve_program(1, 0, model_msg=Evil(function, *arguments), warning=[Evil(function, *arguments)])
        data = checkpoint_bytes([codeevolve_program(0, None), evil, codeevolve_program(2)])
        codeevolve_run(tmp_path / "run", 1, data)
        assert set(harvested(tmp_path / "run", out=tmp_path / "h")[0]) == {"c2"}  # the evil one has no reply any more
        assert not victim.exists()

    @pytest.mark.parametrize("data", [
        b"\x80\x05r\xff\xff\xff\xff.",  # a memo of 2^32 places
        b"\x80\x05\x8e\xff\xff\xff\xff\xff\xff\xff\x00.",  # eight bytes of length, and nothing behind
        b"\x80\x05\x95\xff\xff\xff\xff\xff\xff\xff\x00.",  # a frame of that length
        b"(" * 3_000_000 + b"l" * 3_000_000 + b".",  # lists in lists
        b"cos\nsystem\n(S'true'\ntR.", b"", b"\x80\x05.", b"\xff" * 100, b"\x80\x05K\x01.",
    ], ids=["memo", "length", "frame", "nested", "system", "empty", "nothing", "noise", "number"])  # fmt: skip
    def test_hostile_and_broken_pickles_are_named_and_cost_little(self, tmp_path, data):
        path = tmp_path / "ckpt_1.pkl"
        path.write_bytes(data)
        problems = Problems()
        assert list(pickles.programs(path, problems)) == [] and len(problems) == 1, problems.found

    def test_one_list_shared_a_million_times_over_stays_small(self, tmp_path):
        shared = [1]
        for _ in range(60):
            shared = [shared, shared]
        program = codeevolve_program(1, 0, eval_metrics={"a": shared}, inspiration_ids=shared)
        codeevolve_run(tmp_path / "run", 1, checkpoint_bytes([codeevolve_program(0, None), program]))
        assert set(harvested(tmp_path / "run", out=tmp_path / "h")[0]) == {"c1"}

    @pytest.mark.parametrize("protocol", range(6))
    def test_every_protocol(self, tmp_path, protocol):
        found = pickles.load(checkpoint_bytes([codeevolve_program(1, 0)], protocol=protocol))
        assert found["sol_db"].state["programs"]["c1"].state["model_msg"] == diff(0, 1)

    def test_a_name_is_never_looked_up(self):
        found = pickles.load(b"cno_such_module.at_all\nThing\n)\x81.")
        assert isinstance(found, pickles.Opaque) and found.name == "no_such_module.at_all.Thing"
        with pytest.raises(Unreadable):
            pickles.load(b"\x80\x04\x8c\x02os\x93.")  # a name without its module


class TestPromptsOfOtherScaffolds:
    def test_the_program_that_a_prompt_asks_to_change(self):
        for fix in (False, True):
            prompt = shinka_prompt(code(3), fix=fix)
            assert prompts.current_program(prompt) == code(3) and prompts.detect_format("", prompt) == "shinka@0"
        assert prompts.edit_kind(shinka_prompt("x")) == "diff"
        sky = sky_program(1)["prompts"]["diff_user_message"]["user"]
        assert prompts.current_program(sky) == SEED and prompts.edit_kind(sky) == "diff"
        asked = codeevolve_prompt(code(4))
        assert prompts.current_program(asked) == code(4) and prompts.detect_format("", asked) == "codeevolve@0"

    def test_a_journal_gives_codeevolve_its_prompts_and_the_replies_that_came_to_nothing(self, tmp_path):
        run = tmp_path / "run"
        codeevolve_run(run, 1, checkpoint_bytes([codeevolve_program(0, None), codeevolve_program(1)]))
        said = [diff(0, 1), "no block", diff(7, 8)]
        records = [{"kind": "reply", "search": "run", "status": "ok", "content": reply, "index": n, "messages": [
            {"role": "system", "content": "S"}, {"role": "user", "content": codeevolve_prompt(SEED)}]}
            for n, reply in enumerate(said)]  # fmt: skip
        (run / "journal.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
        rows, counts = harvested(run, out=tmp_path / "h")
        assert rows["c1"].prompt_user == codeevolve_prompt(SEED) and rows["c1"].prompt_format == "codeevolve@0"
        assert counts["with_prompt"] == 1
        outcomes = pq.read_table(tmp_path / "h" / "replies.parquet", columns=["outcome"]).to_pylist()
        assert [o["outcome"] for o in outcomes] == ["child", "no_block", "unmatched"]


def codeevolve_prompt(shown: str) -> str:
    return f"IT.\n-----TARGET PROGRAM-----\n \n```python\n{shown}\n```\nPERFORMANCE METRICS: {{}}\n"


@pytest.mark.parametrize("scaffold", ["shinka", "skydiscover", "codeevolve"])
def test_a_torn_run_json_is_told_since_the_suite_role_goes_with_it(scaffold, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text('{"task": "maths/x", "role": "heldo')
    module = {"shinka": shinka, "skydiscover": skydiscover, "codeevolve": codeevolve}[scaffold]
    search = module.read([run], Options())
    assert [n for n in search.notes if "suite role of these rows is not known" in n]
    assert "run.json" in str(search.problems.__dict__)
