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
from collections.abc import (
    AsyncGenerator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from concurrent.futures import Future
from contextlib import aclosing, closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self, TypeAlias, TypeVar, cast

from retrieval.passage import Retriever
from selfrag.common.errors import DecodingError, UserError
from selfrag.decoding.answer import Answer, Segment
from selfrag.decoding.policy import Decoding
from selfrag.decoding.tree import Commit, Decoder
from selfrag.reflection.requests import (
    External,
    ExternalResult,
    ExternalService,
    Failed,
    Generate,
    Generated,
    Request,
    RequestResult,
    Retrieve,
    Returned,
    Steps,
    Usage,
    resume,
)
from selfrag.runtime.batching import Batcher, SharedRetriever, call_service, search
from selfrag.runtime.sessions import (
    Serving,
    Session,
    Ticket,
    TicketResult,
    close,
    open_session,
)

T = TypeVar("T")


@dataclass(slots=True)
class _Line:
    """Requests of one kind that wait, and those that are being served, each with its task and position there."""

    batcher: Batcher
    timeout: float  # seconds for a batch
    name: str  # for messages
    waiting: list[tuple[_Task, int, Any]] = field(default_factory=list)
    served: list[tuple[_Task, int, Any]] = field(default_factory=list)
    future: Future[Sequence[RequestResult]] | None = None
    deadline: float = 0.0  # of the batch that is being served, or of those that wait behind one that hangs


class _Beside:
    """What one call asks beside the engine: searches and services, one batch of each kind at a time."""

    def __init__(self, retriever: Retriever | None, ring: Callable[[], None]) -> None:
        """Start nothing yet; `ring` is called, in some thread, whenever results have arrived."""
        self._ring = ring
        shared = (
            retriever.batcher
            if isinstance(retriever, SharedRetriever)
            else Batcher(partial(search, retriever))
        )
        self._search = _Line(shared, math.inf, "the retriever")
        self._lines: dict[ExternalService, _Line] = {}

    def ask(self, task: _Task, position: int, request: Retrieve | External) -> None:
        """Queue a request."""
        line = self._search
        if isinstance(request, External):
            if request.service not in self._lines:
                batcher = Batcher(partial(call_service, request.service))
                self._lines[request.service] = _Line(
                    batcher, request.timeout, request.name
                )
            line = self._lines[request.service]
        line.waiting.append((task, position, request))

    def start(self) -> None:
        """Send the waiting requests."""
        for line in (self._search, *self._lines.values()):
            if line.waiting and line.future is None:
                line.served = line.waiting
                line.waiting = []
                line.deadline = time.monotonic() + line.timeout
                line.future = line.batcher.submit(
                    [request for *_, request in line.served]
                )
                line.future.add_done_callback(lambda _: self._ring())

    def collect(self) -> Iterator[tuple[_Task, int, RequestResult]]:
        """Yield what is done, and what took too long, with its task and position."""
        for line in (self._search, *self._lines.values()):
            if line.future is not None and line.future.done():
                results = line.future.result()
                line.future = None
                for (task, position, _), result in zip(
                    line.served, results, strict=False
                ):
                    yield task, position, result
            elif line.future is not None and time.monotonic() > line.deadline:
                # Nothing can stop the thread. Until it ends, requests behind it fail as well, after their own time.
                late = [*line.served, *line.waiting]
                line.served = []
                line.waiting = []
                line.deadline = time.monotonic() + line.timeout
                for task, position, _ in late:
                    yield (
                        task,
                        position,
                        Failed(f"{line.name} gave no answer within {line.timeout:g} s"),
                    )


@dataclass(frozen=True, slots=True)
class SegmentFinal:
    """A segment of question `index` is final."""

    index: int
    segment: Segment


@dataclass(frozen=True, slots=True)
class QuestionAnswered:
    """Question `index` is done."""

    index: int
    answer: Any  # an `Answer` of a decoder; of other steps what they return


@dataclass(frozen=True, slots=True)
class QuestionFailed:
    """Question `index` could not be answered; the others continue."""

    index: int
    error: UserError


DriverEvent: TypeAlias = SegmentFinal | QuestionAnswered | QuestionFailed


@dataclass(slots=True)
class _Task:
    """One decoder and the batch it waits for."""

    index: int
    decoder: Decoder
    started: float
    requests: Sequence[Request] = ()
    results: list[RequestResult | None] = field(default_factory=list)
    missing: int = 0
    usage: Usage = field(default_factory=Usage)

    def fill(self, position: int, result: RequestResult) -> bool:
        """Store a result; whether the batch is complete."""
        self.results[position] = result
        self.missing -= 1
        return self.missing == 0


def cost_of(requests: Sequence[Request], results: Sequence[RequestResult]) -> Usage:
    """Return what the requests of a batch cost, those that failed as requests alone."""
    count = prompt_tokens = cached_tokens = generated_tokens = searches = 0
    beside = Usage()
    for request, result in zip(requests, results, strict=True):
        if isinstance(request, Generate):
            count += 1
        elif isinstance(request, Retrieve):
            searches += 1
        if isinstance(result, Generated):
            prompt_tokens += len(cast(Generate, request).prompt_ids)
            cached_tokens += result.cached_tokens
            generated_tokens += len(result.token_ids)
        elif isinstance(result, ExternalResult):
            beside += result.usage
    cost = Usage(count, prompt_tokens, cached_tokens, generated_tokens, searches)
    return cost + beside if beside.requests else cost


MAX_LIVE = 256
"""Questions of one call in flight, unless told otherwise."""


@dataclass(slots=True)
class _Driver:
    engine: Session
    beside: _Beside
    # ticket -> task, position in its batch
    running: dict[int, tuple[_Task, int]] = field(default_factory=dict)
    live: int = 0  # questions in flight

    def advance(
        self, task: _Task, results: list[RequestResult] | None
    ) -> Iterator[DriverEvent]:
        """Send results into a decoder and queue what it asks for next, until it waits or ends."""
        while True:
            try:
                item = resume(task.decoder, results)
            except UserError as error:
                self.live -= 1
                yield QuestionFailed(task.index, error)
                return
            if isinstance(item, Returned):
                self.live -= 1
                value = item.value
                if isinstance(value, Answer):
                    seconds = time.perf_counter() - task.started
                    value = replace(value, usage=replace(task.usage, seconds=seconds))
                yield QuestionAnswered(task.index, value)
                return
            results = []
            if isinstance(item, Commit):
                yield SegmentFinal(task.index, item.segment)
                continue
            if item:
                self._queue(task, item)
                return

    def _queue(self, task: _Task, batch: Sequence[Request]) -> None:
        task.requests = batch
        task.results = [None] * len(batch)
        task.missing = len(batch)
        for position, request in enumerate(batch):
            if isinstance(request, Generate):
                self._submit(task, position, request)
            else:
                self.beside.ask(task, position, request)

    def _submit(self, task: _Task, position: int, request: Generate) -> Ticket:
        ticket = self.engine.submit(request)
        self.running[ticket] = (task, position)
        return ticket

    def deliver(
        self, arrived: Sequence[tuple[_Task, int, RequestResult]]
    ) -> Iterator[DriverEvent]:
        """Hand results to their tasks, and advance those whose batch is complete."""
        for task, position, result in arrived:
            if task.fill(position, result):
                results = [item for item in task.results if item is not None]
                task.usage += cost_of(task.requests, results)
                yield from self.advance(task, results)

    def _served(
        self, ticket: Ticket, result: Generated | Failed
    ) -> tuple[_Task, int, RequestResult]:
        task, position = self.running.pop(ticket)
        return task, position, result

    def poll(self) -> Iterator[DriverEvent | None]:
        """Do one round: send what is asked, deliver what has arrived; None if nothing has."""
        self.beside.start()
        arrived = [
            self._served(ticket, result) for ticket, result in self.engine.step()
        ]
        arrived += self.beside.collect()
        if not arrived:
            yield None
        yield from self.deliver(arrived)

    def events(
        self, decoders: Iterable[Decoder], max_live: int
    ) -> Generator[DriverEvent | None, None, None]:
        """Yield everything that happens; None where there is nothing to do until something arrives."""
        waiting = enumerate(decoders)
        more = True
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
    decoders: Iterable[Decoder],
    engine: Serving | None,
    retriever: Retriever | None,
    *,
    max_live: int = MAX_LIVE,
) -> Iterator[DriverEvent]:
    """Run decoders to their end. Leaving early aborts what is still running.

    Args:
        decoders: started lazily, at most `max_live` at a time; the position of each is its index in events.
        engine: serves `Generate`; other threads may drive it at the same time. None if nothing is generated.
        retriever: serves `Retrieve`; None if the decoders never search.
        max_live: questions in flight, which bounds memory.
    """
    bell = threading.Event()
    with closing(open_session(engine or _NO_ENGINE, bell.set)) as opened:
        for event in _Driver(opened, _Beside(retriever, bell.set)).events(
            decoders, max_live
        ):
            if event is not None:
                yield event
                continue
            # no longer: Windows hears Ctrl-C between waits only, and services have time limits
            bell.wait(1.0)
            bell.clear()


