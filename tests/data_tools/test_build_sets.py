"""Build: nothing leaks over the split, held-out tasks are refused, KTO rows come in an order that it can use."""

from __future__ import annotations

import json
from collections import Counter

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_runs import code, diff
from tables import labelled, output_of

from data_tools import build, choose, clean, harvest, label, pairing, sets, split
from data_tools.build import Config
from eft import edits, manifest
from eft.errors import EftError, UsageError
from eft.records import code_hash, read_transitions


def many(tasks: dict[str, tuple[int, int]], **changes) -> list:
    """{task: (improved, regressed)} as rows; each has a parent of its own, and the tasks share none."""
    rows = []
    for task, (good, bad) in tasks.items():
        for i in range(good + bad):
            name = "improved" if i < good else "regressed"
            own = {"parent_code": f"{task} = 1\n{code(i)}", "child_code": f"{task} = 1\n{code(1000 + i)}"}
            rows.append(labelled(1000 + i, name, parent=i, task=task, run=task, **{**own, **changes}))
    return rows


def run(rows, folder, **options):
    source = output_of("clean", folder / "c", rows) if isinstance(rows, list) else rows
    out = build.run(Config(source=source, output=folder / "b", **options))
    found = {
        p.relative_to(out).with_suffix("").as_posix(): pq.read_table(p).to_pylist()
        for p in sorted(out.rglob("*.parquet"))
    }
    return found, manifest.read(out)["counts"]


def test_the_real_run_end_to_end(real_runs, tmp_path, capsys):
    source = harvest.run(harvest.Config(runs=[real_runs / "circle_packing_v0_1"], output=tmp_path / "h"))
    source = label.run(label.Config(source=source, output=tmp_path / "l"))
    source = clean.run(clean.Config(source=source, output=tmp_path / "cl"))
    found, counts = run(source, tmp_path, validation=0.1)
    assert len(found["sft/train"]) + len(found["sft/validation"]) == 30
    assert 0 < len(found["sft/validation"]) < 10 and counts["left_out"] == {"repair": 1}
    assert "only one task (circle_packing_v0_1)" in capsys.readouterr().err
    row = found["sft/train"][0]
    assert [m["role"] for m in row["prompt"]] == ["system", "user"] and row["completion"][0]["role"] == "assistant"
    assert row["label"] == "improved" and row["delta"] > 0 and "```python" in row["completion"][0]["content"]
    kto = found["kto/train"]
    assert {r["label"] for r in kto} == {True, False} and all((r["delta"] > 0) is r["label"] for r in kto)
    # the two sides share no parent
    code_of = {r.id: code_hash(r.parent_code) for r in read_transitions(source)}
    assert not {code_of[r["id"]] for r in kto} & {
        code_of[r["id"]] for r in found["kto/validation"] + found["sft/validation"]
    }


