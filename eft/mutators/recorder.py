"""How a request becomes a recorded reply: from the journal where it was answered before, else from its mutator.

The heart of the gateway, without HTTP. A request is known by its replay key: mutator, weights, messages, parameters,
and its occurrence, that is how many equal requests of the same search had their reply delivered before. Only delivered
replies count, so a scaffold that asks again after a failure or after hanging up gets the reply that is its due, now
and in every later replay.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from eft.errors import EftError
from eft.mutators import journal as journals
from eft.mutators import wire
from eft.mutators.budget import Meter
from eft.mutators.journal import Journal, SearchJournal, digest, key_of
from eft.mutators.reply import Mutator, Reply
from eft.mutators.upstream import Line, Upstream
from eft.mutators.wire import Ask, Failure

Record = dict[str, Any]
Source = Upstream | Callable[[str], Mutator]


@dataclass
class Counts:
    """What went through one (search, mutator) since the gateway started. `seconds`: spent asking, retries included."""

    requests: int = 0
    answered: int = 0  # asked and answered
    replayed: int = 0  # answered from the journal
    failed: int = 0
    refused: int = 0  # the request itself was wrong; never asked, not journaled
    in_flight: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0


class Slots:
    """Occurrence numbers of one request, lowest first. One comes back when its reply was not delivered."""

    def __init__(self) -> None:
        self._next, self._free = 0, []

    def take(self) -> int:
        if self._free:
            return heapq.heappop(self._free)
        self._next += 1
        return self._next - 1

    def give_back(self, number: int) -> None:
        heapq.heappush(self._free, number)


@dataclass
class Search:
    """The state of one search while the gateway runs; what must outlive it is in the journal."""

    name: str
    journal: SearchJournal
    slots: dict[str, Slots] = field(default_factory=dict)
    running: dict[str, asyncio.Task] = field(default_factory=dict)  # replay key -> the asking
    mutators: dict[str, Mutator] = field(default_factory=dict)
    turns: dict[str, asyncio.Lock] = field(default_factory=dict)  # one call at a time per in-process mutator
    counts: dict[str, Counts] = field(default_factory=dict)

    @contextlib.contextmanager
    def counting(self, mutator: str) -> Iterator[Counts]:
        """Count one request of `mutator` in and out."""
        counts = self.counts.setdefault(mutator, Counts())
        counts.requests += 1
        counts.in_flight += 1
        try:
            yield counts
        finally:
            counts.in_flight -= 1


class Recorder:
    """Answers requests of many searches and journals each outcome. Lives inside one event loop.

    mutators: name -> Upstream, or a factory that makes a search's own in-process mutator from its name. threads:
    in-process mutators at work at once.
    """

    def __init__(self, journal: Journal, mutators: Mapping[str, Source], threads: int) -> None:
        self.journal, self.mutators = journal, dict(mutators)
        self._searches: dict[str, Search] = {}
        self._turnstile = asyncio.Semaphore(threads)
        self._lines = {n: Line(m) for n, m in self.mutators.items() if isinstance(m, Upstream)}
        self._meters = {n: Meter(n, m.budget) for n, m in self.mutators.items() if isinstance(m, Upstream)}
        self._writing: set[asyncio.Task | None] = set()  # answered, and on the way to the disk
        self._failed: set[str] = set()  # searches whose last write failed

    def load(self) -> None:
        """Count what the journals say was used up of the budgets. Reads them all: only where there is a budget."""
        meters = [m for m in self._meters.values() if m.budget.limited]
        for file in sorted(self.journal.folder.glob("*.jsonl")) if meters else ():
            for record in journals.read(file):
                for meter in meters:
                    meter.load(record)

    async def close(self) -> None:
        """End what is being asked (journaled as failures) and close the lines to the upstreams."""
        asking = [task for search in self._searches.values() for task in search.running.values()]
        for task in asking:
            if task not in self._writing:
                task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        for line in self._lines.values():
            await line.close()

    async def open(self, name: str) -> Search:
        """The search of this name; its journal is read on first use."""
        if name not in self._searches:
            journal = await asyncio.to_thread(self.journal.search, name)
            self._searches.setdefault(name, Search(name, journal))
        return self._searches[name]

    async def restart(self, name: str) -> None:
        """The scaffold of this search starts over: its requests are answered from the journal again, from the first."""
        (await self.open(name)).slots.clear()

    @contextlib.asynccontextmanager
    async def answering(
        self, search: Search, mutator: str, ask: Ask, authorization: str | None = None
    ) -> AsyncIterator[tuple[list[Record], bool]]:
        """The journal records that answer `ask` (one a choice), and whether they were there before it was asked.

        The reply counts as delivered when the block ends well; else the next equal request gets it.
        """
        source, counts = self.mutators[mutator], search.counts[mutator]
        remote = isinstance(source, Upstream)
        params = source.params(ask.params) if remote else ask.params
        identity = f"{source.model or ask.model}\0{source.identity}" if remote else ""
        request = digest(mutator, identity, ask.messages, params)
        slots = search.slots.setdefault(request, Slots())
        occurrence = slots.take()
        try:
            key = key_of(request, occurrence)
            if key not in search.running:
                stored = search.journal.lookup(key)
                if stored is not None:
                    counts.replayed += 1
                    yield stored, True
                    return
                sent = source.seeded(params, occurrence) if remote else params
                head = {"key": key, "occurrence": occurrence, "messages": ask.messages, "params": sent}
                task = asyncio.create_task(self._ask(search, mutator, ask, head, authorization))
                search.running[key] = task
                task.add_done_callback(lambda done: self._done(search, key, done))
            # Shielded: when the scaffold hangs up, the reply is still journaled, and its number is free for the next
            # equal request, which then waits for this same task or finds the reply in the journal.
            task = search.running[key]
            try:
                records = await asyncio.shield(task)
            except asyncio.CancelledError:
                if task.cancelled():
                    raise Failure(503, "the gateway is stopping", "gateway_error") from None
                raise
            yield records, False
        except BaseException:
            slots.give_back(occurrence)
            raise

    @staticmethod
    def _done(search: Search, key: str, task: asyncio.Task) -> None:
        search.running.pop(key, None)
        if not task.cancelled():
            task.exception()  # seen here, in case that nobody waits any more

    async def _ask(
        self, search: Search, mutator: str, ask: Ask, head: Record, authorization: str | None
    ) -> list[Record]:
        """Ask, journal, return the records. Raises Failure after journaling it."""
        started, counts = time.time(), search.counts[mutator]
        line = self._lines.get(mutator)
        model = (line.upstream.model or ask.model if line else None) or mutator
        base = {"kind": "reply", "search": search.name, "mutator": mutator, "model": model, **head, "asked": ask.params}
        calls: list[int] = []
        meter = self._meters.get(mutator)
        self._writable(search)  # before anything is paid for
        if meter:
            meter.reserve(ask.n)
        try:
            if line:
                answer = await line.ask(ask, head["params"], authorization, search.name)
                meter.add(len(answer.choices), answer.usage, time.time() - started)
                entries = [({**vars(c), "usage": None, "attempts": answer.attempts}, []) for c in answer.choices]
                entries[0][0]["usage"] = answer.usage  # of all choices together: once, so that sums are right
            else:
                entries = await self._propose(search, mutator, ask, calls)
            counts.answered += 1
        except (Failure, asyncio.CancelledError) as e:
            stopped = not isinstance(e, Failure)
            failure = Failure(503, "the gateway was stopped", "gateway_error") if stopped else e
            counts.failed += 1
            print(f"gateway: {search.name}/{mutator}: {failure.message}", file=sys.stderr)
            # A call that a stop cut short does not use its number up: the search goes on as if it had not been made.
            call = calls[-1] if calls and not stopped else None
            record = {**base, "time": time.time(), "seconds": round(time.time() - started, 3), "status": "error",
                      "http_status": failure.status, "content": "", "reasoning": None, "finish_reason": None,
                      "usage": None, "error": failure.message, "call": call}  # fmt: skip
            search.journal.add([(record, [])])  # in place, not in a thread: this task may be a cancelled one
            raise
        finally:
            counts.seconds = round(counts.seconds + time.time() - started, 3)
            if meter:
                meter.release(ask.n)
        now, complete = time.time(), []
        base |= {"time": now, "seconds": round(now - started, 3), "status": "ok", "http_status": 200, "error": None}
        tags = {k: base[k] for k in ("search", "mutator", "time", "messages")} | {"kind": "proposal"}
        for i, (reply, proposals) in enumerate(entries):
            record = {**base, **reply, "choice": i, "n": ask.n}
            complete.append((record, [{**p, **tags} for p in proposals]))
            for name, tokens in (reply["usage"] or {}).items():
                setattr(counts, name, getattr(counts, name) + tokens)
        this = asyncio.current_task()
        self._writing.add(this)
        try:
            await asyncio.to_thread(search.journal.add, complete)
        except EftError:
            self._failed.add(search.name)
            raise
        finally:
            self._writing.discard(this)
        return [record for record, _ in complete]

    def _writable(self, search: Search) -> None:
        """Raises EftError where a reply could not be recorded: it would be paid for and lost."""
        self.journal.check()
        if search.name in self._failed:
            search.journal.probe()
            self._failed.discard(search.name)

    async def _propose(
        self, search: Search, mutator: str, ask: Ask, calls: list[int]
    ) -> list[tuple[Record, list[Record]]]:
        """`ask.n` replies of an in-process mutator. Appends the call numbers that it uses to `calls`."""
        make, messages, entries = self.mutators[mutator], wire.plain_messages(ask.messages), []

        def work(call: int) -> Reply:
            if mutator not in search.mutators:
                search.mutators[mutator] = make(search.name)
            return search.mutators[mutator].propose(messages, call)

        async with search.turns.setdefault(mutator, asyncio.Lock()):
            for _ in range(ask.n):
                calls.append(search.journal.take_call(mutator))
                try:
                    async with self._turnstile:
                        reply = await _in_thread(work, calls[-1])
                    if not isinstance(reply, Reply) or not isinstance(reply.content, str):
                        raise TypeError(f"it returned {type(reply).__name__}, not a Reply")
                except Exception as e:
                    at = traceback.extract_tb(e.__traceback__)[-1]
                    why = f"{type(e).__name__}: {e} ({at.filename}, line {at.lineno})"
                    raise Failure(500, f"mutator '{mutator}' failed: {why}", "mutator_error") from e
                record = {"content": reply.content, "reasoning": wire.thoughts(reply.content, reply.reasoning),
                          "finish_reason": "stop", "usage": reply.usage, "call": calls[-1],
                          **({"about": reply.about} if reply.about is not None else {})}  # fmt: skip
                entries.append((record, list(reply.proposals)))
        return entries

    def stats(self) -> Record:
        """Counts by search and mutator, their totals, and retries by upstream, since the gateway started."""
        searches = {s.name: {m: vars(c).copy() for m, c in s.counts.items()} for s in self._searches.values()}
        rows = [c for s in searches.values() for c in s.values()]
        total = {k: round(sum(r[k] for r in rows), 3) for k in vars(Counts())}
        return {"total": total, "searches": searches, "retries": {n: line.retries for n, line in self._lines.items()},
                "used": {n: meter.stats() for n, meter in self._meters.items()}}  # fmt: skip


async def _in_thread(function: Callable[[int], Reply], call: int) -> Reply:
    """Run in a daemon thread of its own: one that hangs must neither starve the others nor hold up the exit."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Reply] = loop.create_future()

    def finish(setter: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            setter(value)

    def work() -> None:
        try:
            outcome = (future.set_result, function(call))
        except BaseException as e:  # a future takes neither StopIteration nor SystemExit and the like
            plain = isinstance(e, Exception) and not isinstance(e, StopIteration)
            outcome = (future.set_exception, e if plain else RuntimeError(repr(e)))
        with contextlib.suppress(RuntimeError):  # the loop may be gone
            loop.call_soon_threadsafe(finish, *outcome)

    threading.Thread(target=work, daemon=True, name="mutator").start()
    return await future
