"""Searches on a real Ray cluster: a local one, of this machine. Skipped, and said so, where Ray is not installed."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest
from toy import Clumsy

from eft.errors import EftError, UsageError
from eft.mutators.gateway import Gateway, running
from eft.search import executor

pytestmark = pytest.mark.integration


def test_searches_of_a_cluster_end_like_local_ones(spec, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: searches on a cluster were NOT tested")
    names = {"openevolve": "clumsy", "tournament": "clumsy", "best_of_n": "nobody"}
    specs = [spec(f"{s}-{where}", scaffold=s, mutator=m, iterations=9) for where in ("here", "there")
             for s, m in names.items()]  # fmt: skip
    with running(Gateway(tmp_path / "journal", {"clumsy": lambda search: Clumsy()})) as gateway:
        ready = [s.replace(base_url=f"{gateway.origin}/s/{s.name}/{s.mutator}/v1",
                           journal=str(tmp_path / "journal" / f"{s.name}.jsonl")) for s in specs]  # fmt: skip
        here = executor.run_all(ready[:3], workers=2, quiet=True)
        there = executor.run_all(ready[3:], workers=2, quiet=True, executor="ray")
        again = executor.run_all(ready[3:5], workers=2, quiet=True, executor="ray")
    assert [o.status for o in here] == [o.status for o in there] == ["done", "done", "failed"]
    for a, b in zip(here[:2], there[:2], strict=True):
        assert a.result.best_curve == b.result.best_curve and a.result.failures == b.result.failures
    assert "404" in there[2].error and "Traceback" not in there[2].error  # its mutator is not there; others go on
    assert [o.status for o in again] == ["skipped"] * 2


def test_without_ray_it_is_said_how_to_get_it(spec, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(EftError, match="Ray is not installed") as e:
        executor.run_all([spec()], quiet=True, executor="ray")
    assert "evolution-finetuning[ray]" in e.value.way_out
    with pytest.raises(UsageError, match="no executor 'slurm'"):
        executor.run_all([spec()], quiet=True, executor="slurm")


@pytest.mark.slow
def test_a_cancelled_search_ends_on_the_cluster_too(spec, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: searches on a cluster were NOT tested")
    import threading

    released = threading.Event()

    class Stuck(Clumsy):
        def propose(self, messages, call):
            released.wait(120)
            return super().propose(messages, call)

    one = spec("stuck", scaffold="tournament", mutator="stuck")
    with running(Gateway(tmp_path / "journal", {"stuck": lambda s: Stuck()})) as gateway:
        ready = one.replace(base_url=gateway.url("stuck", "stuck"))
        (outcome,) = executor.run_all([ready], quiet=True, timeout_s=6.0, executor="ray")
        released.set()
    assert outcome.status == "failed" and "not finished after 6 s" in outcome.error
    with contextlib.suppress(FileNotFoundError):
        assert not (one.folder / "result.json").exists()
