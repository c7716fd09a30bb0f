"""`HTTPEngine`: any number of GPUs behind one `vllm serve`, driven over HTTP. Knows no reflection token.

Requests run on a thread with an event loop; `submit`, `step` and `abort` stay as plain as in every other engine.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import uuid
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from selfrag.decoding.requests import Failed, Generate, Generated
from selfrag.engines.base import Limits, Ticket, check_process, refusal
from selfrag.engines.http_client import Client
from selfrag.engines.http_config import HTTPConfig
from selfrag.errors import EngineError

T = TypeVar("T")

WAIT = 0.01
"""Seconds that `step` waits for a first result; short, so that new requests of other threads are noticed."""


class HTTPEngine:
    """An `Engine` on a remote `vllm serve`. Make one with `HTTPEngine.load`.

    A request that fails comes back as `Failed`; a server that is gone raises `EngineError` from `step` and drops what
    was under way, after which the engine may be used again, should the server come back.
    """

    def __init__(self, config: HTTPConfig) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="selfrag-http", daemon=True)
        self._thread.start()
        self._results: queue.SimpleQueue[tuple[Ticket, Generated | Failed | BaseException]] = queue.SimpleQueue()
        self._live: set[Ticket] = set()
        self._next: Ticket = 0
        self._closed = False
        self._pid = os.getpid()
        self._session = uuid.uuid4().hex
        # Touched by the loop's thread only:
        self._tasks: dict[Ticket, asyncio.Task[None]] = {}
        self._sent: dict[Ticket, str] = {}
        self._aborts: set[asyncio.Task[None]] = set()
        self._client = self._run(self._open(config))

    @classmethod
    def load(cls, config: HTTPConfig) -> HTTPEngine:
        """Connect to a server and ask what it serves.

        Raises:
            EngineError: no such server, model or key; names the URL and what to do.
        """
        self = cls(config)
        try:
            self._run(self._client.discover())
        except BaseException:
            self.close()
            raise
        return self

    @property
    def limits(self) -> Limits:
        """What the served model can take."""
        return self._client.limits

    def submit(self, request: Generate) -> Ticket:
        """Send a request as soon as a slot is free. One that cannot be served comes back as `Failed`."""
        self._check_open()
        ticket, self._next = self._next, self._next + 1
        self._live.add(ticket)
        reason = refusal(request, self.limits)
        if reason is None:
            self._loop.call_soon_threadsafe(self._start, ticket, request)
        else:
            self._results.put((ticket, Failed(reason)))
        return ticket

    def step(self) -> Sequence[tuple[Ticket, Generated | Failed]]:
        """Return what arrived; waits a hundredth of a second for a first answer while any is due."""
        self._check_open()
        done: list[tuple[Ticket, Generated | Failed]] = []
        while self._live:
            try:
                ticket, result = self._results.get(block=not done, timeout=WAIT)
            except queue.Empty:
                break
            if ticket not in self._live:
                continue
            if isinstance(result, BaseException):
                self.abort(list(self._live))
                raise result
            self._live.discard(ticket)
            done.append((ticket, result))
        return done

    def abort(self, tickets: Iterable[Ticket]) -> None:
        """Drop requests here and at the server."""
        known = [ticket for ticket in tickets if ticket in self._live]
        self._live.difference_update(known)
        if known and not self._closed:
            self._loop.call_soon_threadsafe(self._cancel, known)

    def close(self) -> None:
        """Abort what is under way, close the connections and stop the thread."""
        if self._closed:
            return
        self._closed = True
        self._live.clear()
        self._run(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10.0)
        self._loop.close()

    def _check_open(self) -> None:
        check_process(self._pid)
        if self._closed:
            raise EngineError("the HTTP engine is closed; load it again")

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # From here on: on the loop's thread.

    async def _open(self, config: HTTPConfig) -> Client:
        return Client(config)

    def _start(self, ticket: Ticket, request: Generate) -> None:
        self._tasks[ticket] = self._loop.create_task(self._serve(ticket, request))

    async def _serve(self, ticket: Ticket, request: Generate) -> None:
        attempts = 0

        def fresh_id() -> str:
            nonlocal attempts
            attempts += 1
            self._sent[ticket] = f"{self._session}-{ticket}-{attempts}"
            return self._sent[ticket]

        try:
            result: Generated | Failed | BaseException = await self._client.generate(request, fresh_id)
        except Exception as error:  # travels to the caller's thread, which raises it
            result = error
        self._tasks.pop(ticket, None)
        self._sent.pop(ticket, None)
        self._results.put((ticket, result))

    def _cancel(self, tickets: Sequence[Ticket]) -> None:
        for ticket in tickets:
            if (task := self._tasks.pop(ticket, None)) is not None:
                task.cancel()
        sent = [self._sent.pop(ticket) for ticket in tickets if ticket in self._sent]
        if sent:
            task = self._loop.create_task(self._client.abort(sent))
            self._aborts.add(task)
            task.add_done_callback(self._aborts.discard)

    async def _shut(self) -> None:
        tasks = list(self._tasks.values())
        self._cancel(list(self._tasks))
        await asyncio.gather(*tasks, *self._aborts, return_exceptions=True)
        await self._client.close()
