"""A scripted model endpoint behind a true HTTP port, and a plain way to post to one."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any


def completion(*texts: str, **message: Any) -> dict[str, Any]:
    """A chat completion as a server sends it."""
    choices = [{"index": i, "message": {"role": "assistant", "content": t, **message}, "finish_reason": "stop"}
               for i, t in enumerate(texts)]  # fmt: skip
    return {"id": "x", "object": "chat.completion", "choices": choices,
            "usage": {"prompt_tokens": 7, "completion_tokens": 3 * len(texts), "total_tokens": 7 + 3 * len(texts)}}


class ScriptedUpstream:
    """Answers request k with `script(k, body)`: a dict (JSON, 200), (status, dict|bytes[, headers]), or a number of
    seconds to hang for. Remembers every body and how many were in flight at once."""

    def __init__(self) -> None:
        self.script: Callable[[int, dict[str, Any]], Any] = lambda k, body: completion(f"reply {k}")
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.delay = 0.0
        self.hold: Callable[[], bool] = lambda: False  # no request is answered while it is true
        self.in_flight = self.most_in_flight = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    async def _answer(self, request: Any) -> Any:
        from aiohttp import web

        k = len(self.bodies)
        self.bodies.append(await request.json())
        self.headers.append(dict(request.headers))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(self.delay)
            while self.hold():
                await asyncio.sleep(0.01)
            answer = self.script(k, self.bodies[k])
            if isinstance(answer, int | float):
                await asyncio.sleep(answer)
                answer = completion("late")
            if answer is None:  # hang up in the middle
                request.transport.abort()
                return web.Response()
            status, body, *headers = answer if isinstance(answer, tuple) else (200, answer)
            raw = body if isinstance(body, bytes) else json.dumps(body).encode()
            return web.Response(status=status, body=raw, headers=headers[0] if headers else None)
        finally:
            self.in_flight -= 1

    async def _start(self) -> None:
        from aiohttp import web

        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/chat/completions", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"

    def __enter__(self) -> ScriptedUpstream:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(60)
        return self

    def __exit__(self, *exc: object) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)


def until(condition: Callable[[], object], seconds: float = 60) -> None:
    """Wait until `condition()` is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.01)


def post(url: str, body: Any, timeout: float = 120) -> tuple[int, dict[str, Any], dict[str, str]]:
    """(status, JSON, headers) of one plain POST; `body`: JSON value or raw bytes."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, raw, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, json.load(answer), dict(answer.headers)
    except urllib.error.HTTPError as e:
        return e.code, json.load(e), dict(e.headers)
