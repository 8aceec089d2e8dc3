"""The Finch-Collection's schema: every row once, its published label kept and checked, bad input named."""

from __future__ import annotations

import http.server
import json
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from synthetic_runs import child, code, diff, trace, trace_json, user_prompt

from data_tools import harvest, label
from data_tools.readers import finch
from data_tools.readers.search import Options
from eft import manifest
from eft.errors import EftError, UsageError
from eft.records import Transition, read_transitions

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LENGTHS = ("system_token_length", "user_token_length", "reasoning_token_length", "response_token_length")


def meaning(before: float, after: float) -> str:
    return "improved" if after > before else "regressed" if after < before else "no_change"


def row(number: int = 1, parent: int = 0, published: Any = None, **changes: Any) -> dict[str, Any]:
    """All 25 columns of one row. Codes say `x = <number>`, and that is the score."""
    scores = float(parent), float(number)
    system, user, response = "You improve programs.", user_prompt(code(parent)), diff(parent, number)
    value = {
        "domain": "Mathematical Discovery", "task": "circle_packing",
        "trajectory": [{"role": "system", "content": system}, {"role": "user", "content": user},
                       {"role": "assistant", "content": response}],
        "improvement_label": published or meaning(*scores),
        "improvement_delta": json.dumps({"combined_score": scores[1] - scores[0]}),
        "global_uid": f"{number:064x}", "instance_uid": f"{parent:064x}", "iteration": number, "island_id": number % 3,
        "generation": 2, "parent_id": f"p{parent}", "child_id": f"c{number}",
        "parent_metrics": json.dumps({"validity": 1.0, "combined_score": scores[0]}),
        "child_metrics": json.dumps({"validity": 1.0, "combined_score": scores[1]}),
        "parent_code": code(parent), "child_code": code(number), "metadata": json.dumps({"changes": "Change 1"}),
        "system_prompt": system, "user_prompt": user, "reasoning": "Hm.", "response": response,
        **dict.fromkeys(LENGTHS, 7),
    }  # fmt: skip
    assert len(value) == 25
    return {**value, **changes}


def parquet(path: Path, rows: list[dict[str, Any]], **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path, **options)
    return path


def jsonl(path: Path, rows: list[dict[str, Any]], tail: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in rows) + tail, encoding="utf-8")
    return path


def harvested(*runs: Path, out: Path, **options: Any) -> tuple[list[Transition], dict, dict]:
    """The rows, the counts, and what searches.json says of the last search."""
    folder = harvest.run(harvest.Config(runs=list(runs), output=out, **options))
    told = json.loads((folder / harvest.SEARCHES).read_text())[-1]
    return list(read_transitions(folder)), manifest.read(folder)["counts"], told


def labelled(source: Path, out: Path, **options: Any) -> list[Transition]:
    return list(read_transitions(label.run(label.Config(source=source, output=out, **options))))


