"""`eft evaluate --dry-run`: the size of an evaluation, and what is missing for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from eft import config as configs
from eft.errors import UsageError
from eft.evaluate import run as evaluate

CONFIG = {
    "suite": "embedded", "seeds": 3, "iterations": 7, "scaffold": ["openevolve", "tournament"],
    "baseline": "base",
    "mutators": {"base": {"model": "random:qwen3"}, "sft": {"model": "sft/final"}, "ast": {"kind": "ast"},
                 "best": {"kind": "best_of_n", "of": "base"}},
}  # fmt: skip


def foresee(root: Path, **changes: object) -> tuple[str, dict]:
    file = root / "evaluate.yaml"
    file.write_text(yaml.safe_dump({**CONFIG, "root": str(root), "output": "out", **changes}))
    return evaluate.dry_run(configs.load(evaluate.Config, file))


def embedded(count: int) -> list[str]:
    from eft.tasks.suite import load_suite

    return list(load_suite("embedded").heldout)[:count]


def test_it_counts_searches_and_tells_what_is_missing(tmp_path: Path) -> None:
    text, told = foresee(tmp_path, tasks=embedded(2), loops={"programs": {}, "routing": {"table": "nowhere.csv"}})
    # three mutators on two scaffolds, best-of-N by itself; two tasks, three seeds
    assert told["searches"] == (3 * 2 + 1) * 2 * 3 and told["proposals"] == told["searches"] * 7
    assert [m.split(":")[0] for m in told["missing"]] == ["mutator 'sft'", "loop 'routing'"]
    assert "nowhere.csv" in text and "run 'eft sft' first" in text and all(line.startswith("# ") for line in text.splitlines())
    assert not (tmp_path / "out").exists(), "a dry run leaves nothing"


def test_a_loop_with_its_table_is_counted(tmp_path: Path) -> None:
    loops = {"routing": {"table": "shipped:mutators", "splits": 2, "iterations": 5}}
    _, told = foresee(tmp_path, mutators={"ast": {"kind": "ast"}}, loops=loops, baseline="ast", scaffold=["tournament"], tasks=[])
    assert told["loops"] == {"routing": {"tasks": 2, "searches": 6, "iterations": 5}} and told["missing"] == []


def test_contenders_that_do_not_fit_are_refused_as_by_the_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no served mutator"):
        foresee(tmp_path, mutators={"best": {"kind": "best_of_n", "of": "nobody"}})


def test_the_command_prints_it(eft, tmp_path: Path) -> None:
    foresee(tmp_path, tasks=embedded(1))
    done = eft("evaluate", "--config", str(tmp_path / "evaluate.yaml"), "--dry-run", "--json")
    assert json.loads(done.stdout.splitlines()[-1])["plan"]["searches"] == 21
