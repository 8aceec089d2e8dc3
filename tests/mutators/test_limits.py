"""Several endpoints, rate, budgets, a disk that is full: what a gateway allows, and when it stops asking."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import ScriptedUpstream, completion, post

from eft.errors import EftError, UsageError
from eft.mutators import metrics, recorder
from eft.mutators.budget import Budget, Meter
from eft.mutators.gateway import Gateway, running
from eft.mutators.journal import Journal
from eft.mutators.upstream import Upstream
from eft.mutators.wire import Failure


@pytest.fixture
def second():
    with ScriptedUpstream() as scripted:
        yield scripted


def up(*servers, **options) -> Upstream:
    urls = tuple(s if isinstance(s, str) else s.url for s in servers)
    return Upstream(urls, "served", **{"backoff": 0.01, "retries": 3, "timeout": 5.0, **options})


# ------------------------------------------------------------------------------------------------- several endpoints


def test_a_search_keeps_to_one_endpoint_and_many_spread_over_all(tmp_path: Path, upstream, second, ask) -> None:
    with running(Gateway(tmp_path, {"m": up(upstream, second)})) as g:
        for k in range(5):
            ask(g.url("one", "m"), f"{k}")
        alone = {len(upstream.bodies), len(second.bodies)}
        for k in range(16):
            ask(g.url(f"s{k}", "m"))
    assert alone == {0, 5}, "its prompts share their heads, which one server has cached"
    assert min(len(upstream.bodies), len(second.bodies)) >= 3


def test_an_endpoint_that_is_down_is_left_out(tmp_path: Path, upstream, second, ask) -> None:
    upstream.script = lambda k, body: (503, {"error": {"message": "restarting"}})
    with running(Gateway(tmp_path, {"m": up(upstream, second, "http://127.0.0.1:9/v1", backoff=30.0)})) as g:
        started = time.monotonic()
        answers = [ask(g.url(f"s{k}", "m"))[0] for k in range(20)]
        seconds = time.monotonic() - started
        retries = g.stats()["retries"]["m"]
    assert answers == [200] * 20 and len(second.bodies) == 20
    assert seconds < 15.0, "the next endpoint is asked at once, without waiting for the one that is down"
    assert retries == len(upstream.bodies) + 1 <= 3


def test_a_busy_endpoint_sends_its_searches_elsewhere(tmp_path: Path, upstream, second, ask) -> None:
    upstream.hold = second.hold = lambda: len(upstream.bodies) + len(second.bodies) < 16  # all at once
    with running(Gateway(tmp_path, {"m": up(upstream, second)})) as g, ThreadPoolExecutor(16) as pool:
        done = list(pool.map(lambda k: ask(g.url("one", "m"), f"{k}")[0], range(16)))
    assert done == [200] * 16 and min(len(upstream.bodies), len(second.bodies)) >= 4


def test_endpoints_are_checked(upstream) -> None:
    for urls in ((), (upstream.url, upstream.url + "/"), ("nonsense",)):
        with pytest.raises(UsageError):
            Upstream(urls)


def test_a_server_that_gives_one_choice_at_a_time_is_asked_for_the_others(tmp_path: Path, upstream, ask) -> None:
    with running(Gateway(tmp_path, {"m": up(upstream)})) as g:
        _, answer, _ = ask(g.url("s", "m"), "hi", n=3, seed=7)
        again = ask(g.url("t", "m"), "hi")[1]
    assert [c["message"]["content"] for c in answer["choices"]] == ["reply 0", "reply 1", "reply 2"]
    assert [(b["n"], b["seed"]) for b in upstream.bodies[:3]] == [(3, 7), (2, 8), (1, 9)]
    assert answer["usage"]["completion_tokens"] == 9 and answer["usage"]["prompt_tokens"] == 21 and again


# --------------------------------------------------------------------------------------------------- rate and budgets


def test_requests_are_spaced_evenly(tmp_path: Path, upstream, ask) -> None:
    with running(Gateway(tmp_path, {"m": up(upstream, requests_per_minute=1200)})) as g, ThreadPoolExecutor(8) as pool:
        started = time.monotonic()
        assert list(pool.map(lambda k: ask(g.url("s", "m"), f"{k}")[0], range(8))) == [200] * 8
        first = time.monotonic() - started
    assert first >= 7 * 0.05 and len(upstream.bodies) == 8


@pytest.mark.parametrize("n", [1, 3])
def test_a_budget_of_replies_is_exact_at_once_and_over_restarts(tmp_path: Path, upstream, ask, n: int) -> None:
    upstream.delay = 0.05
    upstream.script = lambda k, body: completion(*["x"] * body.get("n", 1))

    def statuses(budget: int, questions: range) -> list[int]:
        mutator = up(upstream, budget=Budget(replies=budget))
        with running(Gateway(tmp_path, {"m": mutator})) as g, ThreadPoolExecutor(10) as pool:
            return list(pool.map(lambda k: ask(g.url(f"s{k % 3}", "m"), f"{k}", n=n)[0], questions))

    assert sorted(statuses(12, range(20))) == [200] * (12 // n) + [402] * (20 - 12 // n)
    assert len(upstream.bodies) == 12 // n
    again = statuses(12, range(20))  # what was answered is answered from the journal, the rest is refused
    assert sorted(again) == [200] * (12 // n) + [402] * (20 - 12 // n) and len(upstream.bodies) == 12 // n
    assert statuses(60, range(20)) == [200] * 20 and len(upstream.bodies) == 20


def test_tokens_money_and_seconds_stop_the_asking(tmp_path: Path, upstream, ask, monkeypatch) -> None:
    clock = [0.0]  # as the gateway sees it: a reply takes 0.1 s, however busy the machine is
    monkeypatch.setattr(recorder, "time", SimpleNamespace(time=lambda: clock[0]))

    def script(k: int, body: dict) -> dict:
        clock[0] += 0.1
        return completion(f"reply {k}")

    upstream.script = script
    for name, budget in (
        ("tokens", Budget(tokens=25)), ("dollars", Budget(dollars=0.02, prompt_price=1000, completion_price=100)),
        ("seconds", Budget(seconds=0.25)),
    ):  # fmt: skip
        with running(Gateway(tmp_path / name, {"m": up(upstream, budget=budget)})) as g:
            answers = [ask(g.url("s", "m"), f"{k}") for k in range(5)]
            used = g.stats()["used"]["m"]
        assert [a[0] for a in answers] == [200] * 3 + [402] * 2, name  # 10 tokens, 0.73 cents, 0.1 s a reply
        assert name in answers[-1][1]["error"]["message"] and answers[-1][1]["error"]["type"] == "budget_error"
        assert used["replies"] == 3 and used["prompt_tokens"] == 21 and used["completion_tokens"] == 9


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=40), st.integers(0, 30))
def test_a_meter_never_gives_more_than_its_budget(requests: list[tuple[int, bool]], limit: int) -> None:
    meter, waiting = Meter("m", Budget(replies=limit)), []
    for n, ends in requests:
        try:
            meter.reserve(n)
            waiting.append(n)
        except Failure as e:
            assert e.status == 402 and meter.replies + meter.under_way + n > limit
        if ends and waiting:
            done = waiting.pop(0)
            meter.add(done, None, 0.0)
            meter.release(done)
        assert meter.replies + meter.under_way <= limit


@pytest.mark.parametrize("budget,usage,seconds", [
    (Budget(tokens=10), {"prompt_tokens": 4, "completion_tokens": 6}, 0.0),
    (Budget(seconds=2.5), None, 2.5),
    (Budget(dollars=1.0, prompt_price=1e6, completion_price=0.0), {"prompt_tokens": 1, "completion_tokens": 9}, 0.0),
])  # fmt: skip
def test_a_budget_that_is_spent_to_the_last_unit_is_spent(budget, usage, seconds) -> None:
    meter = Meter("m", budget)
    meter.reserve(1)
    meter.add(1, usage, seconds)
    with pytest.raises(Failure) as refused:
        meter.reserve(1)
    assert refused.value.status == 402


# ------------------------------------------------------------------------------------------------------ the disk is full


def test_with_a_full_disk_nothing_is_asked(tmp_path: Path, upstream, ask, monkeypatch, capsys) -> None:
    with running(Gateway(tmp_path, {"m": up(upstream)})) as g:
        assert ask(g.url("s", "m"), "0")[0] == 200
        real = os.statvfs(tmp_path)
        monkeypatch.setattr(os, "statvfs", lambda p: SimpleNamespace(f_bavail=10, f_frsize=4096))
        status, answer, _ = ask(g.url("s", "m"), "1")
        assert status == 507 and "the disk is full" in answer["error"]["message"] and len(upstream.bodies) == 1
        assert ask(g.url("s", "m"), "1")[0] == 507 and len(upstream.bodies) == 1
        monkeypatch.setattr(os, "statvfs", lambda p: real)
        assert ask(g.url("s", "m"), "1")[0] == 200 and len(upstream.bodies) == 2
    monkeypatch.setattr(os, "statvfs", lambda p: SimpleNamespace(f_bavail=10, f_frsize=4096))
    with pytest.raises(EftError, match="the disk is full"), running(Gateway(tmp_path, {"m": up(upstream)})):
        pass
    assert not (tmp_path / "s.jsonl").read_bytes().endswith(b"\n\n")


def test_after_a_failed_write_nothing_is_asked_until_writing_works(tmp_path: Path, upstream, ask, monkeypatch) -> None:
    from eft.mutators.journal import SearchJournal

    def full(self, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    with running(Gateway(tmp_path, {"m": up(upstream)})) as g:
        assert ask(g.url("s", "m"), "0")[0] == 200
        with monkeypatch.context() as m:
            m.setattr(SearchJournal, "_write", full)
            assert ask(g.url("s", "m"), "1")[0] == 507 and len(upstream.bodies) == 2  # paid for, and lost
            m.setattr(SearchJournal, "probe", lambda self: full(self, b""))
            assert ask(g.url("s", "m"), "1")[0] in (500, 507) and len(upstream.bodies) == 2  # and not once more
        assert ask(g.url("s", "m"), "1")[0] == 200 and len(upstream.bodies) == 3
        assert ask(g.url("t", "m"), "1")[0] == 200
    assert (tmp_path / "s.jsonl").read_bytes().count(b"\n") == 2


@pytest.mark.parametrize("left", [0, 1, 2, 3])
def test_choices_that_a_power_cut_tore_apart_are_asked_again_with_their_numbers(tmp_path: Path, left: int) -> None:
    """In-process mutators are functions of the call's number: a request that comes again must get the same numbers."""

    def add(journal, key: str, calls: list[int]) -> None:
        journal.add([({"kind": "reply", "mutator": "m", "status": "ok", "key": key, "content": f"{c}", "call": c,
                       "choice": i, "n": len(calls)}, []) for i, c in enumerate(calls)])  # fmt: skip

    folder = Journal(tmp_path)
    folder.open()
    journal = folder.search("s")
    add(journal, "a", [journal.take_call("m") for _ in range(3)])
    add(journal, "b", [journal.take_call("m") for _ in range(3)])
    folder.close()
    lines = (tmp_path / "s.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "s.jsonl").write_bytes(b"".join(lines[: 3 + left]) + (lines[3 + left][:20] if left < 3 else b""))
    folder.open()
    journal = folder.search("s")
    assert (journal.lookup("b") is None) == (left < 3) and journal.lookup("a")
    assert journal.take_call("m") == (6 if left == 3 else 3)
    folder.close()


# ----------------------------------------------------------------------------------------- the command, and vLLM's cache


def test_the_command_serves_several_models_of_several_endpoints(tmp_path: Path, upstream, second) -> None:
    command = [sys.executable, "-m", "eft.cli", "gateway", "--upstream", upstream.url, "--upstream", second.url,
               "--model", "base", "--set", "models.tuned=lora-1", "--set", "budget.replies=3", "--port", "0",
               "--journal", str(tmp_path)]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        base, tuned = (process.stdout.readline().strip() for _ in range(2))
        body = {"model": "x", "messages": [{"role": "user", "content": "hi"}]}
        for k in range(4):
            status = post(f"{base.replace('/search/', f'/s{k}/')}/chat/completions", body)[0]
            assert status == (200 if k < 3 else 402)
        assert post(f"{tuned}/chat/completions", body)[0] == 200
    finally:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 0 and "4 answered" in err and "Traceback" not in err
    assert sorted(b["model"] for b in upstream.bodies + second.bodies) == ["base"] * 3 + ["lora-1"]


def test_the_share_of_cached_prompts_is_read_from_the_servers_metrics() -> None:
    pages = [("# HELP x\nvllm:prefix_cache_queries_total{engine=\"0\",model_name=\"m\"} {q}\n"
              "vllm:prefix_cache_hits_total{engine=\"0\",model_name=\"m\"} {h}\n").replace("{q}", q).replace("{h}", h)
             for q, h in (("100.0", "10.0"), ("1.1e+03", "510.0"))]  # fmt: skip

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            body = pages[0].encode() if self.path == "/metrics" else b""
            self.send_response(200 if body else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/v1"
    before = metrics.prefix_cache([url, "http://127.0.0.1:9/v1"])
    pages.pop(0)
    after = metrics.prefix_cache([url])
    server.shutdown()
    server.server_close()
    assert (before, after) == ((100.0, 10.0), (1100.0, 510.0))
    assert metrics.shared(before, after) == "50% of 1000 prompt tokens were in the server's prefix cache"
    assert metrics.shared(None, None) == "" == metrics.shared(after, after)
    assert metrics.prefix_cache(["http://127.0.0.1:9/v1"]) is None
