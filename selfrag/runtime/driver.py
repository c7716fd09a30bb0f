"""The driver: runs any number of decoders on one engine and one retriever; no question waits for another.

Requests of all live questions, of this and of other calls in any thread, share the engine's batches
(`selfrag.runtime.sessions`); searches and services, such as judges on other models, run beside it. `finish` runs any
other steps, such as a judge called by itself.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any, TypeAlias, TypeGuard, TypeVar, cast

from retrieval.passage import Passage, Retriever
from selfrag.common.errors import UserError
from selfrag.decoding.answer import Answer, Segment
from selfrag.decoding.tree import Abort, Commit, Decoder, Race
from selfrag.reflection.requests import (
    Arrived,
    External,
    ExternalResult,
    Failed,
    Generate,
    Generated,
    Result,
    Retrieve,
    Retrieved,
    Service,
    Steps,
    has_ended,
)
from selfrag.runtime.sessions import Finished, Serving, Session, Ticket, open_session, session

T = TypeVar("T")


@dataclass(slots=True)
class _Line:
    """Requests of one kind that wait, and those that are being served, each with its task and position there."""

    serve: Callable[[Sequence[Any]], Sequence[Result]]
    timeout: float  # seconds for a batch
    name: str  # for messages
    wanted: list[tuple[_Task, int, Any]] = field(default_factory=list)
    served: list[tuple[_Task, int, Any]] = field(default_factory=list)
    future: Future[Sequence[Result]] | None = None
    deadline: float = 0.0  # of the batch that is being served, or of those that wait behind one that hangs


class _Batcher:
    """Serves searches and services beside the engine, one batch of each kind at a time."""

    def __init__(self, retriever: Retriever | None, ring: Callable[[], None]) -> None:
        """Start nothing yet; `ring` is called, in some thread, whenever results have arrived."""
        self._ring = ring
        self._search = _Line(partial(search, retriever), math.inf, "the retriever")
        self._lines: dict[Service, _Line] = {}

    def ask(self, task: _Task, position: int, request: Retrieve | External) -> None:
        """Queue a request."""
        line = self._search
        if isinstance(request, External):
            new = _Line(partial(call_service, request.service), request.timeout, request.name)
            line = self._lines.setdefault(request.service, new)
        line.wanted.append((task, position, request))

    def start(self) -> None:
        """Send the waiting requests."""
        for line in (self._search, *self._lines.values()):
            if line.wanted and line.future is None:
                line.served, line.wanted = line.wanted, []
                line.deadline = time.monotonic() + line.timeout
                line.future = _in_thread(partial(line.serve, [request for *_, request in line.served]))
                line.future.add_done_callback(lambda _: self._ring())

    def collect(self) -> Iterator[tuple[_Task, int, Result]]:
        """Yield what is done, and what took too long, with its task and position."""
        for line in (self._search, *self._lines.values()):
            if line.future is not None and line.future.done():
                results, line.future = line.future.result(), None
                for (task, position, _), result in zip(line.served, results, strict=False):
                    yield task, position, result
            elif line.future is not None and time.monotonic() > line.deadline:
                # Nothing can stop the thread. Until it ends, requests behind it fail as well, after their own time.
                late, line.served, line.wanted = [*line.served, *line.wanted], [], []
                line.deadline = time.monotonic() + line.timeout
                for task, position, _ in late:
                    yield task, position, Failed(f"{line.name} gave no answer within {line.timeout:g} s")


def _in_thread(work: Callable[[], T]) -> Future[T]:
    """Run in a thread of its own that no interpreter waits for at its end, since a service may hang."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # raised where the result is read
            future.set_exception(error)

    threading.Thread(target=run, name="selfrag-service", daemon=True).start()
    return future


def call_service(service: Service, requests: Sequence[External]) -> Sequence[Result]:
    """Serve the requests of many decoders by one call. If that fails, each is served alone, with its own error."""
    values = _together(service, [request.payload for request in requests], requests[0].name, "requests")
    return [value if isinstance(value, Failed) else ExternalResult(value) for value in values]


def search(retriever: Retriever | None, requests: Sequence[Retrieve]) -> Sequence[Result]:
    """Serve the queries of many decoders by one search. If that fails, each runs alone, with its own error."""
    if retriever is None:
        return [Failed("no retriever: pass retriever=.. or evidence=.., on the command line --index DIR")] * len(
            requests
        )
    most = max(request.k for request in requests)
    found = _together(lambda queries: retriever(queries, most), [r.query for r in requests], "the retriever", "queries")
    return [_retrieved(passages, request.k) for passages, request in zip(found, requests, strict=True)]


