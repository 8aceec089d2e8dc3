"""Near duplicates and the shards they are found in."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import labelled, output_of

from data_tools import clean, facts, lexing, near, shards
from eft import manifest
from eft.errors import EftError
from eft.records import read_transitions


def jaccard(a, b):
    a, b = set(a), set(b)
    return len(a & b) / len(a | b)


def programs(number: int, edit: str = "y"):
    """A parent of its own and a child with a ten-line change."""
    parent = f"# run {number}\nstart = {number}\n" + "\n".join(f"line_{i} = {i}" for i in range(40))
    child = parent + "\n" + "\n".join(f"{edit}_{i} = {edit}f({edit}alpha_{i}, {edit}beta_{i}, {i})" for i in range(10))
    return {"parent_code": parent, "child_code": child}


def test_near_copies_of_one_task_and_label_go(tmp_path, capsys):
    slightly = programs(2)
    slightly["child_code"] = slightly["child_code"].replace("beta_3, 3)", "beta_3, 33)")
    rows = [labelled(1, **programs(1)), labelled(2, **slightly), labelled(3, **programs(3, "z")),
            labelled(4, task="u", **programs(4)), labelled(5, "regressed", **programs(5))]  # fmt: skip
    source = output_of("label", tmp_path / "l", rows)
    out = clean.run(clean.Config(source=source, output=tmp_path / "c", near_duplicates=0.7))
    assert [r.child_id for r in read_transitions(out)] == ["c1", "c3", "c4", "c5"]
    report = json.loads((out / clean.NEAR).read_text())
    assert [(r["id"], r["of"]) for r in report] == [(rows[1].id, rows[0].id)] and 0.7 <= report[0]["similarity"] < 1
    assert "near duplicates at 0.7: 1 lost, 4 rows survive" in capsys.readouterr().err
    kept = clean.run(clean.Config(source=source, output=tmp_path / "c2"))
    assert len(list(read_transitions(kept))) == 5


@given(st.integers(0, 40), st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_signatures_estimate_the_jaccard_similarity(changed, seed):
    a = [f"+w{i}" for i in range(60)]
    b = [f"+v{seed}{i}" if i < changed else w for i, w in enumerate(a)]
    from rensa import RMinHash

    x, y = (np.asarray(d, np.uint32) for d in RMinHash.digests_from_token_sets([a, b], 256, facts.SEED))
    assert abs((x == y).mean() - jaccard(a, b)) < 0.16  # five standard errors of 256 draws


def brute(signatures, groups, alive, threshold):
    kept, found = [], []
    for i, ok in enumerate(alive):
        like = [(j, (signatures[i] == signatures[j]).mean()) for j in kept if groups[i] == groups[j]] if ok else []
        best = max(like, key=lambda p: p[1], default=(-1, 0.0))
        found.append(best[1] >= threshold)
        if ok and best[1] < threshold:
            kept.append(i)
    return found


@given(st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_bands_find_what_comparing_all_finds(seed):
    rng = np.random.default_rng(seed)
    bases = rng.integers(0, 2**32, (5, 64), np.uint32)
    rows = bases[rng.integers(0, 5, 60)]
    noise = rng.random(rows.shape) < rng.choice([0.0, 0.05, 0.5], (60, 1))
    signatures = np.where(noise, rng.integers(0, 2**32, rows.shape, np.uint32), rows)
    groups, alive = rng.integers(0, 2, 60).tolist(), (rng.random(60) < 0.9).tolist()
    found = near.duplicates(signatures, groups, alive, 0.8)
    assert [j >= 0 for j in found] == brute(signatures, groups, alive, 0.8)
    assert all(j < i and groups[i] == groups[j] and alive[j] and found[j] < 0 for i, j in enumerate(found) if j >= 0)


@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.8, 0.9, 0.95, 1.0])
def test_bands_are_fine_enough(threshold):
    width = near.bands(threshold, 64)
    assert 1 - (1 - threshold**width) ** (64 // width) >= 0.98


def test_an_edit_is_its_changed_lines():
    assert lexing.edit_words("a = 1\nb = 2", "a = 1\n  b  =  2  # same") == []
    assert lexing.edit_words("x = 1", "x = 2") == ["-x = 1", "+x = 2"]


class TestShards:
    ROWS = [labelled(i, **programs(i, f"e{i}")) for i in range(1, 60)]

    def source(self, folder):
        """A table of several row groups."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        source = output_of("label", folder, self.ROWS)
        table = pq.read_table(source / "transitions.parquet")
        pq.write_table(pa.concat_tables([table]), source / "transitions.parquet", row_group_size=7)
        return source

    def result(self, source, out, **options):
        clean.run(clean.Config(source=source, output=out, near_duplicates=0.5, max_rows_per_task=40, **options))
        return [r.id for r in read_transitions(out)], (out / clean.NEAR).read_text()

    @pytest.mark.integration
    def test_the_same_rows_for_any_number_of_workers(self, tmp_path):
        source = self.source(tmp_path / "l")
        one = self.result(source, tmp_path / "1", workers=1)
        assert self.result(source, tmp_path / "2", workers=2) == one and len(one[0]) == 40

    @pytest.mark.integration
    def test_the_same_rows_through_ray(self, tmp_path):
        ray = pytest.importorskip("ray")
        source = self.source(tmp_path / "l")
        try:
            through = self.result(source, tmp_path / "r", executor="ray")
        finally:
            ray.shutdown()
        assert through == self.result(source, tmp_path / "1", workers=1)

    def test_facts_are_found_once(self, tmp_path):
        source = self.source(tmp_path / "l")
        options = {"source": source, "output": tmp_path / "c", "tokenizer": "random:qwen3"}

        def anew(**more):
            return manifest.read(clean.run(clean.Config(**options, **more)))["counts"]["found_anew"]

        assert anew() == ["facts", "tokens:random:qwen3", "leaks"]
        assert anew(max_tokens=100, drop_timeouts=False) == []
        assert anew(near_duplicates=0.9) == ["near"]
        assert anew(near_duplicates=0.8) == []
        assert anew(suite="embedded") == ["leaks"]
        assert anew(also_count=["random:llama"]) == ["tokens:random:llama", "leaks"]
        output_of("label", source, self.ROWS[:30])
        assert "facts" in anew()

    def test_a_worker_that_is_killed_is_one_message(self, tmp_path):
        parts = shards.units(self.source(tmp_path / "l"))
        with pytest.raises(EftError, match="a worker process died"):
            list(shards.mapped(_kill, parts, shards.Workers(workers=2)))


def _kill(unit):
    import os
    import signal

    os.kill(os.getpid(), signal.SIGKILL)
