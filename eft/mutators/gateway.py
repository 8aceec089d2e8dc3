"""The gateway: a recording, OpenAI-compatible proxy on loopback between any scaffold and any mutator.

    http://127.0.0.1:PORT/s/<search>/<mutator>/v1        base URL for a scaffold: one path per search and mutator
    POST http://127.0.0.1:PORT/s/<search>/restart        the scaffold starts this search over, the gateway did not
    http://127.0.0.1:PORT/health, /stats                 is it up; what went through

Every reply, failure and reasoning text is in the journal before the scaffold sees it. A search that starts over with
the same journal is answered from it and pays for nothing twice; failures are asked again. Mutators without a model
(see `reply.py`) run in threads, one call at a time per search, behind the same path.

Honest limits: a streaming request is answered in one piece, once the reply is whole and journaled. A mutator without a
model has no time-out here. Nothing is encrypted or authenticated: keep it on loopback.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from eft.errors import EftError, UsageError, nearest
from eft.mutators import wire
from eft.mutators.journal import Journal
from eft.mutators.recorder import Recorder, Source
from eft.mutators.upstream import Upstream
from eft.mutators.wire import Failure

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
_NAME_RULE = "letters, digits, '.', '_' and '-', at most 128, no '.' in front"
_LONGEST_REQUEST = 16 * 2**20  # bytes; a prompt of 32k tokens has about 0.2 MB


class Gateway:
    """Serves `mutators` (name -> Upstream, or a factory that makes a search's own in-process mutator) over HTTP.

    journal: folder of the journals, one gateway at a time. port 0: any free one. threads: in-process mutators at work
    at once. Use `async with Gateway(...) as g`, or `with running(Gateway(...)) as g` where nothing is asynchronous.
    """

    def __init__(self, journal: Path, mutators: Mapping[str, Source], *, host: str = "127.0.0.1", port: int = 0,
                 threads: int = 4) -> None:  # fmt: skip
        bad = [name for name in mutators if not _NAME.fullmatch(name)]
        if bad or not mutators:
            raise UsageError("a gateway needs mutators, each with a name", where=bad or None, why=_NAME_RULE)
        self.journal, self.mutators = Journal(journal), dict(mutators)
        self.host, self.port, self.threads = host, port, threads
        self.recorder: Recorder | None = None
        self._runner: Any = None

    @property
    def origin(self) -> str:
        """http://HOST:PORT, valid once started."""
        return f"http://{self.host}:{self.port}"

    def url(self, search: str, mutator: str) -> str:
        """The base URL that a scaffold of this search is given. Raises UsageError for names that no path can carry."""
        if not _NAME.fullmatch(search):
            raise UsageError(f"'{search}' cannot name a search", why=_NAME_RULE)
        if mutator not in self.mutators:
            raise UsageError(f"the gateway serves no mutator '{mutator}'", way_out=nearest(mutator, self.mutators))
        return f"{self.origin}/s/{search}/{mutator}/v1"

    def stats(self) -> dict[str, Any]:
        """What went through since the start: totals, by search and mutator, and retries by upstream."""
        return self.recorder.stats() if self.recorder else {}

    async def start(self) -> None:
        """Lock the journal and listen. Raises EftError: journal or port taken, address not ours."""
        from aiohttp import web

        self.journal.open()
        try:
            self.recorder = Recorder(self.journal, self.mutators, self.threads)
            await asyncio.to_thread(self.recorder.load)
            guard = web.middleware(lambda request, handler: self._guard(request, handler))
            app = web.Application(client_max_size=_LONGEST_REQUEST, middlewares=[guard])
            app.router.add_post("/s/{search}/{mutator}/v1/chat/completions", self._chat)
            app.router.add_get("/s/{search}/{mutator}/v1/models", self._models)
            app.router.add_post("/s/{search}/restart", self._restart)
            app.router.add_get("/health", self._health)
            app.router.add_get("/stats", self._stats)
            # A handler is cancelled when its scaffold hangs up; the asking goes on in a task of its own.
            self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=2.0)
            await self._runner.setup()
            try:
                await web.TCPSite(self._runner, self.host, self.port).start()
            except (OSError, OverflowError) as e:
                why = os.strerror(e.errno) if isinstance(e, OSError) and e.errno else str(e)
                raise EftError(f"the gateway cannot listen on {self.host}:{self.port}", why=why,
                               way_out="give another --port; 0 takes any free one") from None  # fmt: skip
            self.port = self._runner.addresses[0][1]
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop listening; requests still being asked are journaled as failures."""
        if self.recorder is not None:
            await self.recorder.close()
        if self._runner is not None:
            await self._runner.cleanup()
        self.journal.close()

    async def __aenter__(self) -> Gateway:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def _guard(self, request: Any, handler: Any) -> Any:
        """Middleware: every failure becomes an OpenAI-style error. A bug of ours too, since other searches go on."""
        from aiohttp import web

        try:
            return await handler(request)
        except Failure as e:
            failure = e
        except web.HTTPRequestEntityTooLarge:
            failure = Failure(413, f"the request is larger than {_LONGEST_REQUEST >> 20} MB")
        except web.HTTPException as e:
            failure = Failure(e.status, f"{e.reason}: {request.method} {request.path[:200]}; scaffolds are served at "
                              "/s/<search>/<mutator>/v1/chat/completions")  # fmt: skip
        except ConnectionResetError:  # the scaffold has hung up while its reply was sent: nobody is left to answer
            raise
        except EftError as e:  # the journal: nothing is answered that is not recorded
            failure = Failure(507, str(e), "journal_error")
            print(f"gateway: {e}", file=sys.stderr)
        except Exception as e:
            failure = Failure(500, f"the gateway failed: {type(e).__name__}: {e}", "gateway_error")
            print(f"gateway: {request.path[:200]}: {type(e).__name__}: {e}", file=sys.stderr)
        # The gateway has retried already: the OpenAI client must not do so once more on its own.
        return web.json_response(failure.body(), status=failure.status, headers={"x-should-retry": "false"})

    def _names(self, request: Any) -> tuple[str, str]:
        """(search, mutator) of a request's path. Raises Failure where they cannot be served."""
        search, mutator = request.match_info["search"], request.match_info["mutator"]
        if not _NAME.fullmatch(search):
            raise Failure(400, f"a search is named by {_NAME_RULE}")
        if mutator not in self.mutators:
            raise Failure(404, f"no mutator '{mutator[:80]}' here; valid: {', '.join(sorted(self.mutators))}")
        return search, mutator

    async def _chat(self, request: Any) -> Any:
        from aiohttp import web

        name, mutator = self._names(request)
        search = await self.recorder.open(name)
        with search.counting(mutator) as counts:
            try:
                ask = wire.parse_request(await request.read())
                if not isinstance(self.mutators[mutator], Upstream):
                    wire.plain_messages(ask.messages)
            except (Failure, web.HTTPException):
                counts.refused += 1
                raise
            authorization = request.headers.get("Authorization")
            async with self.recorder.answering(search, mutator, ask, authorization) as (records, replayed):
                headers = {"x-eft-replayed": str(int(replayed))}
                if ask.stream:
                    headers |= {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
                    response = web.Response(body=wire.events(records, ask.stream_usage), headers=headers)
                else:
                    response = web.json_response(wire.completion(records), headers=headers)
                # Sent in here, so that a scaffold that has hung up counts as not served.
                await response.prepare(request)
                await response.write_eof()
        return response

    async def _restart(self, request: Any) -> Any:
        from aiohttp import web

        name = request.match_info["search"]
        if not _NAME.fullmatch(name):
            raise Failure(400, f"a search is named by {_NAME_RULE}")
        await self.recorder.restart(name)
        return web.json_response({"search": name})

    async def _models(self, request: Any) -> Any:
        from aiohttp import web

        _, name = self._names(request)
        source = self.mutators[name]
        model = (source.model if isinstance(source, Upstream) else None) or name
        entry = {"id": model, "object": "model", "created": 0, "owned_by": "eft"}
        return web.json_response({"object": "list", "data": [entry]})

    async def _health(self, request: Any) -> Any:
        from aiohttp import web

        return web.json_response({"status": "ok", "mutators": sorted(self.mutators)})

    async def _stats(self, request: Any) -> Any:
        from aiohttp import web

        return web.json_response(self.stats())


@contextlib.contextmanager
def running(gateway: Gateway) -> Iterator[Gateway]:
    """Run a gateway in a thread of its own while the block lasts. Raises what `Gateway.start` raises."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="gateway", daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(gateway.start(), loop).result()
        try:
            yield gateway
        finally:
            asyncio.run_coroutine_threadsafe(gateway.stop(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