class TestSplit:
    TASKS = {f"t{i}": (3 + i % 3, 4) for i in range(10)}

    def test_by_task_the_same_for_both_sets(self, tmp_path):
        found, counts = run(many(self.TASKS), tmp_path, validation=0.2)
        tasks = {name: {r["task"] for r in rows} for name, rows in found.items()}
        assert len(tasks["sft/validation"]) == 2 == counts["validation_tasks"]
        assert tasks["kto/validation"] == tasks["sft/validation"]
        assert not (tasks["sft/train"] | tasks["kto/train"]) & tasks["sft/validation"]
        assert len(found["sft/train"]) + len(found["sft/validation"]) == sum(g for g, _ in self.TASKS.values())

    def test_it_is_the_seeds_alone(self, tmp_path):
        rows = many(self.TASKS)
        first, _ = run(rows, tmp_path / "1", seed=3)
        again, _ = run(rows[::-1], tmp_path / "2", seed=3)
        other, _ = run(rows, tmp_path / "3", seed=4)
        assert first == again and first != other

    def test_at_least_one_task_validates_and_one_trains(self, tmp_path):
        found, _ = run(many({"a": (2, 2), "b": (2, 2)}), tmp_path, validation=0.9)
        assert len({r["task"] for r in found["sft/validation"]}) == len({r["task"] for r in found["sft/train"]}) == 1

    def test_of_few_tasks_the_smallest_validates(self, tmp_path):
        found, _ = run(many({"large": (30, 30), "small": (3, 9), "middle": (10, 10)}), tmp_path, validation=0.1)
        assert {r["task"] for r in found["sft/validation"]} == {"small"}

    def test_only_tasks_with_improved_rows_validate(self, tmp_path):
        rows = many({"a": (2, 2), "b": (2, 2), **{f"c{i}": (0, 3) for i in range(8)}})
        for seed in range(8):
            found, _ = run(rows, tmp_path, validation=0.3, seed=seed)
            assert found["sft/train"] and found["sft/validation"]

    def test_none_on_request(self, tmp_path):
        found, _ = run(many(self.TASKS), tmp_path, validation=0)
        assert found["sft/validation"] == [] and len(found["sft/train"]) == 39

    def test_a_single_parent_cannot_be_split(self, tmp_path, capsys):
        rows = [labelled(i, "improved" if i % 2 else "regressed") for i in range(1, 9)]
        found, _ = run(rows, tmp_path)
        assert found["sft/validation"] == [] and len(found["sft/train"]) == 4
        assert "there are no validation rows" in capsys.readouterr().err

    def test_one_task_under_two_names_is_not_parted(self, tmp_path, capsys):
        rows = many({"a": (3, 3), "b": (3, 3), "c": (3, 3)})
        rows += [r.replace(task="a_again", id="x" + r.id[1:]) for r in rows if r.task == "a"][:1]
        for seed in range(6):
            found, _ = run(rows, tmp_path, validation=0.3, seed=seed)
            sides = [{r["task"] for r in found[name]} for name in ("sft/train", "sft/validation")]
            assert not any({"a", "a_again"} & side and not {"a", "a_again"} <= side for side in sides)
        assert "a, a_again share programs" in capsys.readouterr().err

    def test_rows_of_the_suites_validation_role_validate(self, tmp_path):
        rows = many({"a": (2, 2), "b": (2, 2)}) + many({"v": (2, 2)}, suite_role="validation")
        found, _ = run(rows, tmp_path, validation=0.5)
        assert {r["task"] for r in found["sft/validation"]} == {"v"} and {r["task"] for r in found["sft/train"]} == {
            "a",
            "b",
        }
        with pytest.raises(EftError, match="every improved row is of a validation task"):
            run(many({"v": (2, 2)}, suite_role="validation"), tmp_path)


