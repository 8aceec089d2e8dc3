"""What the gateway costs: requests through it against the same requests sent straight to a scripted upstream.

    python benchmarks/gateway.py [requests] [rounds]

Prints the median seconds of both and their ratio, one request after another and eight at a time. The upstream answers at
once, so the ratio is the worst case: a model that takes a second makes it vanish.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
from aiohttp import web

from eft.mutators.gateway import Gateway, Upstream

REPLY = {"id": "x", "object": "chat.completion", "created": 0, "model": "scripted",
         "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "x = 1"}}],
         "usage": {"prompt_tokens": 300, "completion_tokens": 40, "total_tokens": 340}}  # fmt: skip


async def answer(request: web.Request) -> web.Response:
    await request.read()
    return web.json_response(REPLY)


async def ask(session: aiohttp.ClientSession, urls: list[str], tag: str, at_once: int) -> float:
    """Seconds for one request to each of `urls`, `at_once` of them in flight."""
    gate = asyncio.Semaphore(at_once)

    async def one(number: int, url: str) -> None:
        body = {"model": "scripted", "messages": [{"role": "user", "content": f"{tag} {number} " + "x" * 1200}]}
        async with gate, session.post(f"{url}/chat/completions", json=body) as reply:
            assert reply.status == 200, await reply.text()
            await reply.read()

    started = time.perf_counter()
    await asyncio.gather(*(one(n, url) for n, url in enumerate(urls)))
    return time.perf_counter() - started


async def main(requests: int, rounds: int) -> None:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    direct = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    with tempfile.TemporaryDirectory() as journal:
        async with Gateway(Path(journal), {"m": Upstream(direct)}) as gateway, aiohttp.ClientSession() as session:
            for at_once in (1, 8):
                plain, through = [], []
                for r in range(rounds):  # interleaved, so that a noisy minute hits both
                    plain.append(await ask(session, [direct] * requests, f"{at_once} {r}", at_once))
                    urls = [gateway.url(f"s{n % 8}", "m") for n in range(requests)]
                    through.append(await ask(session, urls, f"{at_once} {r}", at_once))
                a, b = statistics.median(plain) / requests * 1e3, statistics.median(through) / requests * 1e3
                print(f"{at_once} in flight: direct {a:.2f} ms, gateway {b:.2f} ms a request, ratio {b / a:.1f}")
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main(*(int(a) for a in [*sys.argv[1:], *["200", "5"][len(sys.argv) - 1 :]])))
