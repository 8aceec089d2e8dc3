"""A model behind somebody's OpenAI-compatible endpoint, asked with time-outs, retries and a limit on what is in flight.

Retried: no connection, a torn answer, an answer that is no chat completion, HTTP 408, 409, 425, 429 and 5xx; with
exponential back-off and jitter, or as long as the server's Retry-After says. A time-out is retried once only, since a
server that hung for `timeout` seconds mostly hangs again. Everything else (a prompt that is too long, a wrong key) is
the answer, and goes back to the scaffold as the server gave it.
"""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from eft.errors import UsageError
from eft.mutators.wire import Ask, Choice, Failure, parse_completion

SAMPLING = {"temperature": 0.7, "top_p": 0.95}  # the paper's (EFT, arXiv 2606.29082)
_RETRIED = {408, 409, 425, 429}
_CAPS = ("max_tokens", "max_completion_tokens")
_LONGEST_REPLY = 64 * 2**20  # bytes; a server that sends more is broken
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}


@dataclass(frozen=True)
class Upstream:
    """Where a mutator's model answers, and how it is asked.

    base_url: up to and including /v1. model: the name sent, None passes the scaffold's own on. timeout: seconds for one
    attempt. retries: further attempts. concurrency: requests in flight at once. defaults: parameters that hold where
    the scaffold sends none; force: parameters that always hold. max_tokens: cap on a reply's length in tokens, whatever
    was asked. vary_seed: add the occurrence number to the scaffold's seed, so that asking the same again is another
    draw. identity: what tells one set of weights under a model name from the next (a fingerprint); part of the replay
    key. backoff: seconds before the first retry; doubles, up to 30.
    Raises UsageError where base_url is not an http(s) URL.
    """

    base_url: str
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    timeout: float = 600.0
    retries: int = 4
    concurrency: int = 64
    defaults: dict[str, Any] = field(default_factory=dict)
    force: dict[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    vary_seed: bool = False
    identity: str = ""
    backoff: float = 0.5

    def __post_init__(self) -> None:
        parts = urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError("an upstream is named by its http(s) base URL", where=self.base_url,
                             way_out="for example http://127.0.0.1:8000/v1")  # fmt: skip

    @property
    def local(self) -> bool:
        """True for a server on this machine: never reached through a proxy."""
        return urlsplit(self.base_url).hostname in _LOOPBACK

    def params(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The parameters that are sent for those that the scaffold asked for."""
        sent = {**self.defaults, **asked, **self.force}
        if self.max_tokens is not None:
            given = [k for k in _CAPS if isinstance(sent.get(k), int)]
            for k in given or _CAPS[:1]:
                sent[k] = min(sent.get(k, self.max_tokens), self.max_tokens)
        return sent

    def seeded(self, params: dict[str, Any], occurrence: int) -> dict[str, Any]:
        """`params` for the `occurrence`-th equal request (see `vary_seed`)."""
        seed = params.get("seed")
        if not self.vary_seed or not isinstance(seed, int):
            return params
        return {**params, "seed": seed + occurrence}


@dataclass(frozen=True)
class Answer:
    """What came back. `attempts`: how often it was asked."""

    choices: list[Choice]
    usage: dict[str, int] | None
    attempts: int


class Line:
    """The open line to one upstream: its session and its limit on requests in flight. Made inside the event loop."""

    def __init__(self, upstream: Upstream) -> None:
        import aiohttp

        self.upstream = upstream
        self.retries = 0  # of all requests so far, for /stats
        self._slots = asyncio.Semaphore(upstream.concurrency)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=upstream.timeout, sock_connect=min(30.0, upstream.timeout)),
            trust_env=not upstream.local,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    async def ask(self, ask: Ask, params: dict[str, Any], authorization: str | None = None) -> Answer:
        """The upstream's answer. Raises Failure once retrying is of no use; its message says how often was tried."""
        up = self.upstream
        body = json.dumps({**params, "model": up.model or ask.model, "messages": ask.messages}).encode("ascii")
        headers = {"Content-Type": "application/json"}
        if up.api_key or authorization:
            headers["Authorization"] = f"Bearer {up.api_key}" if up.api_key else str(authorization)
        timeouts = 0
        for attempt in range(1, up.retries + 2):
            async with self._slots:
                answer, wait = await self._once(body, headers, ask.n)
            if not isinstance(answer, Failure):
                return Answer(*answer, attempts=attempt)
            timeouts += answer.status == 504
            if wait is None or timeouts > 1 or attempt > up.retries:
                tried = f" (asked {attempt} times)" if attempt > 1 else ""
                raise Failure(answer.status, answer.message + tried, answer.kind)
            self.retries += 1
            delay = min(30.0, up.backoff * 2 ** (attempt - 1)) * random.uniform(0.5, 1.0)
            await asyncio.sleep(max(delay, min(wait, 60.0)))
        raise AssertionError("unreachable")

    async def _once(self, body: bytes, headers: dict[str, str], n: int) -> tuple[Any, float | None]:
        """One attempt: ((choices, usage) | Failure, seconds to wait at least before the next, None: do not retry)."""
        import aiohttp

        url = self.upstream.base_url.rstrip("/") + "/chat/completions"
        try:
            # No redirects: they would turn the POST into a GET and carry the key elsewhere.
            async with self._session.post(url, data=body, headers=headers, allow_redirects=False) as response:
                raw = await _read(response)
                if response.status == 200:
                    try:
                        return parse_completion(raw, n), None
                    except ValueError as e:
                        return Failure(502, f"{url} answered garbage: {str(e)[:200]}", "upstream_error"), 0.0
                failure = Failure(response.status, _reason(url, response.status, raw), _kind(response.status))
                if response.status in _RETRIED or response.status >= 500:
                    return failure, _retry_after(response.headers.get("Retry-After"))
                if response.status < 400:  # a redirect or an empty 2xx: nothing that a scaffold should see as success
                    return Failure(502, failure.message, "upstream_error"), None
                return failure, None
        except aiohttp.ConnectionTimeoutError:
            return Failure(502, f"{url} cannot be reached: no connection in time", "upstream_error"), 0.0
        except TimeoutError:
            return Failure(504, f"{url} gave no reply within {self.upstream.timeout:g} s", "upstream_error"), 0.0
        except (aiohttp.ClientError, OSError) as e:
            return Failure(502, f"{url} cannot be reached: {e or type(e).__name__}", "upstream_error"), 0.0


async def _read(response: Any) -> bytes:
    raw = bytearray()
    async for part in response.content.iter_any():
        raw += part
        if len(raw) > _LONGEST_REPLY:
            raise OSError(f"the answer is longer than {_LONGEST_REPLY >> 20} MB")
    return bytes(raw)


def _kind(status: int) -> str:
    return {401: "authentication_error", 429: "rate_limit_error"}.get(
        status, "invalid_request_error" if status < 500 else "upstream_error"
    )


def _reason(url: str, status: int, raw: bytes) -> str:
    """The server's own words, where it gave any."""
    text = raw.decode("utf-8", "replace").strip()
    try:
        data = json.loads(text)
        error = data.get("error", data.get("detail", text)) if isinstance(data, dict) else text
        text = error.get("message", text) if isinstance(error, dict) else error
    except (ValueError, RecursionError):
        pass
    return f"{url} answered {status}: {str(text)[:500]}"


def _retry_after(value: str | None) -> float:
    try:
        return max(0.0, float(value or 0))
    except ValueError:  # an HTTP date: rare, and the back-off does
        return 0.0