class TestChoice:
    @pytest.mark.parametrize("role", ["heldout", "gate"])
    def test_refused_roles(self, tmp_path, role):
        with pytest.raises(EftError, match="must never be trained on"):
            run(many({"a": (2, 2)}) + [labelled(5, task="secret", suite_role=role, label="regressed")], tmp_path)
        assert not (tmp_path / "b").exists()

    def test_no_improved_row(self, tmp_path):
        with pytest.raises(EftError, match="no improved row to train on.*\n.*\n.*3 regressed"):
            run(many({"a": (0, 3)}), tmp_path)
        with pytest.raises(EftError, match="1 no_prompt"):
            run([labelled(1, prompt_user="")], tmp_path)

    def test_what_is_left_out(self, tmp_path):
        rows = many({"a": (3, 3), "b": (2, 3)})
        rows += [labelled(7, prompt_user=""), labelled(8, response=" \n"), labelled(9, score_kind="averaged"),
                 labelled(10, "no_change"), labelled(11, "repair")]  # fmt: skip
        _, counts = run(rows, tmp_path)
        assert counts["left_out"] == {"no_prompt": 1, "no_response": 1, "averaged": 1, "no_change": 1, "repair": 1}
        found, counts = run(rows, tmp_path, include_averaged=True, include_repair=True, validation=0)
        assert "averaged" not in counts["left_out"] and "repair" not in counts["left_out"]
        labels = Counter(r["label"] for r in found["sft/train"] + found["sft/validation"])
        assert labels == {"improved": 6, "repair": 1}
        assert (counts["kto_train_desirable"], counts["kto_train_trimmed"]) == (6, 0)  # a repair has no score to gain

    def test_caps_per_task_and_label(self, tmp_path):
        tasks = {"big": (50, 80), "small": (3, 2), "other": (5, 6)}
        found, _ = run(many(tasks), tmp_path, max_rows_per_task=10, validation=0)
        assert Counter(r["task"] for r in found["sft/train"]) == {"big": 10, "small": 3, "other": 5}
        labels = Counter((r["task"], r["label"]) for r in found["kto/train"])
        assert labels["big", True] == 10 and labels["big", False] == 10

    def test_a_cap_by_gain_keeps_the_largest_changes(self, tmp_path):
        rows = [labelled(i, delta=float(i), parent_score=1.0, child_score=1.0 + i) for i in range(1, 8)]
        found, _ = run(rows, tmp_path, max_rows_per_task=3, rank="gain", validation=0)
        assert {r["delta"] for r in found["sft/train"]} == {5.0, 6.0, 7.0}

    def test_long_prompts(self, tmp_path):
        rows = many({"a": (2, 2), "b": (2, 2)}) + [labelled(5, prompt_user="word " * 500, task="a", run="a")]
        source = output_of("label", tmp_path / "l", rows)
        with pytest.raises(UsageError, match="needs token counts"):
            run(clean.run(clean.Config(source=source, output=tmp_path / "cl")), tmp_path, max_prompt_tokens=700)
        cleaned = clean.run(clean.Config(source=source, output=tmp_path / "cl2", tokenizer="random:qwen3"))
        found, counts = run(cleaned, tmp_path, max_prompt_tokens=700)
        assert counts["left_out"] == {"prompt_too_long": 1}

    def test_no_regressed_row_means_no_kto_set(self, tmp_path, capsys):
        run(many({"a": (3, 3), "b": (3, 3)}), tmp_path)
        found, counts = run(many({"a": (3, 0), "b": (3, 0)}), tmp_path)
        assert set(found) == {"sft/train", "sft/validation"} and "kto_train" not in counts
        assert not (tmp_path / "b" / "kto").exists() and "no regressed rows" in capsys.readouterr().err

    def test_uncleaned_input_is_said(self, tmp_path, capsys):
        run(output_of("label", tmp_path / "l", many({"a": (2, 2), "b": (2, 2)})), tmp_path)
        assert "nothing has been cleaned" in capsys.readouterr().err


class TestCompletion:
    def test_as_logged(self):
        row = vars(labelled(1, response="<think>hm</think>\n" + diff(0, 1), reasoning="r"))
        assert sets.completion(row, "logged") == row["response"]

    def test_as_the_smallest_diff_where_a_diff_was_asked_for(self):
        row = vars(labelled(1, response="Long words.\n" + diff(0, 1)))
        reply = sets.completion(row, "diff")
        assert reply == "<<<<<<< SEARCH\nx = 0\n=======\nx = 1\n>>>>>>> REPLACE"
        assert edits.apply(row["parent_code"], reply, kind="diff").child == row["child_code"]
        assert sets.completion({**row, "edit_kind": "rewrite"}, "diff") == row["response"]
        assert sets.completion({**row, "child_code": row["parent_code"]}, "diff") == row["response"]

    def test_no_system_turn_where_there_was_none(self, tmp_path):
        found, _ = run(many({"a": (2, 2), "b": (2, 2)}, prompt_system=""), tmp_path)
        assert [m["role"] for m in found["sft/train"][0]["prompt"]] == ["user"]


