"""The OpenAI wire format, both ways: what a scaffold may ask, and how it is answered.

Requests come from programs that we do not know, so everything is checked before it reaches a mutator or the journal.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

# Transport, not sampling: they do not change the reply and are no part of its identity.
_TRANSPORT = ("messages", "model", "stream", "stream_options")
_THINK = re.compile(r"<think>(.*?)(?:</think>|\Z)", re.DOTALL)
MAX_CHOICES = 128
MAX_DEPTH = 64  # of a body: a JSON schema for the reply is the deepest honest thing in one


class Failure(Exception):
    """A request that gets an OpenAI-style error. `status`: HTTP status; `kind`: the error's `type`."""

    def __init__(self, status: int, message: str, kind: str = "invalid_request_error") -> None:
        super().__init__(message)
        self.status, self.message, self.kind = status, message, kind

    def body(self) -> dict[str, Any]:
        """The JSON that OpenAI clients turn into an exception."""
        return {"error": {"message": self.message, "type": self.kind, "param": None, "code": self.status}}


@dataclass(frozen=True)
class Ask:
    """A checked chat request. `params`: everything that shapes the reply, as the scaffold sent it (n included)."""

    messages: list[dict[str, Any]]
    params: dict[str, Any]
    model: str | None = None
    n: int = 1
    stream: bool = False
    stream_usage: bool = False


@dataclass(frozen=True)
class Choice:
    """One completion of a model. `extra`: what we do not interpret (logprobs, tool calls), kept for the scaffold."""

    content: str
    reasoning: str | None = None
    finish_reason: str | None = "stop"
    extra: dict[str, Any] = field(default_factory=dict)


def parse_json(text: bytes) -> Any:
    """Strict JSON: NaN and infinities are refused too, since nothing downstream could store them. Raises ValueError."""

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _deeper_than(value: Any, depth: int) -> bool:
    """True where `value` nests deeper than `depth`. Without recursion: the value comes from strangers."""
    level = [value]
    for _ in range(depth):
        level = [x for v in level if isinstance(v, dict | list) for x in (v.values() if isinstance(v, dict) else v)]
        if not level:
            return False
    return True


def parse_request(body: bytes) -> Ask:
    """The request in `body`. Raises Failure (400) naming what is wrong with it."""
    try:
        data = parse_json(body)
    except ValueError as e:
        raise Failure(400, f"the request body is not valid JSON: {str(e)[:200]}") from None
    if not isinstance(data, dict):
        raise Failure(400, "the request body must be a JSON object")
    if _deeper_than(data, MAX_DEPTH):
        raise Failure(400, f"the request body is nested deeper than {MAX_DEPTH} levels")
    messages = data.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Failure(400, "'messages' must be a non-empty list")
    for i, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise Failure(400, f"messages[{i}] must be an object with a string 'role'")
        if not isinstance(message.get("content"), str | list | None):
            raise Failure(400, f"messages[{i}].content must be a string, a list of parts or null")
    n = data.get("n")
    n = 1 if n is None else n
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= MAX_CHOICES:
        raise Failure(400, f"'n' must be a whole number from 1 to {MAX_CHOICES}")
    stream = data.get("stream") or False
    if not isinstance(stream, bool):
        raise Failure(400, "'stream' must be true or false")
    model, options = data.get("model"), data.get("stream_options")
    if not isinstance(model, str | None):
        raise Failure(400, "'model' must be a string")
    params = {k: v for k, v in data.items() if k not in _TRANSPORT and v is not None}
    usage = bool(isinstance(options, dict) and options.get("include_usage"))
    return Ask(messages, params, model=model, n=n, stream=stream, stream_usage=usage)