class TestRows:
    def test_a_folder_of_shards(self, tmp_path, capsys):
        home = tmp_path / "Finch-Collection"
        (home / "README.md").parent.mkdir()
        (home / "README.md").write_text("card")
        parquet(home / "data" / "train-00000-of-00002.parquet", [row(1), row(2, 1)])
        parquet(home / "data" / "train-00001-of-00002.parquet", [row(3, 4)])
        rows, counts, told = harvested(home, out=tmp_path / "h")
        assert [r.child_id for r in rows] == ["c1", "c2", "c3"] and counts["searches"] == 1
        assert {(r.run, r.scaffold, r.task, r.domain, r.suite_role) for r in rows} == {
            ("Finch-Collection", "finch", "circle_packing", "Mathematical Discovery", "")
        }
        first = rows[0]
        assert (first.iteration, first.island, first.generation, first.parent_id) == (1, 1, 2, "p0")
        assert (first.prompt_system, first.prompt_user) == ("You improve programs.", user_prompt(code(0)))
        assert (first.response, first.reasoning, first.edit_kind, first.replay) == (diff(0, 1), "Hm.", "diff", "match")
        assert (first.parent_code, first.child_code, first.language) == (code(0), code(1), "python")
        assert (first.prompt_format, first.prompt_tokens, first.response_tokens) == ("openevolve@0.4", -1, -1)
        assert json.loads(first.child_metrics) == {"validity": 1.0, "combined_score": 1.0}
        assert json.loads(first.sources) == ["train-00000-of-00002.parquet, row 1", f"global_uid: {1:064x}",
                                             f"instance_uid: {0:064x}", "published label: improved"]  # fmt: skip
        assert {r.label for r in rows} == {""}, "labels are the next stage's"
        assert (counts["labels_agree"], counts["labels_differ"], counts["replay_match"]) == (3, 0, 3)
        said = capsys.readouterr().err
        assert "published labels: 3 of 3 are what combined_score says" in said and "warning" not in said
        assert told["notes"] == ["published labels: 3 of 3 are what combined_score says"]

    @pytest.mark.parametrize("write, name", [(parquet, "mine.parquet"), (jsonl, "mine.jsonl")])
    def test_one_file_is_named_after_itself_and_read_once(self, tmp_path, capsys, write, name):
        file = write(tmp_path / "d" / name, [row(1), row(2)])
        rows, counts, _ = harvested(file, tmp_path / "d", out=tmp_path / "h")
        assert {r.run for r in rows} == {"mine"} and len(rows) == 2 and counts["searches"] == 1
        assert "named twice" in capsys.readouterr().err

    def test_beside_a_search_that_has_nearly_the_same_columns(self, tmp_path):
        trace(tmp_path / "runs" / "own" / "evolution_trace.jsonl", [trace_json(child(1))])
        jsonl(tmp_path / "runs" / "public" / "data.jsonl", [row(1), row(2)])
        jsonl(tmp_path / "runs" / "own" / "published.jsonl", [row(3)])
        rows, counts, _ = harvested(tmp_path / "runs", out=tmp_path / "h")
        assert [(r.run, r.scaffold, r.child_id) for r in rows] == [
            ("own", "openevolve", "child-1"), ("runs/own", "finch", "c3"), ("public", "finch", "c1"),
            ("public", "finch", "c2")]  # fmt: skip
        assert len({r.id for r in rows}) == 4 and counts["searches"] == 3

    def test_rewrites_other_languages_and_replies_that_make_another_child(self, tmp_path):
        asked = "# Current Program\n```cpp\nint main(){}\n```\n\n# Task\nRewrite it.\n```cpp\n# code\n```\n"
        cpp = {"parent_code": "int main(){}", "user_prompt": asked}
        new = "int main(){return 0;}"
        rows, counts, told = harvested(
            parquet(tmp_path / "x.parquet", [
                row(1, child_id="a", **cpp, child_code=new, response=f"So:\n```cpp\n{new}\n```"),
                row(1, child_id="b", **cpp, child_code="int x;", response=f"So:\n```cpp\n{new}\n```"),
                row(1, child_id="c", **cpp, child_code="int x;", response=""),
                row(1, child_id="d", parent_code="#include <x>\n", user_prompt="", child_code="#include <y>\n"),
            ]), out=tmp_path / "h",
        )  # fmt: skip
        told_of = [(r.edit_kind, r.replay) for r in rows[:3]]
        assert told_of == [("rewrite", "match"), ("rewrite", "mismatch"), ("", "unknown")]
        assert {r.language for r in rows} == {"cpp"} and counts["replay_mismatch"] == 2
        assert "2 children are not what their reply makes of their parent" in told["notes"]

    def test_every_dialect_is_tried(self, tmp_path):
        crlf = diff(0, 1).replace("\n", "\r\n")  # a block since 0.4.1 only
        unchanged = "<<<<<<< SEARCH\nnowhere\n=======\ny\n>>>>>>> REPLACE\n"  # stored before 0.4 only
        file = parquet(tmp_path / "x.parquet", [row(1, response=crlf), row(2, response=unchanged, child_code=code(0))])
        assert [r.replay for r in harvested(file, out=tmp_path / "h")[0]] == ["match", "match"]

    def test_rows_that_were_published_twice_are_read_once(self, tmp_path):
        file = parquet(tmp_path / "x.parquet", [row(1), row(1), row(1, task="other"), row(1, child_code=code(9))])
        rows, counts, told = harvested(file, out=tmp_path / "h")
        assert len(rows) == 3 and counts["repeated"] == 1 and "1 rows were there twice" in " ".join(told["notes"])