class TestPairing:
    @given(st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1),
           st.integers(0, 5), st.integers(2, 5))  # fmt: skip
    @settings(max_examples=60, deadline=None)
    def test_order(self, tasks, seed, block):
        rows = many(tasks)
        good = [r for r in rows if r.label == "improved"]
        bad = [r for r in rows if r.label == "regressed"]
        if not good or not bad:
            return
        mixed = pairing.interleave(good, bad, seed, block)
        assert len(mixed) == len(rows) - len(rows) % block
        assert len({r.id for r in mixed}) == len(mixed) and {r.id for r in mixed} <= {r.id for r in rows}
        assert mixed == pairing.interleave(good[::-1], bad[::-1], seed, block)
        counts = Counter(r.label for r in mixed)
        if len(counts) == 2:  # evenly mixed: no run longer than the ratio asks for
            assert pairing.label_runs(mixed) <= -(-max(counts.values()) // min(counts.values())) + 1

    def test_neighbours_are_of_different_tasks_where_possible(self):
        rows = many({f"t{i}": (12, 15) for i in range(6)})
        mixed = pairing.interleave([r for r in rows if r.delta > 0], [r for r in rows if r.delta < 0], 0, 2)
        assert pairing.neighbours_of_one_task(mixed) == 0
        alone = many({"t": (5, 5)})
        mixed = pairing.interleave([r for r in alone if r.delta > 0], [r for r in alone if r.delta < 0], 0, 2)
        assert pairing.neighbours_of_one_task(mixed) == 9 and pairing.label_runs(mixed) == 1

    def test_half_of_one_task_is_still_kept_apart(self):
        rows = many({"big": (20, 20), **{f"t{i}": (4, 4) for i in range(6)}})
        mixed = pairing.interleave([r for r in rows if r.delta > 0], [r for r in rows if r.delta < 0], 1, 2)
        assert pairing.neighbours_of_one_task(mixed) <= 10  # of 87; by chance about 25

    @given(st.integers(1, 10**6), st.integers(1, 10**6))
    @settings(deadline=None)
    def test_weights_follow_the_papers_rule(self, good, bad):
        up, down = pairing.weights(good, bad)
        assert min(up, down) == 1.0 or min(up, down) >= 1.0
        assert 1 - 1e-3 <= up * good / (down * bad) <= 4 / 3 + 1e-3

    def test_weights(self, tmp_path):
        assert pairing.weights(100, 100) == pairing.weights(120, 100) == (1.0, 1.0)
        assert pairing.weights(30, 60) == (pytest.approx(7 / 3), 1.0)
        with pytest.raises(ValueError):
            pairing.weights(0, 5)
        found, counts = run(many({"a": (4, 16), "b": (4, 16), "c": (2, 2)}), tmp_path, validation=0)
        stored = json.loads((tmp_path / "b" / "kto" / "weights.json").read_text())
        good = sum(r["label"] for r in found["kto/train"])
        assert stored["desirable"] == good == 10 and stored["undesirable"] == len(found["kto/train"]) - good
        ratio = (
            stored["desirable_weight"] * stored["desirable"] / (stored["undesirable_weight"] * stored["undesirable"])
        )
        assert 1 <= ratio <= 4 / 3 and counts["desirable_weight"] == stored["desirable_weight"] > 1


def test_codes_come_back_whole(tmp_path):
    found, _ = run(many({"a": (2, 2), "b": (2, 2)}), tmp_path)
    for row in found["sft/train"]:
        assert code(0).split("x")[0] in row["prompt"][1]["content"]


@pytest.mark.integration
def test_the_commands_and_the_cache(eft, tmp_path, real_runs):
    from eft.records import TABLE

    steps = [
        ("harvest", real_runs / "function_min_v0_4", "h"),
        ("label", "h", "l"),
        ("clean", "l", "c"),
        ("build", "c", "b"),
    ]
    for skipped in (False, True):
        for verb, source, out in steps:
            done = eft(verb, source if verb == "harvest" else tmp_path / source, "-o", tmp_path / out, "--json")
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout.splitlines()[-1])["skipped"] is skipped
    assert (tmp_path / "c" / TABLE).is_file() and (tmp_path / "b" / "kto" / "weights.json").is_file()
    done = eft("build", tmp_path / "c", "-o", tmp_path / "b2", "--set", "validatoin=0.1")
    assert done.returncode == 2 and "did you mean 'validation'" in done.stderr