_END = object()


async def _finish_in_thread(work: Callable[[], T]) -> T:
    """Return what work returns, which a thread does to its end, also if the caller is cancelled."""
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    finally:
        await asyncio.wait({running})


async def adrive(
    decoders: Iterable[Decoder],
    engine: Serving,
    retriever: Retriever | None,
    *,
    in_threads: bool = False,
) -> AsyncGenerator[DriverEvent, None]:
    """`drive` for an event loop, which is free while the engine works. Cancelling aborts what is still running.

    `in_threads` also keeps the loop free of the decoders' own work, such as reading much evidence into tokens.
    """
    bell = asyncio.Event()
    loop = asyncio.get_running_loop()

    def ring() -> None:
        with suppress(RuntimeError):  # the loop was closed before the engine came back
            loop.call_soon_threadsafe(bell.set)

    opened = open_session(engine, ring)
    events = _Driver(opened, _Beside(retriever, ring)).events(decoders, MAX_LIVE)
    step: Callable[[], Any] = partial(next, events, _END)
    try:
        while True:
            event = await _finish_in_thread(step) if in_threads else step()
            if event is _END:
                return
            if event is not None:
                yield event
                continue
            with suppress(TimeoutError):
                await asyncio.wait_for(bell.wait(), 1.0)
            bell.clear()
    finally:
        opened.close(wait=False)