class TestLabels:
    @pytest.mark.parametrize(
        "spelled, meant",
        [("Improved", "improved"), ("IMPROVED ", "improved"), ("no_change", "no_change"), ("No change", "no_change"),
         ("no-change", "no_change"), ("NoChange", "no_change"), ("Unchanged", "no_change"), ("regressed", "regressed")],
    )  # fmt: skip
    def test_spellings(self, tmp_path, spelled, meant):
        numbers = {"improved": (2, 1), "no_change": (1, 1), "regressed": (1, 2)}[meant]
        rows, counts, _ = harvested(jsonl(tmp_path / "x.jsonl", [row(*numbers, published=spelled)]), out=tmp_path / "h")
        assert f"published label: {meant}" in json.loads(rows[0].sources) and counts["labels_agree"] == 1
        assert labelled(tmp_path / "h", tmp_path / "l")[0].label == meant

    @pytest.mark.parametrize("write, name, where", [(parquet, "x.parquet", "row 2"), (jsonl, "x.jsonl", "line 2")])
    def test_an_unknown_label_ends_the_harvest(self, tmp_path, write, name, where):
        file = write(tmp_path / name, [row(1), row(2, published="mostly better")])
        with pytest.raises(EftError) as e:
            harvested(file, out=tmp_path / "h")
        assert "unknown label 'mostly better'" in str(e.value) and f"{file}, {where}" in str(e.value)
        assert not list((tmp_path / "h").iterdir())

    def test_the_metrics_have_the_word_and_the_difference_is_told(self, tmp_path, capsys):
        failed = json.dumps({"error": "boom"})
        rows, counts, told = harvested(parquet(tmp_path / "x.parquet", [
            row(1), row(2, published="regressed"), row(3, parent_metrics=failed),
            row(4, child_metrics=json.dumps({"speed": 2.0})), row(5, child_metrics=None),
            row(6, improvement_label=None),
        ]), out=tmp_path / "h")  # fmt: skip
        assert [counts[f"labels_{k}"] for k in ("agree", "differ", "without_score", "absent")] == [1, 2, 2, 1]
        assert "regressed is improved x1" in told["notes"][1] and "improved is repair x1" in told["notes"][1]
        assert "warning: 2 published labels are not what combined_score says" in capsys.readouterr().err
        again = labelled(tmp_path / "h", tmp_path / "l")
        assert [r.label for r in again] == ["improved", "improved", "repair", "breakage", "", "improved"]
        assert "published label: regressed" in json.loads(again[1].sources), "kept, whatever the metrics say"

    def test_a_task_without_combined_score_is_averaged_beside_tasks_that_have_it(self, tmp_path):
        plain = {"task": "plain", "parent_metrics": '{"speed": 1.0}', "child_metrics": '{"speed": 2.0}'}
        harvested(jsonl(tmp_path / "x.jsonl", [row(1), row(2, **plain)]), out=tmp_path / "h")
        assert [(r.label, r.score_kind) for r in labelled(tmp_path / "h", tmp_path / "l")] == [
            ("improved", "combined_score"), ("improved", "averaged")]  # fmt: skip

    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(data=st.data())
    def test_round_trip(self, tmp_path_factory, data):
        """Whatever is written in the schema comes out of harvest and label with the label that was published."""
        scores = st.floats(-1e6, 1e6) | st.integers(-3, 3)
        metrics = st.dictionaries(st.sampled_from(["speed", "eval_time"]), st.floats(allow_infinity=True), max_size=2)
        texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
        rows, meant = [], {}
        for number in range(data.draw(st.integers(1, 6))):
            before, after = data.draw(scores), data.draw(scores)
            name = meaning(before, after)
            ways = [name, f" {name.upper()} ", name.replace("_", " "), name.replace("_", "-")]
            spelled = data.draw(st.sampled_from(ways))
            rows.append(row(number, published=spelled, task=f"t{number % 2}", reasoning=data.draw(texts | st.none()),
                            response=data.draw(texts), parent_code=data.draw(texts), metadata=data.draw(texts),
                            parent_metrics=json.dumps({**data.draw(metrics), "combined_score": before}),
                            child_metrics=json.dumps({**data.draw(metrics), "combined_score": after})))  # fmt: skip
            meant[f"c{number}"] = name
        place = tmp_path_factory.mktemp("trip")
        cut = data.draw(st.integers(0, len(rows)))
        write, end = data.draw(st.sampled_from([(parquet, "parquet"), (jsonl, "jsonl")]))
        for part, some in enumerate((rows[:cut], rows[cut:])):
            if some:
                write(place / "data" / f"train-{part}.{end}", some)
        got, counts, _ = harvested(place, out=place / "h")
        assert counts["labels_agree"] == len(rows) and counts["labels_differ"] == 0
        assert [(r.parent_code, r.response, r.reasoning) for r in got] == [
            (r["parent_code"], r["response"], r["reasoning"] or "") for r in rows]  # fmt: skip
        assert {r.child_id: r.label for r in labelled(place / "h", place / "l")} == meant