def _together(serve: Callable[[list[Any]], Any], given: list[Any], name: str, what: str) -> list[Any]:
    """Returns a value or `Failed` for each item, from one call. If that call fails, each item gets its own call.

    A user's callable may raise any exception, and one question must not make the others fail.
    """
    try:
        found = serve(given)
    except UserError as error:
        reason = str(error)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    else:
        if not _is_list(found):
            reason = f"{name} returned {type(found).__name__}, not a list for its {what}"
        elif len(found) != len(given):
            reason = f"{name} answered {len(found)} of {len(given)} {what}"
        else:
            return list(found)
    return [Failed(reason)] if len(given) == 1 else [_together(serve, [one], name, what)[0] for one in given]


def _retrieved(passages: object, k: int) -> Result:
    if isinstance(passages, Failed):
        return passages
    if not _is_list(passages):
        return Failed(f"the retriever returned {type(passages).__name__} for a query, not a list of passages")
    for passage in passages:
        if not isinstance(passage, Passage):
            return Failed(f"the retriever returned {type(passage).__name__} where a Passage was expected")
    return Retrieved(tuple(passages[:k]))


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


class SharedRetriever:
    """A retriever for several threads. It runs one search at a time, for all queries that arrived meanwhile."""

    def __init__(self, retriever: Retriever) -> None:
        self.retriever = retriever
        self._searching, self._changing = Lock(), Lock()
        self._waiting: list[tuple[Sequence[str], int, Future[Sequence[Sequence[Passage]]]]] = []

    def __call__(self, queries: Sequence[str], k: int) -> Sequence[Sequence[Passage]]:
        """Up to `k` passages for each query, best first; raises what the retriever raises."""
        mine: Future[Sequence[Sequence[Passage]]] = Future()
        with self._changing:
            self._waiting.append((queries, k, mine))
        with self._searching:
            with self._changing:
                together, self._waiting = self._waiting, []
            if len(together) == 1 or not self._serve_together(together):
                for queries_alone, k_alone, future in together:
                    try:
                        future.set_result(self.retriever(queries_alone, k_alone))
                    except BaseException as error:  # belongs to the thread that asked
                        future.set_exception(error)
        return mine.result()

    def _serve_together(
        self, together: Sequence[tuple[Sequence[str], int, Future[Sequence[Sequence[Passage]]]]]
    ) -> bool:
        """Run one search for all; False if it failed, because the failing query is unknown."""
        every = [query for queries, *_ in together for query in queries]
        try:
            found = self.retriever(every, max((k for _, k, _ in together), default=0)) if every else []
        except Exception:
            return False
        if not _is_list(found) or len(found) != len(every) or not all(map(_is_list, found)):
            return False
        rest = iter(found)
        for queries, k, future in together:
            future.set_result([next(rest)[:k] for _ in queries])
        return True


@dataclass(frozen=True, slots=True)
class Committed:
    """A segment of question `index` is final."""

    index: int
    segment: Segment


@dataclass(frozen=True, slots=True)
class Answered:
    """Question `index` is done."""

    index: int
    answer: Any  # an `Answer` of a decoder; of other steps what they return


@dataclass(frozen=True, slots=True)
class Broken:
    """Question `index` could not be answered; the others continue."""

    index: int
    error: UserError


Event: TypeAlias = Committed | Answered | Broken


@dataclass(slots=True)
class _Task:
    """One decoder and the batch it waits for."""

    index: int
    decoder: Decoder
    started: float
    results: list[Result | None] = field(default_factory=list)
    missing: int = 0
    race: dict[int, Ticket] | None = None  # position to ticket of what still runs, if it waits for news of a race

    def fill(self, position: int, result: Result) -> bool:
        """Store a result; whether the batch is complete."""
        self.results[position] = result
        self.missing -= 1
        return self.missing == 0


MAX_LIVE = 256
"""Questions of one call in flight, unless told otherwise."""