class _NoEngine:
    """Stands where steps generate nothing, such as those of a function."""

    def submit(self, request: Generate) -> Ticket:
        raise UserError(
            "these steps generate text, and there is no engine; give engine=.."
        )

    def step(self) -> Sequence[TicketResult]:
        return []

    def abort(self, tickets: Iterable[Ticket]) -> None:
        """Do nothing: nothing runs."""


_NO_ENGINE = _NoEngine()


def finish(
    steps: Steps[T], engine: Serving | None = None, retriever: Retriever | None = None
) -> T:
    """Run any steps to their end, and return what they return.

    Raises:
        UserError: the steps raised it.
        EngineError: the engine died.
    """
    (end,) = drive(cast("list[Decoder]", [steps]), engine, retriever)
    if isinstance(end, QuestionFailed):
        raise end.error
    return cast(T, cast("QuestionAnswered", end).answer)


class OwnsEngine:
    """What holds an engine, which is freed at the end of a `with` block."""

    __slots__ = ()
    engine: Serving

    def close(self) -> None:
        """Free the engine."""
        close(self.engine)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Call:
    """One call: one question or many."""

    decoders: Sequence[Decoder]  # of its questions
    engine: Serving
    retriever: Retriever | None
    policy: Decoding = Decoding()  # noqa: RUF009 - frozen value
    # of a list, for reports; None for a single question, whose failure is raised
    questions: Sequence[str] | None = None
    notes: Sequence[str | None] = ()  # of each question; none where no answer has one
    in_threads: bool = False  # whether an event loop leaves the decoders to threads

    def answers(self) -> Answer | list[Answer]:
        """Return what the caller gets when all is done."""
        return self._collected(drive(self.decoders, self.engine, self.retriever))

    async def answers_async(self) -> Answer | list[Answer]:
        """`answers` for an event loop."""
        return self._collected([event async for event in self._events_async()])

    def pieces(self) -> Iterator[Segment | Answer]:
        """Yield segments as they come, then the answer."""
        for event in drive(self.decoders, self.engine, self.retriever):
            yield self._piece(event)

    async def pieces_async(self) -> AsyncGenerator[Segment | Answer, None]:
        """`pieces` for an event loop."""
        async with aclosing(self._events_async()) as events:
            async for event in events:
                yield self._piece(event)

    def _events_async(self) -> AsyncGenerator[DriverEvent, None]:
        return adrive(
            self.decoders, self.engine, self.retriever, in_threads=self.in_threads
        )

    def _piece(self, event: DriverEvent) -> Segment | Answer:
        if isinstance(event, SegmentFinal):
            return event.segment
        return self._noted(answer_of(event), 0)

    def _collected(self, events: Iterable[DriverEvent]) -> Answer | list[Answer]:
        ends = {
            event.index: event
            for event in events
            if not isinstance(event, SegmentFinal)
        }
        if self.questions is None:
            return self._noted(answer_of(ends[0]), 0)
        answers = []
        for index, question in enumerate(self.questions):
            end = ends[index]
            if isinstance(end, QuestionAnswered):
                answers.append(self._noted(end.answer, index))
            else:
                answers.append(Answer.failed(question, self.policy, end.error))
        return answers

    def _noted(self, answer: Answer, number: int) -> Answer:
        """Return an answer with the note on its question, if there is one."""
        note = self.notes[number] if self.notes else None
        if note is None:
            return answer
        return replace(answer, note="; ".join(filter(None, (note, answer.note))))


def answer_of(end: QuestionAnswered | QuestionFailed) -> Answer:
    """Return the answer to a single question; where there is none, raise why."""
    if isinstance(end, QuestionFailed):
        raise end.error
    answer: Answer = end.answer
    if answer.error is not None:
        raise DecodingError(answer.error)
    return answer
