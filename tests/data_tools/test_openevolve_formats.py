"""What OpenEvolve leaves besides programs and traces, what a run's own settings change, and every reply that it had."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from synthetic_runs import (
    SEED,
    checkpoint,
    child,
    code,
    diff,
    program_json,
    seed_json,
    trace,
    trace_json,
    user_prompt,
)

from data_tools import harvest
from data_tools.readers import openevolve, openevolve_programs, spool
from data_tools.readers.openevolve_rows import spoken
from data_tools.readers.search import Options
from eft import manifest
from eft.records import Transition, code_hash, read_transitions


def harvested(*runs: Path, out: Path, **options) -> tuple[dict[str, Transition], dict]:
    folder = harvest.run(harvest.Config(runs=list(runs), output=out, **options))
    return {r.child_id: r for r in read_transitions(folder)}, manifest.read(folder)["counts"]


def replies(out: Path) -> list[dict]:
    return pq.read_table(out / "replies.parquet").to_pylist()


class TestLargeArtifacts:
    def run(self, folder: Path, where: Path, **changes) -> Path:
        """Child 2 of child 1, whose log was too large for its record and went into a file."""
        (where / "child-1").mkdir(parents=True)
        (where / "child-1" / "stderr").write_text("a long log\n")
        one = program_json(child(1), artifacts_json=json.dumps({"note": "small"}), artifact_dir="./artifacts/child-1")
        checkpoint(folder, 10, [seed_json(), {**one, **changes}, program_json(child(2, 1))])
        return folder

    @pytest.mark.parametrize("place", ["run/artifacts", "run/db/artifacts", "run/checkpoints/artifacts"])
    def test_files_are_read_with_the_record(self, tmp_path, place):
        rows, counts = harvested(self.run(tmp_path / "run", tmp_path / place), out=tmp_path / "h")
        expected = {"note": "small", "stderr": "a long log\n"}
        assert json.loads(rows["child-2"].parent_artifacts) == json.loads(rows["child-1"].child_artifacts) == expected
        assert counts["large_artifacts"] == 2  # read for the child and for its parent

    def test_beside_the_folder_that_openevolve_names_itself(self, tmp_path):
        run = self.run(tmp_path / "task" / "openevolve_output", tmp_path / "task" / "artifacts")
        rows, _ = harvested(run, out=tmp_path / "h")
        assert "a long log" in rows["child-1"].child_artifacts and rows["child-1"].run == "task"

    @pytest.mark.parametrize("name", ["../../secret", "/etc", "..", "a\0b", "child-9/../../secret", ""])
    def test_an_id_that_is_a_path_leads_nowhere(self, tmp_path, name):
        (tmp_path / "secret").mkdir()
        (tmp_path / "secret" / "stderr").write_text("secret")
        run = self.run(tmp_path / "run", tmp_path / "run" / "artifacts", id=name or "x", artifact_dir=name)
        rows, _ = harvested(run, out=tmp_path / "h")
        assert all("secret" not in r.parent_artifacts + r.child_artifacts for r in rows.values()) and len(rows) == 2

    def test_links_are_not_followed_and_long_files_are_cut(self, tmp_path, monkeypatch):
        monkeypatch.setattr(openevolve_programs, "LONGEST_ARTIFACT", 100)
        run = self.run(tmp_path / "run", tmp_path / "run" / "artifacts")
        (tmp_path / "secret").write_text("secret")
        (run / "artifacts" / "child-1" / "link").symlink_to(tmp_path / "secret")
        (run / "artifacts" / "child-1" / "big").write_bytes(b"\xff" + b"y" * 5000)
        rows, counts = harvested(run, out=tmp_path / "h")
        found = json.loads(rows["child-1"].child_artifacts)
        assert (
            "link" not in found and found["big"].endswith("... (cut off here, 5001 in all)") and len(found["big"]) < 200
        )
        assert counts["bad_files"] == 2


class TestSettingsOfTheRun:
    def test_enforced_evolve_blocks(self, tmp_path):
        reply = f"```python\nimport os\n{code(1)}\nevil = 1\n```"
        made = program_json(child(1, response=reply, code=code(1)))
        made["prompts"] = {"full_rewrite_user": made["prompts"].pop("diff_user")}
        checkpoint(tmp_path / "run", 10, [seed_json(), made])
        assert harvested(tmp_path / "run", out=tmp_path / "a")[0]["child-1"].replay == "mismatch"
        (tmp_path / "run" / "config.yaml").write_text("enforce_evolve_blocks: true\n")
        row = harvested(tmp_path / "run", out=tmp_path / "b")[0]["child-1"]
        assert row.replay == "match" and "evil" not in row.child_code

    def test_changes_description_mode(self, tmp_path):
        # The first block makes the text of the second one, which was written for the description: skipped there.
        reply = diff(0, 1) + diff(1, 7)
        checkpoint(tmp_path / "run", 10, [seed_json(), program_json(child(1, response=reply))])
        assert harvested(tmp_path / "run", out=tmp_path / "a")[0]["child-1"].replay == "mismatch"
        (tmp_path / "run" / "config.yaml").write_text("prompt:\n  programs_as_changes_description: true\n")
        assert harvested(tmp_path / "run", out=tmp_path / "b")[0]["child-1"].replay == "match"

    def test_a_config_beside_the_output_folder_and_configs_that_are_none(self, tmp_path):
        c = child(1, response="<old>x = 0</old><new>x = 1</new>")
        run = tmp_path / "task" / "openevolve_output"
        checkpoint(run, 10, [seed_json(), program_json(c)])
        (tmp_path / "task" / "config.yaml").write_text(json.dumps({"diff_pattern": "<old>(.*?)</old><new>(.*?)</new>"}))
        assert harvested(run, out=tmp_path / "a")[0]["child-1"].replay == "match"
        for bad in ("a: [", "&a [*a]", "diff_pattern: '('", "- 1", "\xff", "diff_pattern: {x: 1}", "a: " + "[" * 5000):
            (run / "config.yaml").write_text(bad)
            assert len(harvested(run, out=tmp_path / "b")[0]) == 1

    def test_crlf_replies_by_release(self, tmp_path):
        """0.4.1 applies them; 0.3 found no block and stored the parent; 0.4.0 refused."""
        reply = diff(0, 1).replace("\n", "\r\n")
        for release, made, state in (
            ("0.4.1", code(1), "match"),
            ("0.2.14", SEED, "mismatch"),
            ("0.4.0", SEED, "mismatch"),
        ):
            run = tmp_path / release
            checkpoint(run, 10, [seed_json(), program_json(child(1, response=reply, code=made))])
            rows, _ = harvested(run, out=tmp_path / f"h{release}", release=release)
            assert rows["child-1"].replay == state, release

    @pytest.mark.parametrize("labelled,text,language", [
        ("python", "#include <vector>\nint main() { return 0; }\n", "cpp"),
        ("python", "x = 1\n# #include <vector>\n", "python"),
        ("python", "fn main() {\n    let x = 1;\n}\n", "rust"),
        ("python", "def f(:\n", "python"),  # a broken Python program is one
        ("c++", "x = 1\n", "cpp"),
        ("text", "x = 1\n", "python"),
        ("rust", "x = 1\n", "rust"),
    ])  # fmt: skip
    def test_languages(self, labelled, text, language):
        assert spoken(labelled, text) == language

    def test_a_mislabelled_program_is_replayed_as_labelled_and_told_as_it_is(self, tmp_path):
        before, after = "#include <a>\nint x = 0;", "#include <a>\nint x = 1;"
        c = child(1, code=after, parent_code=before, user=user_prompt(before), response=f"```python\n{after}\n```")
        seed = seed_json() | {"code": before}
        checkpoint(tmp_path / "run", 10, [seed, program_json(c)])
        rows, counts = harvested(tmp_path / "run", out=tmp_path / "h")
        assert (rows["child-1"].language, rows["child-1"].replay, counts["odd_language"]) == ("cpp", "match", 1)


class TestChains:
    def test_parents_are_resolved_through_migrants(self, tmp_path):
        one = program_json(child(1))
        first = {**one, "id": "m1", "parent_id": "child-1", "prompts": None, "iteration_found": 0,
                 "metadata": {**one["metadata"], "migrant": True}}  # fmt: skip
        second = {**first, "id": "m2", "parent_id": "m1"}
        two = program_json(child(2, 1, parent_id="m2"))
        checkpoint(tmp_path / "run", 10, [seed_json(), one, first, second, two])
        rows, counts = harvested(tmp_path / "run", out=tmp_path / "h")
        assert (rows["child-2"].parent_id, rows["child-2"].origin_id) == ("m2", "child-1")
        assert rows["child-1"].origin_id == "seed" and counts["copies"] == 2

    def test_migrants_of_old_releases_that_are_gone_and_circles(self, tmp_path):
        old = program_json(child(1, parent_id="abc_migrant_0_migrant_2"))
        ring = [program_json(child(n, m, id=f"r{n}", parent_id=f"r{m}"), prompts=None) for n, m in ((5, 6), (6, 5))]
        for program in ring:
            program["metadata"]["migrant"] = True
        after = program_json(child(7, 5, parent_id="r5"))
        checkpoint(tmp_path / "run", 10, [seed_json(), old, *ring, after])
        rows, _ = harvested(tmp_path / "run", out=tmp_path / "h")
        assert rows["child-1"].origin_id == "abc" and rows["child-7"].origin_id in ("r5", "r6")


class TestReplies:
    def messages(self, parent: int) -> list[dict]:
        return [
            {"role": "system", "content": "You improve programs."},
            {"role": "user", "content": user_prompt(code(parent))},
        ]

    def journal(self, path: Path, contents: list[str | None], parent: int = 0) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        records = [
            {"kind": "reply", "search": path.stem, "index": n, "mutator": "m", "model": "big", "content": c or "",
             "status": "error" if c is None else "ok", "reasoning": f"thought {n}", "messages": self.messages(parent),
             "usage": {"prompt_tokens": 11, "completion_tokens": n}, "finish_reason": "stop", "seconds": 0.5,
             "error": None if c is not None else "timed out"} for n, c in enumerate(contents)
        ]  # fmt: skip
        path.write_text("".join(json.dumps(r) + "\n" for r in records))
        return path

    def test_every_reply_of_the_journal_and_what_became_of_it(self, tmp_path):
        run = tmp_path / "runs" / "s1"
        trace(run / "evolution_trace.jsonl", [trace_json(child(3))])
        contents = [diff(0, 3), "no idea", diff(9, 1), None, diff(0, 0), diff(0, 4), diff(0, 3), "<<<<<<< SEARCH\n"]
        self.journal(tmp_path / "runs" / "journal" / "s1.jsonl", contents)
        rows, counts = harvested(tmp_path / "runs", out=tmp_path / "h")
        table = replies(tmp_path / "h")
        assert [r["outcome"] for r in table] == ["child", "no_block", "unmatched", "no_reply", "no_op", "lost", "again",
                                                 "markers"]  # fmt: skip
        assert counts["replies"] == 8 and table[3]["reason"] == "timed out"
        assert table[0]["transition_id"] == rows["child-3"].id and table[0]["child_id"] == "child-3"
        assert [r["response"] for r in table] == [c or "" for c in contents]
        assert all(
            r["prompt_user"] == user_prompt(code(0)) and r["reasoning"] == f"thought {r['index']}" for r in table
        )
        assert rows["child-3"].reasoning == "thought 0" and rows["child-3"].response_tokens == 3

    def test_programs_without_prompts_are_joined_by_what_the_reply_makes(self, tmp_path):
        folder = tmp_path / "runs" / "s1" / "programs"
        folder.mkdir(parents=True)
        for program in (seed_json(), program_json(child(1), prompts=None), program_json(child(2), prompts=None)):
            (folder / f"{program['id']}.json").write_text(json.dumps(program))
        self.journal(tmp_path / "runs" / "journal" / "s1.jsonl", [diff(0, 2), diff(0, 8), diff(0, 1)])
        rows, counts = harvested(tmp_path / "runs", out=tmp_path / "h")
        for number in (1, 2):
            row = rows[f"child-{number}"]
            assert row.response == diff(0, number) and row.replay == "match" and row.prompt_source == "logged"
            assert row.prompt_user == user_prompt(code(0)) and row.edit_kind == "diff" and row.model == "big"
        assert (counts["with_response"], counts["with_prompt"], counts["replay_match"]) == (2, 2, 2)
        assert counts["prompts_rebuilt"] == counts["replay_unknown"] == 0
        assert [r["outcome"] for r in replies(tmp_path / "h")] == ["child", "lost", "child"]

    def test_failures_that_the_scaffold_kept_itself(self, tmp_path):
        run = tmp_path / "run"
        trace(run / "evolution_trace.jsonl", [trace_json(child(1))])
        prompt = {"system": "s", "user": user_prompt(code(0))}
        failed = {"iteration": 2, "error": "No valid diffs found in response", "llm_response": "<think>hm</think>no",
                  "prompt": prompt, "token_usage": {"completion_tokens": 4}}  # fmt: skip
        silent = {"iteration": 3, "error": "LLM generation failed: 429", "prompt": failed["prompt"]}
        (run / "evolution_trace_failures.jsonl").write_text(
            "".join(json.dumps(r) + "\n" for r in (failed, silent)) + "{"
        )
        _, counts = harvested(run, out=tmp_path / "h")
        first, second = replies(tmp_path / "h")
        assert (first["outcome"], first["iteration"], first["reasoning"]) == ("no_block", 2, "hm")
        assert (second["outcome"], second["reason"]) == ("no_reply", "LLM generation failed: 429")
        assert counts["failed_iterations"] == 2 and counts["replies"] == 2

    def test_reasoning_in_the_reply_itself(self, tmp_path):
        c = child(1, response="<think>\nx must grow\n</think>\n" + diff(0, 1))
        checkpoint(tmp_path / "run", 10, [seed_json(), program_json(c)])
        row = harvested(tmp_path / "run", out=tmp_path / "h")[0]["child-1"]
        assert row.reasoning == "x must grow" and row.response == c["response"] and row.replay == "match"


class TestSpool:
    def test_a_search_that_does_not_fit_into_memory_gives_the_same_rows(self, tmp_path, monkeypatch):
        programs = [program_json(child(n, n // 2, score=n % 7), artifacts_json=json.dumps({"log": f"l{n}"}))
                    for n in range(1, 60)]  # fmt: skip
        checkpoint(tmp_path / "run", 10, [seed_json(), *programs[:40]])
        checkpoint(tmp_path / "run", 20, [seed_json(), *programs[20:]])
        trace(
            tmp_path / "run" / "evolution_trace.jsonl",
            [trace_json(child(n, n // 2), with_code=False) for n in range(1, 50, 3)],
        )
        plain = list(openevolve.read([tmp_path / "run"], Options()).rows)
        monkeypatch.setattr(spool, "BUDGET", 5000)
        monkeypatch.setattr(spool.Pieces.__init__, "__defaults__", (None, 5000))
        out = tmp_path / "out"
        out.mkdir()
        spooled = list(openevolve.read([tmp_path / "run"], Options(folder=out)).rows)
        assert spooled == plain and len(plain) == 59 and not list(out.iterdir())

    def test_it_was_really_used(self, tmp_path):
        pieces = spool.Pieces(tmp_path, budget=1000)
        for n in range(20):
            pieces.take(
                spool.Piece(f"p{n}", "s", code="x" * 100, metrics={"a": float("nan")}, artifacts={"\ud800": [n]}),
                record=True,
            )
        assert pieces.spilled >= 2 and pieces.get("p3").artifacts == {"\ud800": [3]} and pieces.peek("p3").code is None
        pieces.take(spool.Piece("p3", "t", user="u"), record=False)
        assert (pieces.get("p3").code, pieces.get("p3").user) == ("x" * 100, "u")
        pieces.close()


def test_metrics_that_openevolve_was_not_told_of_come_from_the_evaluations_of_our_own_searches(tmp_path):
    run = tmp_path / "s1"
    trace(run / "evolution_trace.jsonl", [trace_json(child(1)), trace_json(child(2))])
    (run / "run.json").write_text(json.dumps({"search": "s1", "task": "maths/x"}))
    known = {"key": f"maths/x\0{code_hash(code(1))}", "metrics": {"combined_score": 9.0, "length": 4.0}}
    hidden = {"key": f"maths/x\0hidden:{code_hash(code(2))}", "metrics": {"length": 5.0}}
    (run / "evaluations.jsonl").write_text("\n".join(map(json.dumps, (known, hidden, {"key": 7}))) + "\n{")
    rows, _ = harvested(run, out=tmp_path / "h")
    assert json.loads(rows["child-1"].child_metrics) == {"combined_score": 1.0, "length": 4.0}  # the log's word first
    assert json.loads(rows["child-2"].child_metrics) == {"combined_score": 2.0}