class TestMeasure:
    @given(st.dictionaries(st.text("abcdefg", min_size=1, max_size=3), st.integers(1, 50), min_size=1, max_size=8),
           st.integers(1, 120), st.sampled_from([0.0, 0.5, 1.0]))  # fmt: skip
    @settings(max_examples=150, deadline=None)
    def test_shares(self, sizes, limit, power):
        given_rows = choose.shares(sizes, limit, power)
        assert sum(given_rows.values()) == min(limit, sum(sizes.values()))
        assert all(0 <= given_rows[t] <= n for t, n in sizes.items())
        for a in sizes:  # a larger task never gives less, and one that is not used up gets its proportion
            for b in sizes:
                if sizes[a] >= sizes[b]:
                    assert given_rows[a] >= given_rows[b] - 1
                if power == 0 and given_rows[a] < sizes[a] and given_rows[b] < sizes[b]:
                    assert abs(given_rows[a] - given_rows[b]) <= 1

    def test_uniform_and_root(self, tmp_path):
        tasks = {"big": (64, 64), "small": (16, 16), "tiny": (4, 4)}
        found, _ = run(many(tasks), tmp_path, validation=0, max_rows=24, task_weights="uniform")
        assert Counter(r["task"] for r in found["sft/train"]) == {"big": 10, "small": 10, "tiny": 4}
        found, _ = run(many(tasks), tmp_path, validation=0, max_rows=28, task_weights="sqrt")
        assert Counter(r["task"] for r in found["sft/train"]) == {"big": 16, "small": 8, "tiny": 4}
        with pytest.raises(ValueError, match="task_weights needs max_rows"):
            Config(task_weights="sqrt")

    def test_nested_subsets(self, tmp_path):
        rows = [r.replace(domain=f"d{i % 3}") for i, t in enumerate(f"t{i}" for i in range(12))
                for r in many({t: (3, 3)})]  # fmt: skip
        found, counts = run(rows, tmp_path, validation=0.2, tasks=[3, 6, 9])
        names = {size: {r["task"] for r in found[f"tasks_{size}/sft/train"]} for size in (3, 6, 9)}
        assert names[3] < names[6] < names[9] and [len(n) for n in names.values()] == [3, 6, 9]
        assert {r["task"] for r in found["tasks_3/kto/train"]} == names[3]
        assert {rows[i * 6].domain for i in range(12) if f"t{i}" in names[3]} == {"d0", "d1", "d2"}
        assert found["tasks_3/sft/validation"] == found["sft/validation"] and counts["tasks_3"]["sft_train"] == 9
        with pytest.raises(UsageError, match="only 10 tasks train"):
            run(rows, tmp_path, validation=0.2, tasks=[11])

    def test_validation_has_every_domain_in_proportion(self, tmp_path):
        rows = [r.replace(domain="many" if i < 15 else "few") for i in range(20) for r in many({f"t{i}": (2, 2)})]
        for seed in range(4):
            found, _ = run(rows, tmp_path, validation=0.2, seed=seed)
            domains = Counter({r["task"]: r["domain"] for r in found["sft/validation"]}.values())
            assert domains == {"many": 3, "few": 1}

    def test_weights_by_gain(self, tmp_path):
        rows = [labelled(i, delta=float(i), parent_score=1.0, child_score=1.0 + i) for i in range(1, 8)]
        rows += many({"v": (2, 0)}, suite_role="validation")
        found, _ = run(rows, tmp_path, sft_weights="gain")
        weights = {r["delta"]: r["weight"] for r in found["sft/train"]}
        assert sum(weights.values()) / len(weights) == pytest.approx(1.0)
        assert weights[1.0] < weights[4.0] < weights[7.0] and weights[7.0] / weights[4.0] == pytest.approx(7 / 4)

    def test_a_split_that_takes_a_whole_class_away(self, tmp_path):
        rows = many({"a": (3, 0), "b": (3, 0)}) + many({"v": (2, 2)}, suite_role="validation")
        with pytest.raises(EftError, match="leaves no regressed row to train on"):
            run(rows, tmp_path)
        assert not (tmp_path / "b").exists()