@dataclass(slots=True)
class _Driver:
    engine: Session
    batcher: _Batcher
    running: dict[int, tuple[_Task, int]] = field(default_factory=dict)  # ticket -> task, position in its batch
    live: int = 0  # questions in flight

    def advance(self, task: _Task, results: list[Result] | None) -> Iterator[Event]:
        """Send results into a decoder and queue what it asks for next, until it waits or ends."""
        while True:
            try:
                item = next(task.decoder) if results is None else task.decoder.send(results)
            except StopIteration as stop:
                self.live -= 1
                value = stop.value
                if isinstance(value, Answer):
                    value = value.with_seconds(time.perf_counter() - task.started)
                yield Answered(task.index, value)
                return
            except UserError as error:
                self.live -= 1
                yield Broken(task.index, error)
                return
            if isinstance(item, Commit):
                yield Committed(task.index, item.segment)
                results = None
                continue
            if isinstance(item, Abort) and task.race is not None:
                self._give_up([task.race.pop(position) for position in sorted(item.positions)])
                if task.race:
                    return
            if isinstance(item, Abort) or not item:
                results = []
                continue
            if isinstance(item, Race):
                task.race = {i: self._submit(task, i, request) for i, request in enumerate(item.requests)}
                return
            task.race = None
            task.results, task.missing = [None] * len(item), len(item)
            for position, request in enumerate(item):
                if isinstance(request, Generate):
                    self._submit(task, position, request)
                else:
                    self.batcher.ask(task, position, request)
            return

    def _submit(self, task: _Task, position: int, request: Generate) -> Ticket:
        ticket = self.engine.submit(request)
        self.running[ticket] = (task, position)
        return ticket

    def _give_up(self, tickets: Sequence[Ticket]) -> None:
        self.engine.abort(tickets, wait=False)
        for ticket in tickets:
            del self.running[ticket]

    def deliver(self, arrived: Sequence[tuple[_Task, int, Result]]) -> Iterator[Event]:
        """Hand results to their tasks, and advance the tasks that race, or miss nothing any more."""
        news: dict[int, tuple[_Task, list[Result]]] = {}
        for task, position, result in arrived:
            if task.race is not None and isinstance(result, Generated | Failed):
                news.setdefault(task.index, (task, []))[1].append(Arrived(position, result))
            elif task.fill(position, result):
                yield from self.advance(task, [r for r in task.results if r is not None])
        for task, results in news.values():
            yield from self.advance(task, results)

    def _served(self, ticket: Ticket, result: Generated | Failed) -> tuple[_Task, int, Result]:
        task, position = self.running[ticket]
        if has_ended(result):
            del self.running[ticket]
            if task.race is not None:
                del task.race[position]
        return task, position, result

    def poll(self) -> Iterator[Event | None]:
        """Do one round: send what is asked, deliver what has arrived; None if nothing has."""
        self.batcher.start()
        arrived = [self._served(ticket, result) for ticket, result in self.engine.step()]
        arrived += self.batcher.collect()
        if not arrived:
            yield None
        yield from self.deliver(arrived)

    def events(self, decoders: Iterable[Decoder], max_live: int) -> Generator[Event | None, None, None]:
        """Everything that happens; None where there is nothing to do until something arrives."""
        waiting, more = enumerate(decoders), True
        while more or self.live:
            while more and self.live < max_live:
                fresh = next(waiting, None)
                more = fresh is not None
                if fresh is not None:
                    self.live += 1
                    yield from self.advance(_Task(*fresh, time.perf_counter()), None)
            if self.live:
                yield from self.poll()


def drive(
    decoders: Iterable[Decoder], engine: Serving | None, retriever: Retriever | None, *, max_live: int = MAX_LIVE
) -> Iterator[Event]:
    """Run decoders to their end. Leaving early aborts what is still running.

    Args:
        decoders: started lazily, at most `max_live` at a time; the position of each is its index in events.
        engine: serves `Generate`; other threads may drive it at the same time. None if nothing is generated.
        retriever: serves `Retrieve`; None if the decoders never search.
        max_live: questions in flight, which bounds memory.
    """
    bell = threading.Event()
    with session(engine or _NO_ENGINE, bell.set) as own:
        for event in _Driver(own, _Batcher(retriever, bell.set)).events(decoders, max_live):
            if event is not None:
                yield event
                continue
            bell.wait(1.0)  # no longer: Windows hears Ctrl-C between waits only, and services have time limits
            bell.clear()


async def adrive(
    decoders: Iterable[Decoder], engine: Serving, retriever: Retriever | None
) -> AsyncGenerator[Event, None]:
    """`drive` for an event loop, which is free while the engine works. Cancelling aborts what is still running."""
    bell, loop = asyncio.Event(), asyncio.get_running_loop()

    def ring() -> None:
        with suppress(RuntimeError):  # the loop was closed before the engine came back
            loop.call_soon_threadsafe(bell.set)

    own = open_session(engine, ring)
    try:
        for event in _Driver(own, _Batcher(retriever, ring)).events(decoders, MAX_LIVE):
            if event is not None:
                yield event
                continue
            with suppress(TimeoutError):
                await asyncio.wait_for(bell.wait(), 1.0)
            bell.clear()
    finally:
        own.close(wait=False)


class _NoEngine:
    """Stands where steps generate nothing, such as those of a function."""

    def submit(self, request: Generate) -> Ticket:
        raise UserError("these steps generate text, and there is no engine; give engine=..")

    def step(self) -> Sequence[Finished]:
        return []

    def abort(self, tickets: Iterable[Ticket]) -> None:
        """Nothing runs."""


_NO_ENGINE = _NoEngine()


def finish(steps: Steps[T], engine: Serving | None = None, retriever: Retriever | None = None) -> T:
    """Run any steps to their end, and return what they return.

    Raises:
        UserError: the steps raised it.
        EngineError: the engine died.
    """
    (end,) = drive(cast("list[Decoder]", [steps]), engine, retriever)
    if isinstance(end, Broken):
        raise end.error
    return cast(T, cast("Answered", end).answer)
