"""A model behind somebody's OpenAI-compatible endpoint, asked with time-outs, retries and a limit on what is in flight.

Several endpoints may serve one model: a search keeps to one of them (its prompts share their heads, which that server
has cached), unless that one is down or much busier than the others.

Retried: no connection, a torn answer, an answer that is no chat completion, HTTP 408, 409, 425, 429 and 5xx; with
exponential back-off and jitter, or as long as the server's Retry-After says. A time-out is retried once only, since a
server that hung for `timeout` seconds mostly hangs again. Everything else (a prompt that is too long, a wrong key) is
the answer, and goes back to the scaffold as the server gave it.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
import zlib
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from eft.errors import UsageError
from eft.mutators.budget import Budget
from eft.mutators.wire import Ask, Choice, Failure, parse_completion

SAMPLING = {"temperature": 0.7, "top_p": 0.95}  # the paper's (EFT, arXiv 2606.29082)
_RETRIED = {408, 409, 425, 429}
_CAPS = ("max_tokens", "max_completion_tokens")
_LONGEST_REPLY = 64 * 2**20  # bytes; a server that sends more is broken
_UNEVEN = 4  # more requests than the idlest endpoint has, before a search leaves its own
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}


@dataclass(frozen=True)
class Upstream:
    """Where a mutator's model answers, and how it is asked.

    base_url: up to and including /v1; several: replicas of one model. model: the name sent (a LoRA adapter's where the
    server has it loaded), None passes the scaffold's own on. timeout: seconds for one attempt. retries: further
    attempts. concurrency: requests in flight at once at each endpoint. requests_per_minute: no more than these are
    sent, evenly spaced. defaults: parameters that hold where the scaffold sends none; force: parameters that always
    hold. max_tokens: cap on a reply's length in tokens, whatever was asked. vary_seed: add the occurrence number to the
    scaffold's seed, so that asking the same again is another draw. identity: what tells one set of weights under a
    model name from the next (a fingerprint); part of the replay key. backoff: seconds before the first retry; doubles,
    up to 30. budget: what all searches together may use up.
    Raises UsageError where a base URL is not an http(s) URL.
    """

    base_url: str | tuple[str, ...]
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
    requests_per_minute: float | None = None
    budget: Budget = field(default_factory=Budget)

    def __post_init__(self) -> None:
        for url in self.urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise UsageError("an upstream is named by its http(s) base URL", where=url,
                                 way_out="for example http://127.0.0.1:8000/v1")  # fmt: skip
        if not self.urls or len(set(self.urls)) < len(self.urls):
            raise UsageError("an upstream needs one base URL or several different ones", where=", ".join(self.urls))

    @property
    def urls(self) -> tuple[str, ...]:
        """The endpoints, without a slash at the end."""
        found = (self.base_url,) if isinstance(self.base_url, str) else tuple(self.base_url)
        return tuple(url.rstrip("/") for url in found)

    @property
    def local(self) -> bool:
        """True for servers on this machine: never reached through a proxy."""
        return all(urlsplit(url).hostname in _LOOPBACK for url in self.urls)

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


@dataclass
class Endpoint:
    """One server of an upstream. `rests_until`: on the monotonic clock; a server that failed is left alone till then."""

    url: str
    in_flight: int = 0
    rests_until: float = 0.0
    failures: int = 0  # in a row


@dataclass(frozen=True)
class Answer:
    """What came back. `attempts`: how often it was asked."""

    choices: list[Choice]
    usage: dict[str, int] | None
    attempts: int


class Line:
    """The open line to one upstream: its session, its endpoints and their limits. Made inside the event loop."""

    def __init__(self, upstream: Upstream) -> None:
        import aiohttp

        self.upstream = upstream
        self.endpoints = [Endpoint(url) for url in upstream.urls]
        self.retries = 0  # of all requests so far, for /stats
        self._slots = asyncio.Semaphore(upstream.concurrency * len(self.endpoints))
        self._next = 0.0  # when the next request may be sent, on the monotonic clock
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=upstream.timeout, sock_connect=min(30.0, upstream.timeout)),
            trust_env=not upstream.local,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    async def ask(
        self, ask: Ask, params: dict[str, Any], authorization: str | None = None, search: str = ""
    ) -> Answer:
        """The upstream's answer. Raises Failure once retrying is of no use; its message says how often was tried.

        A server that gives fewer than the `ask.n` choices at a time (many know only one) is asked for the others again,
        with another seed.
        """
        answer = await self._ask(ask, params, ask.n, authorization, search)
        while len(answer.choices) < ask.n:
            got = len(answer.choices)
            more = {**params, "n": ask.n - got}
            if isinstance(params.get("seed"), int):
                more["seed"] = params["seed"] + got
            rest = await self._ask(ask, more, ask.n - got, authorization, search)
            usage = answer.usage and rest.usage and {k: v + rest.usage[k] for k, v in answer.usage.items()}
            answer = Answer([*answer.choices, *rest.choices], usage, answer.attempts + rest.attempts)
        return answer

    async def _ask(
        self, ask: Ask, params: dict[str, Any], n: int, authorization: str | None, search: str
    ) -> Answer:
        """One answer with 1 to `n` choices, after as many attempts as it takes."""
        up = self.upstream
        body = json.dumps({**params, "model": up.model or ask.model, "messages": ask.messages}).encode("ascii")
        headers = {"Content-Type": "application/json"}
        if up.api_key or authorization:
            headers["Authorization"] = f"Bearer {up.api_key}" if up.api_key else str(authorization)
        timeouts = 0
        for attempt in range(1, up.retries + 2):
            await self._turn()
            async with self._slots:
                endpoint = self._choose(search)
                endpoint.in_flight += 1
                try:
                    answer, wait = await self._once(endpoint.url, body, headers, n)
                finally:
                    endpoint.in_flight -= 1
            if not isinstance(answer, Failure):
                endpoint.failures, endpoint.rests_until = 0, 0.0
                return Answer(*answer, attempts=attempt)
            timeouts += answer.status == 504
            if wait is None or timeouts > 1 or attempt > up.retries:
                tried = f" (asked {attempt} times)" if attempt > 1 else ""
                raise Failure(answer.status, answer.message + tried, answer.kind)
            self.retries += 1
            endpoint.failures += 1
            delay = min(30.0, up.backoff * 2 ** (max(attempt, endpoint.failures) - 1)) * random.uniform(0.5, 1.0)
            delay = max(delay, min(wait, 60.0))
            endpoint.rests_until = max(endpoint.rests_until, time.monotonic() + delay)
            await asyncio.sleep(max(0.0, min(e.rests_until for e in self.endpoints) - time.monotonic()))
        raise AssertionError("unreachable")

    async def _turn(self) -> None:
        """Wait until the rate allows one more request."""
        if self.upstream.requests_per_minute is None:
            return
        now = time.monotonic()
        at = max(now, self._next)
        self._next = at + 60.0 / self.upstream.requests_per_minute
        await asyncio.sleep(at - now)

    def _choose(self, search: str) -> Endpoint:
        """The search's own endpoint, or the idlest one where that one rests or is much busier."""
        now = time.monotonic()
        awake = [e for e in self.endpoints if e.rests_until <= now]
        if not awake:
            return min(self.endpoints, key=lambda e: e.rests_until)
        own = self.endpoints[zlib.crc32(search.encode()) % len(self.endpoints)]
        idlest = min(awake, key=lambda e: e.in_flight)
        return own if own in awake and own.in_flight <= idlest.in_flight + _UNEVEN else idlest

    async def _once(self, base: str, body: bytes, headers: dict[str, str], n: int) -> tuple[Any, float | None]:
        """One attempt: ((choices, usage) | Failure, seconds to wait at least before the next, None: do not retry)."""
        import aiohttp

        url = f"{base}/chat/completions"
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