class TestBadInput:
    def test_missing_columns_are_named(self, tmp_path):
        lacking = [{k: v for k, v in row(1).items() if k not in ("child_code", "improvement_label")}]
        for file in (parquet(tmp_path / "x.parquet", lacking), jsonl(tmp_path / "x.jsonl", lacking)):
            with pytest.raises(EftError, match="columns of the Finch-Collection: improvement_label, child_code"):
                harvested(file, out=tmp_path / "h")
        foreign = parquet(tmp_path / "y.parquet", [{"a": 1}])
        with pytest.raises(EftError, match=r"y\.parquet: missing columns of the Finch-Collection: task"):
            harvested(foreign, out=tmp_path / "h")

    def test_columns_that_one_can_do_without(self, tmp_path):
        few = [{k: row(1)[k] for k in finch.REQUIRED}]
        file = parquet(tmp_path / "x.parquet", few)
        rows, _, told = harvested(file, out=tmp_path / "h", domain="maths", role="train")
        assert (rows[0].domain, rows[0].suite_role, rows[0].island, rows[0].reasoning) == ("maths", "train", -1, "")
        assert any("columns that are missing" in n and "reasoning" in n for n in told["notes"])

    def test_torn_and_empty_files_are_counted_and_named(self, tmp_path, capsys):
        data = tmp_path / "c" / "data"
        parquet(data / "a.parquet", [row(1)])
        torn = parquet(data / "b.parquet", [row(2)])
        torn.write_bytes(torn.read_bytes()[:-20])
        (data / "d.parquet").write_bytes(b"")
        pq.write_table(pq.read_table(data / "a.parquet").slice(0, 0), data / "e.parquet")
        rows, counts, told = harvested(tmp_path / "c", out=tmp_path / "h")
        assert len(rows) == 1 and counts["bad_files"] == 3
        assert [(Path(f).name, w.split(":")[0]) for f, w in told["bad_files"]] == [
            ("b.parquet", "not Parquet, or cut off"), ("d.parquet", "the file is empty"),
            ("e.parquet", "no row in it")]  # fmt: skip
        assert "b.parquet: not Parquet" in capsys.readouterr().err
        for lonely in (torn, data / "d.parquet"):
            with pytest.raises(EftError, match="not Parquet, or cut off|it is empty"):
                harvested(lonely, out=tmp_path / "x")
        for shard in data.iterdir():
            shard.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n")
        with pytest.raises(EftError, match=r"a\.parquet: a Git LFS pointer"):
            harvested(tmp_path / "c", out=tmp_path / "x")

    def test_damage_in_the_middle_costs_a_row_group(self, tmp_path):
        file = parquet(tmp_path / "x.parquet", [row(n) for n in range(1, 13)], row_group_size=4, compression="zstd")
        raw = bytearray(file.read_bytes())
        middle = pq.read_metadata(file).row_group(1).column(0)
        start = middle.dictionary_page_offset or middle.data_page_offset
        raw[start : start + 400] = b"\xff" * 400
        file.write_bytes(raw)
        rows, _, told = harvested(file, out=tmp_path / "h")
        assert [json.loads(r.sources)[0] for r in rows] == [f"x.parquet, row {n}" for n in (1, 2, 3, 4, 9, 10, 11, 12)]
        assert told["bad_files"][0][0] == f"{file}, rows 5 to 8" and len(told["bad_files"]) == 1

    def test_lines_that_are_cut_off_or_lack_something(self, tmp_path):
        short = {k: v for k, v in row(2).items() if k != "response"}
        file = jsonl(tmp_path / "x.jsonl", [row(1), short, row(3)], tail='{"task": "circ')
        rows, counts, told = harvested(file, out=tmp_path / "h")
        assert [r.child_id for r in rows] == ["c1", "c3"] and counts["bad_files"] == 2
        assert told["bad_files"][0] == [f"{file}, line 2", "missing: response"]
        assert told["bad_files"][1][0] == f"{file}, line 4" and told["bad_files"][1][1].startswith("cut off")
        assert json.loads(rows[1].sources)[0] == "x.jsonl, line 3"

    def test_metrics_that_are_no_numbers_or_no_json(self, tmp_path):
        rows, counts, told = harvested(parquet(tmp_path / "x.parquet", [
            row(1, child_metrics='{"combined_score": NaN}'), row(2, child_metrics='{"combined_score": 1.'),
            row(3, child_metrics="NaN"), row(4, parent_metrics='{"combined_score": -Infinity}'),
        ]), out=tmp_path / "h")  # fmt: skip
        assert [r.child_metrics for r in rows[:3]] == ['{"combined_score":"NaN"}', "", ""]
        where, why = told["bad_files"][0]
        assert counts["bad_files"] == 2 and "row 2" in where and "child_metrics is no JSON object" in why
        assert [r.label for r in labelled(tmp_path / "h", tmp_path / "l")] == ["breakage", "", "", "repair"]

    def test_rows_without_code(self, tmp_path):
        nothing = {"parent_code": None, "child_code": None, "response": None}
        rows, counts, _ = harvested(parquet(tmp_path / "x.parquet", [
            row(1, parent_code=None), row(2, child_code=None), row(3, **nothing, user_prompt=None),
        ]), out=tmp_path / "h")  # fmt: skip
        assert [(r.parent_code, r.child_code, r.replay) for r in rows] == [
            (code(0), code(1), "match"), (code(0), code(2), "unknown")]  # fmt: skip
        assert (counts["parent_recovered"], counts["child_recovered"], counts["bad_files"]) == (1, 1, 1)

    def test_nothing_of_use(self, tmp_path):
        file = parquet(tmp_path / "x.parquet", [row(3, parent_code=None, child_code=None, response="", user_prompt="")])
        with pytest.raises(EftError, match="no transition was found(.|\n)*x: 1 rows, 1 files could not be read"):
            harvested(file, out=tmp_path / "h")