class TestSets:
    @pytest.mark.parametrize("bucket", [1, 3000, 1 << 28])
    def test_any_order_from_any_memory(self, tmp_path, monkeypatch, bucket):
        monkeypatch.setattr(sets, "BUCKET", bucket)
        rows = many({f"t{i}": (5, 6) for i in range(6)})
        found, _ = run(rows, tmp_path / str(bucket))
        plain = {r.id: r for r in rows}
        for name in ("sft/train", "kto/train"):
            assert all(r["completion"][0]["content"] == plain[r["id"]].response for r in found[name])
        order = [r["id"] for r in found["sft/train"]]
        assert order == sorted(order, key=lambda i: split.rank(0, "sft", i)) and len(set(order)) == len(order)
        assert pairing.label_runs([plain[r["id"]] for r in found["kto/train"]]) <= 3
        assert not list((tmp_path / str(bucket) / "b").glob(".spill*"))

    def test_datasets_loads_it_by_its_card(self, tmp_path):
        import datasets

        found, _ = run(
            many({f"t{i}": (3, 3) for i in range(4)}), tmp_path, validation=0.25, tasks=[2], license="apache-2.0"
        )
        for config in ("sft", "kto", "tasks_2_sft"):
            loaded = datasets.load_dataset(str(tmp_path / "b"), config, cache_dir=str(tmp_path / "cache"))
            assert set(loaded) == {"train", "validation"}
            assert loaded["train"][0]["completion"][0]["role"] == "assistant"
        text = (tmp_path / "b" / "README.md").read_text()
        assert "license: apache-2.0" in text and "| openevolve | m |" in text and "plots/labels.png" in text

    def test_names_from_logs_do_not_break_the_card(self, tmp_path):
        run(many({"a": (2, 2), "b": (2, 2)}, model="evil | <script>\n# heading"), tmp_path)
        text = (tmp_path / "b" / "README.md").read_text()
        assert "<script>" not in text and "\n# heading" not in text

    def test_a_full_disk_leaves_nothing_half_written(self, tmp_path, monkeypatch):
        import errno

        def full(*_args, **_more):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(sets, "_in_order", full)
        with pytest.raises(EftError, match="the disk is full"):
            run(many({"a": (2, 2), "b": (2, 2)}), tmp_path)
        assert not list((tmp_path / "b").rglob("*.parquet")) and not (tmp_path / "b" / manifest.NAME).exists()
        assert not (tmp_path / "b" / ".spill").exists()


class TestTokenCounts:
    def test_counts_of_another_tokenizer_are_refused(self, tmp_path, monkeypatch):
        source = output_of("label", tmp_path / "l", many({"a": (2, 2), "b": (2, 2)}))
        cleaned = clean.run(clean.Config(source=source, output=tmp_path / "cl", tokenizer="random:qwen3"))
        run(cleaned, tmp_path, max_prompt_tokens=700, tokenizer="random:qwen3")
        with pytest.raises(EftError, match="no such tokenizer"):
            run(cleaned, tmp_path, max_prompt_tokens=700, tokenizer="/no/such")
        monkeypatch.setattr("eft.tokenizers.identity", lambda tokenizer: "changed")
        with pytest.raises(EftError, match="has changed since the counts were made"):
            run(cleaned, tmp_path, max_prompt_tokens=700, tokenizer="random:qwen3")


def test_sources_that_score_the_same_program_differently(tmp_path):
    rows = [labelled(i, run=run_name, child_score=i * scale, parent_score=scale, delta=(i - 1) * scale,
                     child_id=f"{run_name}{i}")
            for run_name, scale in (("first", 1.0), ("second", 100.0)) for i in range(2, 5)]  # fmt: skip
    source = output_of("label", tmp_path / "l", rows)
    with pytest.raises(EftError, match="two sources claim the task 't'.*\n.*\n.*in 'first'.*in 'second'"):
        clean.run(clean.Config(source=source, output=tmp_path / "c"))
    assert not (tmp_path / "c" / manifest.NAME).exists()
    clean.run(clean.Config(source=source, output=tmp_path / "c", allow_mixed_scores=True))
