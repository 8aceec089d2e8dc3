"""The same mutator against itself: the comparison may see a difference in at most its α of the runs."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from click.testing import CliRunner
from made_up_results import MAX

from eft import cli, manifest
from eft.errors import EftError, UsageError
from eft.evaluate import aa
from eft.evaluate.results import MutatorInfo, Results, Search, to_json


def pool(tasks: int = 8, seeds: int = 20, odd: bool = False) -> Results:
    """Recorded searches of one mutator: skewed, of unequal spread, many without any find. `odd`: a huge value now and
    then."""
    rng = np.random.default_rng(4)
    infos = tuple(dataclasses.replace(MAX, name=f"t{k}") for k in range(tasks))
    searches = []
    for k, t in enumerate(infos):
        for seed in range(seeds):
            gap = 0.0 if rng.random() < 0.3 else float(rng.exponential(0.3 / (1 + k)))
            gap += 50.0 if odd and rng.random() < 0.1 else 0.0
            searches.append(Search("ast", t.name, seed, best_raw=0.2 + 0.5 * gap, curve=(0.2, 0.2 + 0.5 * gap),
                                   iterations=1, proposals=1, outcomes={"improved": 1}))  # fmt: skip
    return Results(infos, (MutatorInfo("ast", "ast", "control"),), tuple(searches), len(searches), tuple(range(seeds)))


def attempt(tmp_path, r: Results, **options):
    manifest.write_json(tmp_path / "results.json", to_json(r))
    config = aa.Config(results=tmp_path, output=tmp_path / "aa.json", draws=100, **options)
    return aa.run(config), json.loads((tmp_path / "aa.json").read_text())


@pytest.mark.parametrize(
    ("options", "odd"), [({}, False), ({}, True), ({"seeds": 2}, True), ({"comparisons": 2}, False)]
)
def test_it_rejects_at_its_alpha_and_not_more(tmp_path, options, odd):
    counts, written = attempt(tmp_path, pool(odd=odd), runs=200, **options)
    assert counts["runs"] == 200 and counts["verdict"] <= 18  # 5 % of 200 and two and a half standard errors
    for row in written["claims"]:
        if options.get("comparisons", 1) == 1 or row["claim"] not in ("these", "such"):
            assert row["rejected"] <= 20 and not row["too_often"], row


def test_the_same_options_deal_the_same_seeds(tmp_path):
    assert attempt(tmp_path, pool(), runs=5)[1] == attempt(tmp_path, pool(), runs=5)[1]


def test_a_comparison_that_sees_ghosts_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(aa, "strength", lambda p: "better")
    with pytest.raises(EftError, match="more often than its α"):
        attempt(tmp_path, pool(), runs=20)


def test_too_few_seeds_are_refused_with_the_way_out(tmp_path):
    with pytest.raises(UsageError, match="more than 'ast' has") as e:
        attempt(tmp_path, pool(seeds=3), runs=5)
    assert "--seeds 4" in str(e.value)
    with pytest.raises(UsageError, match="no finished search of 'asd'"):
        attempt(tmp_path, pool(), mutator="asd")
    with pytest.raises(UsageError):
        attempt(tmp_path, dataclasses.replace(pool(), searches=()), runs=5)


def test_one_task_and_equal_searches_are_no_difference(tmp_path):
    r = pool(tasks=1)
    same = tuple(dataclasses.replace(s, best_raw=0.4) for s in r.searches)
    counts, written = attempt(tmp_path, dataclasses.replace(r, searches=same), runs=20)
    assert counts["verdict"] == 0 and {row["claim"] for row in written["claims"]} == {"verdict", "these"}


def test_the_command(tmp_path):
    manifest.write_json(tmp_path / "results.json", to_json(pool()))
    done = CliRunner().invoke(
        cli.cli, ["aa", str(tmp_path), "-o", str(tmp_path / "x.json"), "--runs", "10", "--draws", "100", "--json"]
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["seeds"] == 5
