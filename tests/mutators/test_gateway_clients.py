"""Real clients against the gateway: the OpenAI library (plain and streaming) and our own little one."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripted import completion

from eft.errors import EftError
from eft.mutators.client import chat
from eft.mutators.gateway import Gateway, running
from eft.mutators.upstream import Upstream

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture
def gateway(tmp_path: Path, upstream):
    mutator = Upstream(upstream.url, "served", retries=1, backoff=0.01)
    with running(Gateway(tmp_path, {"model": mutator})) as g:
        yield g


def test_the_openai_library_plain_and_streaming(gateway, upstream, tmp_path, records) -> None:
    import openai

    def script(k: int, body: dict):
        return completion(*(f"one two {k}.{i}" for i in range(body.get("n", 1))), reasoning="why")

    upstream.script = script
    with openai.OpenAI(base_url=gateway.url("s", "model"), api_key="none") as client:
        assert client.models.list().data[0].id == "served"
        plain = client.chat.completions.create(model="m", messages=HELLO, temperature=0.7)
        assert plain.choices[0].message.content == "one two 0.0" and plain.usage.total_tokens == 10
        options = {"model": "m", "messages": HELLO, "stream": True, "stream_options": {"include_usage": True}}
        for _ in range(2):
            chunks = list(client.chat.completions.create(**options, n=2, seed=1))
            for choice in (0, 1):
                parts = [c.choices[0].delta.content or "" for c in chunks if c.choices and c.choices[0].index == choice]
                assert "".join(parts).startswith("one two")
            assert chunks[-1].usage.completion_tokens == 6
            assert [c.choices[0].finish_reason for c in chunks if c.choices].count("stop") == 2
    assert all("stream" not in body for body in upstream.bodies), "the model is asked for whole replies"
    assert records(tmp_path / "s.jsonl")[1]["reasoning"] == "why"


def test_streaming_failures_come_with_their_status(gateway, upstream) -> None:
    import openai

    upstream.script = lambda k, body: (400, {"error": {"message": "too long"}})
    client = openai.OpenAI(base_url=gateway.url("s", "model"), api_key="none")
    with client, pytest.raises(openai.BadRequestError, match="too long"):
        client.chat.completions.create(model="m", messages=HELLO, stream=True)


def test_the_openai_library_does_not_retry_on_top(gateway, upstream) -> None:
    import openai

    upstream.script = lambda k, body: (500, {"error": {"message": "boom"}})
    client = openai.OpenAI(base_url=gateway.url("s", "model"), api_key="none", max_retries=5)
    with client, pytest.raises(openai.InternalServerError, match="boom"):
        client.chat.completions.create(model="m", messages=HELLO)
    assert len(upstream.bodies) == 2, "one retry of the gateway's, none of the library's"


def test_our_client(gateway, upstream) -> None:
    upstream.script = lambda k, body: completion("a", "b", reasoning="r") if body.get("n") else completion("a")
    got = chat(gateway.url("s", "model"), "m", HELLO, n=2, top_k=5)
    assert (got["content"], got["reasoning"], got["finish_reason"]) == ("a", "r", "stop")
    assert got["usage"] == {"prompt_tokens": 7, "completion_tokens": 6}
    assert [c["content"] for c in got["choices"]] == ["a", "b"]
    assert upstream.bodies[0]["top_k"] == 5
    upstream.script = lambda k, body: (400, {"error": {"message": "too long"}})
    with pytest.raises(EftError, match="too long"):
        chat(gateway.url("s", "model"), "m", HELLO)
    with pytest.raises(EftError, match="cannot be reached"):
        chat("http://127.0.0.1:9/v1", "m", HELLO, retries=0)
    with pytest.raises(EftError, match="chat completion|404"):
        chat(gateway.origin, "m", HELLO)
    upstream.script = lambda k, body: 5
    with pytest.raises(EftError, match="within 0.3 s"):
        chat(upstream.url, "m", HELLO, timeout=0.3, retries=0)