def test_rows_stream(tmp_path):
    """A collection of 24 MB is read with a small part of it in memory, and the first row is there before the last."""
    filler = "# " + "x" * 60_000
    many = [row(n, reasoning=f"{n}{filler}") for n in range(1, 401)]
    many[-1]["improvement_label"] = "unheard of"
    file = parquet(tmp_path / "x.parquet", many, row_group_size=40, use_dictionary=False, compression="none")
    total = sum(len(r["reasoning"]) for r in many)
    del many
    stream = finch.rows(finch.search_of(file), [file], Options())
    next(stream)
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        arrow, number = 0, 1
        with pytest.raises(EftError, match="row 400"):
            for _ in stream:
                number, arrow = number + 1, max(arrow, pa.total_allocated_bytes() - before)
        assert number == 399 and tracemalloc.get_traced_memory()[1] < total / 3 and arrow < total / 3
    finally:
        tracemalloc.stop()


class TestHub:
    @pytest.mark.parametrize("name", ["hub:org/finch", "hub:org/finch@main", "hub:org/finch@"])
    def test_a_revision_must_be_pinned(self, tmp_path, name):
        with pytest.raises(UsageError, match="no revision is pinned|no data set on the hub"):
            harvest.Config(runs=[Path(name)], output=tmp_path / "h")

    def test_offline(self, eft, tmp_path):
        done = eft("harvest", f"hub:org/finch@{COMMIT}", "-o", tmp_path / "h", env={"HF_HOME": str(tmp_path / "hf")})
        assert done.returncode == 1 and "Traceback" not in done.stderr and not (tmp_path / "h").exists()
        assert "the data set cannot be downloaded" in done.stderr and "HF_HUB_OFFLINE" in done.stderr

    @pytest.mark.integration
    def test_a_download(self, eft, tmp_path):
        """From a hub of one data set on the loopback device, through the real client; then again without it."""
        path = "data/train-00000-of-00001.parquet"
        content = parquet(tmp_path / "x.parquet", [row(1), row(2)]).read_bytes()
        card = {"type": "file", "path": "README.md", "size": 3, "oid": "b" * 40}
        tree = json.dumps([card, {"type": "file", "path": path, "size": len(content), "oid": "a" * 40}]).encode()

        class Hub(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                known = {f"/api/datasets/org/finch/tree/{COMMIT}": tree,
                         f"/datasets/org/finch/resolve/{COMMIT}/{path}": content}  # fmt: skip
                body = known.get(self.path.split("?")[0])
                self.send_response(404 if body is None else 200)
                self.send_header("Content-Length", str(len(body or b"")))
                self.send_header("ETag", f'"{"a" * 40}"')
                self.send_header("X-Repo-Commit", COMMIT)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body or b"")

            do_HEAD = do_GET

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        env = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HOME": str(tmp_path / "hf"),
               "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "*", "no_proxy": "*"}
        try:
            done = eft("harvest", f"hub:org/finch@{COMMIT}", "-o", tmp_path / "h", env=env)
        finally:
            server.shutdown()
            server.server_close()
        assert done.returncode == 0, done.stderr
        rows = list(read_transitions(tmp_path / "h"))
        assert {r.run for r in rows} == {f"org/finch@{COMMIT}"} and len(rows) == 2
        assert json.loads(rows[0].sources)[0] == f"hub:org/finch@{COMMIT}/{path}, row 1"
        again = eft("harvest", f"hub:org/finch@{COMMIT}", "-o", tmp_path / "h", env={"HF_HOME": str(tmp_path / "hf")})
        assert again.returncode == 0 and "up to date" in again.stderr