def plain_messages(messages: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Role and text only, for mutators without a model. Raises Failure (400) where a part is not text."""
    plain = []
    for i, message in enumerate(messages):
        content = message.get("content") or ""
        if not isinstance(content, str):
            parts = [p.get("text") if isinstance(p, dict) else None for p in content]
            if not all(isinstance(p, str) for p in parts):
                raise Failure(400, f"messages[{i}] holds parts that are not text, which this mutator cannot read")
            content = "".join(parts)
        plain.append({"role": message["role"], "content": content})
    return plain


def thoughts(content: str, separate: str | None) -> str | None:
    """The reasoning text: the server's own field, else what stands in <think> tags (which stay in the content)."""
    if separate:
        return separate
    if "</think>" in content and "<think>" not in content:
        content = f"<think>{content}"  # chat templates that open the tag themselves
    inline = [t.strip() for t in _THINK.findall(content)]
    return "\n".join(t for t in inline if t) or None


def parse_completion(body: bytes, n: int) -> tuple[list[Choice], dict[str, int] | None]:
    """The choices (at most `n`, at least one) and the usage in a server's answer. Raises ValueError where it is not a
    chat completion."""
    data = parse_json(body)  # UnicodeDecodeError is a ValueError too
    if _deeper_than(data, MAX_DEPTH):
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    choices = data.get("choices") if isinstance(data, dict) else None
    if not isinstance(choices, list) or not 1 <= len(choices) <= n:
        raise ValueError(f"expected a chat completion with {n} choice{'s' if n > 1 else ''}")
    parsed = []
    if not all(isinstance(c, dict) and isinstance(c.get("index", 0), int) for c in choices):
        raise ValueError("a choice is no object with an index")
    for choice in sorted(choices, key=lambda c: c.get("index", 0)):
        message = choice.get("message")
        if not isinstance(message, dict) or not isinstance(message.get("content"), str | None):
            raise ValueError("a choice holds no message with text")
        content = message.get("content") or ""
        separate = message.get("reasoning_content") or message.get("reasoning")
        extra = {k: choice[k] for k in ("logprobs",) if choice.get(k)}
        extra |= {k: message[k] for k in ("tool_calls", "refusal") if message.get(k)}
        reasoning = thoughts(content, separate if isinstance(separate, str) else None)
        parsed.append(Choice(content, reasoning, choice.get("finish_reason"), extra))
    usage = data.get("usage")
    if isinstance(usage, dict):
        usage = {k: usage.get(k) for k in ("prompt_tokens", "completion_tokens")}
        usage = usage if all(isinstance(v, int) for v in usage.values()) else None
    else:
        usage = None
    return parsed, usage


def _usage(records: list[dict[str, Any]]) -> dict[str, int] | None:
    usage = records[0].get("usage")
    return usage and {**usage, "total_tokens": usage["prompt_tokens"] + usage["completion_tokens"]}


def _message(record: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": record["content"]}
    if record.get("reasoning"):
        message["reasoning_content"] = record["reasoning"]
    message |= {k: v for k, v in (record.get("extra") or {}).items() if k != "logprobs"}
    return message


def completion(records: list[dict[str, Any]]) -> dict[str, Any]:
    """The answer to a plain request, from its journal records: fresh and replayed replies look the same."""
    choices = []
    for i, record in enumerate(records):
        logprobs = (record.get("extra") or {}).get("logprobs")
        choices.append({"index": i, "message": _message(record), "finish_reason": record.get("finish_reason"),
                        "logprobs": logprobs})  # fmt: skip
    return {**_head(records, "chat.completion"), "choices": choices, "usage": _usage(records)}


def _head(records: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    first = records[0]
    name = f"chatcmpl-{first['key'][:16]}-{first['occurrence']}"
    return {"id": name, "object": kind, "created": int(first["time"]), "model": first["model"]}


def events(records: list[dict[str, Any]], with_usage: bool) -> bytes:
    """The answer to a streaming request: the whole reply as server-sent events, in three chunks a choice."""
    head = _head(records, "chat.completion.chunk")
    chunks = []
    for i, record in enumerate(records):
        message = _message(record)
        deltas = [({"role": "assistant", "content": ""}, None), (message, None), ({}, record.get("finish_reason"))]
        for delta, reason in deltas:
            chunks.append({**head, "choices": [{"index": i, "delta": delta, "finish_reason": reason}]})
    if with_usage:
        chunks.append({**head, "choices": [], "usage": _usage(records)})
    lines = [f"data: {json.dumps(c)}\n\n" for c in chunks]
    return "".join([*lines, "data: [DONE]\n\n"]).encode("utf-8")
