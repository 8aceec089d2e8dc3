"""The gateway in front of a scripted model: recording, replay, failures, hostile requests, mutators without a model."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from scripted import completion, post, until

from eft.errors import EftError, UsageError
from eft.mutators.gateway import Gateway, running
from eft.mutators.replay import Replay, Scripted
from eft.mutators.reply import Reply
from eft.mutators.upstream import SAMPLING, Upstream


def up(upstream, **options) -> Upstream:
    return Upstream(upstream.url, "served", **{"backoff": 0.01, "retries": 2, "timeout": 5.0, **options})


def text(answer: tuple) -> str:
    return answer[1]["choices"][0]["message"]["content"]


def test_a_reply_is_journaled_before_it_is_delivered(tmp_path: Path, upstream, ask, records) -> None:
    upstream.script = lambda k, body: completion("<think>plan</think>answer")
    mutator = up(upstream, defaults=SAMPLING, max_tokens=100)
    with running(Gateway(tmp_path, {"model": mutator})) as g:
        status, answer, headers = ask(g.url("s1", "model"), "hi", temperature=0.1, max_tokens=5000, seed=3)
    assert status == 200 and headers["x-eft-replayed"] == "0"
    assert answer["choices"][0]["message"]["content"] == "<think>plan</think>answer"
    assert answer["usage"] == {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    sent = upstream.bodies[0]
    assert (sent["model"], sent["temperature"], sent["top_p"], sent["max_tokens"]) == ("served", 0.1, 0.95, 100)
    (record,) = records(tmp_path / "s1.jsonl")
    assert record["kind"] == "reply" and record["status"] == "ok" and record["http_status"] == 200
    assert record["search"] == "s1" and record["mutator"] == "model" and record["model"] == "served"
    assert record["messages"] == [{"role": "user", "content": "hi"}] and record["index"] == 0
    assert record["params"] == {"temperature": 0.1, "top_p": 0.95, "max_tokens": 100, "seed": 3}
    assert record["asked"] == {"temperature": 0.1, "max_tokens": 5000, "seed": 3}
    assert record["content"] == "<think>plan</think>answer" and record["reasoning"] == "plan"
    assert record["usage"] == {"prompt_tokens": 7, "completion_tokens": 3} and record["error"] is None


def test_forced_parameters_win_and_the_model_name_can_pass_through(tmp_path: Path, upstream, ask) -> None:
    mutator = Upstream(upstream.url, None, force={"temperature": 0.0})
    with running(Gateway(tmp_path, {"model": mutator})) as g:
        ask(g.url("s", "model"), temperature=1.0)
    assert upstream.bodies[0]["temperature"] == 0.0 and upstream.bodies[0]["model"] == "m"


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_a_servers_own_reasoning_field_is_kept(tmp_path: Path, upstream, ask, records, field: str) -> None:
    upstream.script = lambda k, body: completion("answer", **{field: "because"})
    with running(Gateway(tmp_path, {"model": up(upstream)})) as g:
        assert ask(g.url("s", "model"))[1]["choices"][0]["message"]["reasoning_content"] == "because"
    assert records(tmp_path / "s.jsonl")[0]["reasoning"] == "because"


def test_equal_requests_are_told_apart_and_replayed_in_order(tmp_path: Path, upstream, ask) -> None:
    mutators = {"model": up(upstream)}
    with running(Gateway(tmp_path, mutators)) as g:
        first = [ask(g.url("s", "model"), t) for t in ("a", "a", "b")]
    assert len(upstream.bodies) == 3
    with running(Gateway(tmp_path, mutators)) as g:
        second = [ask(g.url("s", "model"), t) for t in ("a", "a", "b")]
        assert [s[1] for s in second] == [f[1] for f in first], "the same bytes, id and time included"
        assert {s[2]["x-eft-replayed"] for s in second} == {"1"}
        assert text(ask(g.url("s", "model"), "a")) == "reply 3", "a third equal one is new"
        assert text(ask(g.url("other", "model"), "a")) == "reply 4", "another search shares nothing"
        assert text(ask(g.url("s", "model"), "b", temperature=0.5)) == "reply 5", "other parameters are another request"
        assert g.stats()["total"]["replayed"] == 3 and g.stats()["total"]["answered"] == 3
    assert len(upstream.bodies) == 6


def test_a_scaffold_that_starts_over_says_so(tmp_path: Path, upstream, ask) -> None:
    with running(Gateway(tmp_path, {"model": up(upstream)})) as g:
        assert [text(ask(g.url("s", "model"))) for _ in range(2)] == ["reply 0", "reply 1"]
        assert post(f"{g.origin}/s/s/restart", {})[0] == 200
        assert [text(ask(g.url("s", "model"))) for _ in range(3)] == ["reply 0", "reply 1", "reply 2"]
        assert post(f"{g.origin}/s/.s/restart", {})[0] == 400


def test_other_weights_under_the_same_name_are_asked_anew(tmp_path: Path, upstream, ask) -> None:
    for identity in ("weights-1", "weights-2", "weights-1"):
        with running(Gateway(tmp_path, {"model": up(upstream, identity=identity)})) as g:
            ask(g.url("s", "model"))
    assert len(upstream.bodies) == 2


def test_failures_are_journaled_and_asked_again(tmp_path: Path, upstream, ask, records, capsys) -> None:
    good = completion("at last")
    upstream.script = lambda k, body: (503, {"error": {"message": "overloaded"}}) if k < 3 else good
    mutators = {"model": up(upstream, retries=1)}
    with running(Gateway(tmp_path, mutators)) as g:
        status, answer, headers = ask(g.url("s", "model"))
        assert status == 503 and headers["x-should-retry"] == "false"
        assert "overloaded" in answer["error"]["message"] and "asked 2 times" in answer["error"]["message"]
        assert text(ask(g.url("s", "model"))) == "at last", "the scaffold's own retry"
    assert len(upstream.bodies) == 4
    assert "s/model" in capsys.readouterr().err
    with running(Gateway(tmp_path, mutators)) as g:
        assert text(ask(g.url("s", "model"))) == "at last", "a restart does not meet the failure again"
    assert len(upstream.bodies) == 4
    assert [r["status"] for r in records(tmp_path / "s.jsonl")] == ["error", "ok"]
    assert records(tmp_path / "s.jsonl")[0]["http_status"] == 503


NESTED = b'{"choices": [{"message": {"content": "x"}, "logprobs": ' + b"[" * 200 + b"]" * 200 + b"}]}"
GARBAGE = [
    b"<html>", b"\xff\xfe\x00garbage", b"", NESTED, {"choices": []}, {"choices": [7]}, {"choices": [{"message": 3}]},
    {"choices": [{"index": "x", "message": {"content": "a"}}]}, {"choices": [{"message": {"content": 3}}]},
    {"object": "error"}, b'{"choices": [{"message": {"content": NaN}}]}',
]  # fmt: skip
HICCUPS = [(500, b"boom"), (502, b"\xff\xfe"), (429, b"slow down", {"Retry-After": "0.01"}), None]


@pytest.mark.parametrize("bad", [*HICCUPS, *((200, body) for body in GARBAGE)])
def test_what_passes_is_retried(tmp_path: Path, upstream, ask, bad) -> None:
    upstream.script = lambda k, body: bad if k < 2 else completion("fine")
    with running(Gateway(tmp_path, {"model": up(upstream)})) as g:
        assert text(ask(g.url("s", "model"))) == "fine"
        assert g.stats()["retries"] == {"model": 2}


@pytest.mark.parametrize("status", [400, 401, 404, 422])
def test_what_is_an_answer_is_not_retried(tmp_path: Path, upstream, ask, status: int) -> None:
    upstream.script = lambda k, body: (status, {"error": {"message": "maximum context length"}})
    with running(Gateway(tmp_path, {"model": up(upstream)})) as g:
        got, answer, _ = ask(g.url("s", "model"))
    assert got == status and "maximum context length" in answer["error"]["message"] and len(upstream.bodies) == 1


def test_a_redirect_is_no_success(tmp_path: Path, upstream, ask) -> None:
    upstream.script = lambda k, body: (307, b"", {"Location": "http://127.0.0.1:9/v1/chat/completions"})
    with running(Gateway(tmp_path, {"model": up(upstream)})) as g:
        assert ask(g.url("s", "model"))[0] == 502


def test_a_server_that_hangs_times_out_and_is_retried_once(tmp_path: Path, upstream, ask) -> None:
    upstream.script = lambda k, body: 30
    with running(Gateway(tmp_path, {"model": up(upstream, timeout=1.0, retries=5)})) as g:
        started = time.monotonic()
        status, answer, _ = ask(g.url("s", "model"))
    assert status == 504 and "within 1 s" in answer["error"]["message"]
    assert len(upstream.bodies) == 2 and time.monotonic() - started < 20


def test_a_server_that_is_not_there(tmp_path: Path, ask, records) -> None:
    nowhere = Upstream("http://127.0.0.1:9/v1", "m", retries=1, backoff=0.01)
    with running(Gateway(tmp_path, {"model": nowhere})) as g:
        status, answer, _ = ask(g.url("s", "model"))
    assert status == 502 and "cannot be reached" in answer["error"]["message"]
    assert records(tmp_path / "s.jsonl")[0]["error"] == answer["error"]["message"]


def test_a_megabyte_and_broken_text_pass_unharmed(tmp_path: Path, upstream, ask) -> None:
    big = "x" * 2**20 + "\ud800"
    upstream.script = lambda k, body: completion(big)
    for _ in range(2):
        with running(Gateway(tmp_path, {"model": up(upstream)})) as g:
            assert text(ask(g.url("s", "model"), "lone \udfff surrogate")) == big
    assert len(upstream.bodies) == 1 and upstream.bodies[0]["messages"][0]["content"] == "lone \udfff surrogate"


def test_several_choices_are_one_request_and_several_records(tmp_path: Path, upstream, ask, records) -> None:
    upstream.script = lambda k, body: completion(*(f"c{i}" for i in range(body["n"])))
    for replayed in "01":
        with running(Gateway(tmp_path, {"model": up(upstream)})) as g:
            _, answer, headers = ask(g.url("s", "model"), n=3)
        assert [c["message"]["content"] for c in answer["choices"]] == ["c0", "c1", "c2"]
        assert headers["x-eft-replayed"] == replayed and answer["usage"]["completion_tokens"] == 9
    lines = records(tmp_path / "s.jsonl")
    assert [(r["index"], r["choice"], r["n"]) for r in lines] == [(0, 0, 3), (1, 1, 3), (2, 2, 3)]
    assert [r["usage"] is None for r in lines] == [False, True, True] and len({r["key"] for r in lines}) == 1


def test_the_limit_on_requests_in_flight(tmp_path: Path, upstream, ask) -> None:
    upstream.delay, upstream.hold = 0.05, lambda: upstream.most_in_flight < 3
    with running(Gateway(tmp_path, {"model": up(upstream, concurrency=3)})) as g, ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda i: ask(g.url(f"s{i % 4}", "model"), f"q{i}"), range(24)))
        assert {a[0] for a in answers} == {200} and g.stats()["total"]["answered"] == 24
    assert upstream.most_in_flight == 3
    assert sum(len((tmp_path / f"s{i}.jsonl").read_text().splitlines()) for i in range(4)) == 24


def test_equal_requests_at_once_are_replayed_as_a_set(tmp_path: Path, upstream, ask) -> None:
    upstream.delay = 0.02
    replies = []
    for _ in range(2):
        with running(Gateway(tmp_path, {"model": up(upstream)})) as g, ThreadPoolExecutor(8) as pool:
            replies.append(sorted(text(a) for a in pool.map(lambda i: ask(g.url("s", "model")), range(8))))
    assert replies[0] == replies[1] and len(set(replies[0])) == 8 and len(upstream.bodies) == 8


def test_a_scaffold_that_hangs_up_loses_nothing(tmp_path: Path, upstream, ask, records) -> None:
    answered = threading.Event()
    upstream.hold = lambda: not answered.is_set()
    with running(Gateway(tmp_path, {"model": up(upstream, timeout=100.0)})) as g, ThreadPoolExecutor(1) as pool:
        with pytest.raises(TimeoutError):
            ask(g.url("s", "model"), timeout=1.0)
        until(lambda: len(upstream.bodies) == 1)
        again = pool.submit(ask, g.url("s", "model"))
        until(lambda: g.stats()["total"]["requests"] == 2)
        answered.set()
        assert text(again.result()) == "reply 0", "it joins the request that is still being asked"
        answered.clear()
        with pytest.raises(TimeoutError):
            ask(g.url("s", "model"), "other", timeout=1.0)
        until(lambda: len(upstream.bodies) == 2)
        answered.set()
        until(lambda: len(records(tmp_path / "s.jsonl")) == 2)
        time.sleep(1.0)  # on disk, but for a moment still under way: asked then, it would be joined and not replayed
        answer = ask(g.url("s", "model"), "other")
        assert text(answer) == "reply 1" and answer[2]["x-eft-replayed"] == "1", "or finds its reply in the journal"
    assert len(upstream.bodies) == 2 and len(records(tmp_path / "s.jsonl")) == 2


def test_the_scaffolds_key_is_passed_on_unless_there_is_one_and_never_written(tmp_path: Path, upstream) -> None:
    from eft.mutators.client import chat

    for own in (None, "own-secret"):
        with running(Gateway(tmp_path, {"model": up(upstream, api_key=own)})) as g:
            chat(g.url(f"s-{own}", "model"), "m", [{"role": "user", "content": "x"}], api_key="scaffold-secret")
    assert [h["Authorization"] for h in upstream.headers] == ["Bearer scaffold-secret", "Bearer own-secret"]
    assert not any("secret" in f.read_text() for f in tmp_path.glob("*.jsonl") if "own" not in f.name)
    assert "own-secret" not in repr(up(upstream, api_key="own-secret"))


@pytest.mark.parametrize(
    "raw, why",
    [(b"", "not valid JSON"), (b"{", "not valid JSON"), (b"[]", "JSON object"), (b"\xff\xfe{}", "not valid JSON"),
     (b'{"messages": []}', "non-empty"), (b'{"messages": "x"}', "non-empty"), (b'{"messages": [3]}', "messages[0]"),
     (b'{"messages": [{"role": "user", "content": 5}]}', "content"),
     (b'{"messages": [{"role": "user", "content": "x"}], "n": 0}', "'n'"),
     (b'{"messages": [{"role": "user", "content": "x"}], "n": 1e9}', "'n'"),
     (b'{"messages": [{"role": "user", "content": "x"}], "stream": "yes"}', "'stream'"),
     (b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}', "NaN"),
     (b'{"messages": [{"role": "user", "content": "x"}], "a": ' + b"[" * 100 + b"]" * 100 + b"}", "nested"),
     (b"[" * 200_000, "nested")],
)  # fmt: skip
def test_malformed_requests_are_refused(tmp_path: Path, upstream, ask, raw: bytes, why: str) -> None:
    with running(Gateway(tmp_path, {"model": up(upstream)})) as g:
        status, answer, _ = ask(g.url("s", "model"), raw=raw)
        assert status == 400 and why in answer["error"]["message"]
        assert g.stats()["searches"]["s"]["model"]["refused"] == 1
        assert ask(g.url("s", "model"))[0] == 200, "the gateway goes on"


def test_huge_requests_wrong_paths_and_names_are_refused(tmp_path: Path, upstream, ask) -> None:
    with running(Gateway(tmp_path, {"model": up(upstream), "ast": lambda search: Scripted(["x"])})) as g:
        assert ask(g.url("s", "model"), raw=b"x" * (17 * 2**20))[0] == 413
        status, answer, _ = ask(f"{g.origin}/s/s/modle/v1")
        assert status == 404 and "valid: ast, model" in answer["error"]["message"]
        assert ask(f"{g.origin}/v1")[0] == 404
        for name in ("..%2Fup", ".hidden", "a%20b", "x" * 129, "%00"):
            assert ask(f"{g.origin}/s/{name}/model/v1")[0] in (400, 404), name
        status, answer, _ = ask(g.url("s", "ast"), raw=json.dumps(
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}).encode())  # fmt: skip
        assert status == 400 and "not text" in answer["error"]["message"]
        for bad in (("../up", "model"), ("s", "modle")):
            with pytest.raises(UsageError):
                g.url(*bad)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".lock"], "no search was opened on the disk"
    assert not upstream.bodies


def test_models_health_and_stats(tmp_path: Path, upstream) -> None:
    import urllib.request

    with running(Gateway(tmp_path, {"model": up(upstream), "ast": lambda search: Scripted(["x"])})) as g:
        def get(url: str):
            with urllib.request.urlopen(url) as answer:
                return json.load(answer)

        assert get(g.url("s", "model") + "/models")["data"][0]["id"] == "served"
        assert get(g.url("s", "ast") + "/models")["data"][0]["id"] == "ast"
        assert get(g.origin + "/health") == {"status": "ok", "mutators": ["ast", "model"]}
        assert get(g.origin + "/stats")["total"]["requests"] == 0


class Counting:
    """An in-process mutator that tells its call number, and what it tried."""

    def __init__(self, search: str) -> None:
        self.search, self.busy = search, False

    def propose(self, messages, call):
        assert not self.busy, "never twice at once"
        self.busy = True
        time.sleep(0.01)
        self.busy = False
        if "fail" in messages[-1]["content"]:
            raise StopIteration("no edit")
        if "wrong" in messages[-1]["content"]:
            return "not a Reply"
        tried = ({"parent_code": "p", "child_code": f"c{call}", "chosen": True, "child_metrics": {"a": float("nan")}},)
        return Reply(f"{self.search} call {call}", tried)


def test_a_mutator_without_a_model_is_served_the_same_way(tmp_path: Path, ask, records) -> None:
    with running(Gateway(tmp_path, {"ast": Counting})) as g:
        assert text(ask(g.url("s", "ast"))) == "s call 0"
        assert [c["message"]["content"] for c in ask(g.url("s", "ast"), n=2)[1]["choices"]] == ["s call 1", "s call 2"]
        status, answer, _ = ask(g.url("s", "ast"), "fail")
        assert status == 500 and "no edit" in answer["error"]["message"]
        assert "not a Reply" in ask(g.url("s", "ast"), "wrong")[1]["error"]["message"]
        assert text(ask(g.url("t", "ast"))) == "t call 0", "one instance per search"
    with running(Gateway(tmp_path, {"ast": Counting})) as g:
        assert text(ask(g.url("s", "ast"))) == "s call 0"
        assert text(ask(g.url("s", "ast"), "more")) == "s call 5", "goes on where it stopped; failures count"
        with ThreadPoolExecutor(4) as pool:
            got = {text(a) for a in pool.map(lambda i: ask(g.url("s", "ast"), f"q{i}"), range(4))}
        assert got == {f"s call {i}" for i in range(6, 10)}
    lines = records(tmp_path / "s.jsonl")
    first = lines[0]
    assert first["kind"] == "proposal" and first["index"] == 0 and first["search"] == "s" and first["mutator"] == "ast"
    assert first["messages"] == lines[1]["messages"] and first["child_metrics"] == {"a": "NaN"}
    assert lines[1]["kind"] == "reply" and lines[1]["call"] == 0 and lines[1]["usage"] is None


def test_a_mutator_that_cannot_be_made_fails_its_requests_only(tmp_path: Path, ask) -> None:
    def make(search: str):
        if search == "bad":
            raise ValueError("no such task")
        return Scripted(["fine"])

    with running(Gateway(tmp_path, {"ast": make})) as g:
        assert "no such task" in ask(g.url("bad", "ast"))[1]["error"]["message"]
        assert text(ask(g.url("good", "ast"))) == "fine"


def test_a_hanging_mutator_neither_blocks_others_nor_the_end(tmp_path: Path, ask, records) -> None:
    hanging, release = threading.Event(), threading.Event()

    class Hangs:
        def propose(self, messages, call):
            hanging.set()
            release.wait(120)
            return Reply("late")

    gateway = Gateway(tmp_path, {"hangs": lambda s: Hangs(), "quick": lambda s: Scripted(["fine"])})
    started = time.monotonic()
    with running(gateway) as g:
        waiting = threading.Thread(target=lambda: ask(g.url("s", "hangs")))
        waiting.start()
        assert hanging.wait(60)
        assert text(ask(g.url("s", "quick"))) == "fine"
    assert time.monotonic() - started < 60
    release.set()
    waiting.join(60)
    (failed,) = [r for r in records(tmp_path / "s.jsonl") if r["status"] == "error"]
    assert failed["error"] == "the gateway was stopped" and failed["call"] is None, "its call number is free again"


def test_a_journal_that_cannot_be_written_stops_the_reply(tmp_path: Path, upstream, ask, monkeypatch, capsys) -> None:
    from eft.mutators import journal

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    with running(Gateway(tmp_path, {"model": up(upstream)})) as g:
        monkeypatch.setattr(journal, "_to_disk", full)
        status, answer, _ = ask(g.url("s", "model"))
        assert status == 507 and "disk is full" in answer["error"]["message"]
        monkeypatch.undo()
        assert ask(g.url("s", "model"))[0] == 200
    assert "disk is full" in capsys.readouterr().err


def test_a_journal_is_replayed_by_a_mutator(tmp_path: Path, upstream, ask) -> None:
    questions = ["a", "b", "a", "a"]
    with running(Gateway(tmp_path / "one", {"model": up(upstream)})) as g:
        first = [text(ask(g.url("s", "model"), q)) for q in questions]
    source = tmp_path / "one" / "s.jsonl"
    with running(Gateway(tmp_path / "two", {"replay": lambda search: Replay(source)})) as g:
        assert [text(ask(g.url("s", "replay"), q)) for q in questions] == first
        assert text(ask(g.url("s", "replay"), "b")) == "reply 1"
        assert "never answered" in ask(g.url("s", "replay"), "new")[1]["error"]["message"]


def test_a_port_in_use_a_wrong_upstream_and_no_mutators(tmp_path: Path, upstream) -> None:
    with running(Gateway(tmp_path / "a", {"model": up(upstream)})) as g:
        second = Gateway(tmp_path / "b", {"model": up(upstream)}, port=g.port)
        with pytest.raises(EftError, match="cannot listen") as e, running(second):
            pass
        assert "--port" in str(e.value)
        with running(Gateway(tmp_path / "b", {"model": up(upstream)})):
            pass  # the failed start has let go of its journal
    with pytest.raises(UsageError, match="http"):
        Upstream("localhost:8000", "m")
    for wrong in ({}, {"a/b": up(upstream)}):
        with pytest.raises(UsageError):
            Gateway(tmp_path, wrong)


def test_vary_seed_makes_equal_requests_different_draws(tmp_path: Path, upstream, ask, records) -> None:
    for _ in range(2):
        with running(Gateway(tmp_path, {"model": up(upstream, vary_seed=True)})) as g:
            for _ in range(3):
                ask(g.url("s", "model"), seed=42)
    assert [b["seed"] for b in upstream.bodies] == [42, 43, 44]
    assert [r["params"]["seed"] for r in records(tmp_path / "s.jsonl")] == [42, 43, 44]
