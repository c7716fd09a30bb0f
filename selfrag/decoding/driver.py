"""The driver: pumps any number of decoders against one engine and one retriever, with no barrier between questions.

Each decoder advances the moment its own results are there. Requests of all live questions, of this and of other calls
in any thread, share the engine's batches (`selfrag.decoding.sessions`); searches and services run beside it
(`selfrag.decoding.batcher`). `drive` is for plain code, `adrive` for an event loop.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Container, Generator, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

from retrieval.errors import UserError
from retrieval.passage import Retriever
from selfrag.decoding.answer import Answer, Segment
from selfrag.decoding.batcher import BackgroundBatcher, Service
from selfrag.decoding.requests import Generate, Result
from selfrag.decoding.sessions import Serving, Session, open_session, session
from selfrag.decoding.tree import Commit, Decoder
from selfrag.errors import DecodingError


@dataclass(frozen=True, slots=True)
class Committed:
    """A segment of question `index` is final."""

    index: int
    segment: Segment


@dataclass(frozen=True, slots=True)
class Answered:
    """Question `index` is done."""

    index: int
    answer: Answer


@dataclass(frozen=True, slots=True)
class Broken:
    """Question `index` could not be answered; the others go on."""

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
    over: bool = False

    def fill(self, position: int, result: Result) -> bool:
        """Store a result; whether the batch is complete."""
        self.results[position] = result
        self.missing -= 1
        return self.missing == 0


MAX_LIVE = 256
"""Questions of one call in flight, unless told otherwise."""

PATIENCE = 0.1
"""Seconds to wait for results before looking again for cancelled questions."""


@dataclass(slots=True)
class _Driver:
    engine: Session
    batcher: BackgroundBatcher[_Task]
    running: dict[int, tuple[_Task, int]] = field(default_factory=dict)  # ticket -> task, position in its batch
    tasks: dict[int, _Task] = field(default_factory=dict)

    def start(self, index: int, decoder: Decoder) -> Iterator[Event]:
        """Begin a question."""
        self.tasks[index] = _Task(index, decoder, time.perf_counter())
        yield from self.advance(self.tasks[index], None)

    def end(self, task: _Task) -> None:
        """Forget a question that is done, broken or cancelled."""
        task.over = True
        del self.tasks[task.index]

    def cancel(self, indices: Container[int]) -> Iterator[Event]:
        """Abort the requests of cancelled questions; nobody waits for their results any more."""
        for task in [task for index, task in self.tasks.items() if index in indices]:
            self.engine.abort([ticket for ticket, (owner, _) in self.running.items() if owner is task])
            self.running = {ticket: item for ticket, item in self.running.items() if item[0] is not task}
            self.batcher.forget(task)
            self.end(task)
            task.decoder.close()
            yield Broken(task.index, DecodingError("cancelled"))

    def advance(self, task: _Task, results: list[Result] | None) -> Iterator[Event]:
        """Send results into a decoder and queue what it asks for next, until it waits or ends."""
        while True:
            try:
                item = next(task.decoder) if results is None else task.decoder.send(results)
            except StopIteration as stop:
                self.end(task)
                yield Answered(task.index, stop.value.with_seconds(time.perf_counter() - task.started))
                return
            except UserError as error:
                self.end(task)
                yield Broken(task.index, error)
                return
            if isinstance(item, Commit):
                yield Committed(task.index, item.segment)
                results = None
                continue
            if not item:
                results = []
                continue
            task.results, task.missing = [None] * len(item), len(item)
            for position, request in enumerate(item):
                if isinstance(request, Generate):
                    self.running[self.engine.submit(request)] = (task, position)
                else:
                    self.batcher.ask(task, position, request)
            return

    def deliver(self, task: _Task, position: int, result: Result) -> Iterator[Event]:
        """Hand a result to its task, and advance the task if nothing is missing any more."""
        if not task.over and task.fill(position, result):
            yield from self.advance(task, [r for r in task.results if r is not None])

    def poll(self) -> Iterator[Event | None]:
        """Do one round: send what is asked, deliver what has arrived; None if nothing has."""
        self.batcher.start()
        arrived: list[tuple[_Task, int, Result]] = [
            (*self.running.pop(ticket), result) for ticket, result in self.engine.step()
        ]
        arrived += [(*place, result) for place, result in self.batcher.collect()]
        if not arrived:
            yield None
        for task, position, result in arrived:
            yield from self.deliver(task, position, result)

    def events(
        self, decoders: Iterable[Decoder], max_live: int, cancelled: Container[int]
    ) -> Generator[Event | None, None, None]:
        """Everything that happens; None where there is nothing to do until something arrives."""
        waiting, more = enumerate(decoders), True
        while more or self.tasks:
            while more and len(self.tasks) < max_live:
                fresh = next(waiting, None)
                more = fresh is not None
                if fresh is not None:
                    yield from self.start(*fresh)
            yield from self.cancel(cancelled)
            if self.tasks:
                yield from self.poll()


def drive(
    decoders: Iterable[Decoder],
    engine: Serving,
    retriever: Retriever | None,
    *,
    max_live: int = MAX_LIVE,
    cancelled: Container[int] = (),
    services: Mapping[str, Service] = MappingProxyType({}),
) -> Iterator[Event]:
    """Run decoders to their end.

    Args:
        decoders: started lazily, at most `max_live` at a time; the position of each is its index in events.
        engine: serves `Generate`; other threads may drive it at the same time.
        retriever: serves `Retrieve`; None if the decoders never search.
        max_live: questions in flight, which bounds memory.
        cancelled: indices of questions to give up; may grow while the driver runs.
        services: serve `Consult` by name: payloads in, one result each out.

    Yields:
        Events as they happen; one `Answered` or `Broken` for each decoder. Leaving early aborts what is still running.
    """
    bell = threading.Event()
    with session(engine, bell.set) as own, closing(BackgroundBatcher[_Task](retriever, services, bell.set)) as batcher:
        for event in _Driver(own, batcher).events(decoders, max_live, cancelled):
            if event is not None:
                yield event
                continue
            bell.wait(PATIENCE)
            bell.clear()


async def adrive(
    decoders: Iterable[Decoder],
    engine: Serving,
    retriever: Retriever | None,
    *,
    services: Mapping[str, Service] = MappingProxyType({}),
) -> AsyncGenerator[Event, None]:
    """`drive` for an event loop, which is free while the engine works. Cancelling aborts what is still running."""
    bell, loop = asyncio.Event(), asyncio.get_running_loop()

    def ring() -> None:
        with suppress(RuntimeError):  # the loop was closed before the engine came back
            loop.call_soon_threadsafe(bell.set)

    own, batcher = open_session(engine, ring), BackgroundBatcher[_Task](retriever, services, ring)
    try:
        for event in _Driver(own, batcher).events(decoders, MAX_LIVE, ()):
            if event is not None:
                yield event
                continue
            await bell.wait()
            bell.clear()
    finally:
        batcher.close()
        own.close(wait=False)
