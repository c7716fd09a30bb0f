"""Sessions: any number of callers, in any threads, on one engine. One thread per engine submits, steps and aborts.

With a single session, the thread waits for the caller after each step that finished something. Batches then do not
depend on timing.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, Protocol, TypeAlias

from selfrag.reflection.requests import Failed, Generate, Generated

Ticket: TypeAlias = int
TicketResult: TypeAlias = tuple[Ticket, Generated | Failed]
"""What ended, or has only begun where its request asks for a report."""

IDLE = 1.0
"""Seconds after which an engine's thread ends where no session is open."""

PATIENCE = 10.0
"""Most seconds to wait for an engine to forget requests."""


class Serving(Protocol):
    """The part of `selfrag.engines.base.Engine` that sessions need. Called by one thread at a time.

    Example:
        >>> class Refusing:
        ...     waiting = []
        ...     def submit(self, request):
        ...         self.waiting.append(len(self.waiting))
        ...         return self.waiting[-1]
        ...     def step(self):
        ...         tickets, self.waiting = self.waiting, []
        ...         return [(ticket, Failed("no model")) for ticket in tickets]
        ...     def abort(self, tickets):
        ...         self.waiting = [ticket for ticket in self.waiting if ticket not in set(tickets)]
        >>> serving: Serving = Refusing()
        >>> serving.submit(Generate((1, 5), max_tokens=10))
        0
        >>> serving.step()
        [(0, Failed(reason='no model'))]
    """

    def submit(self, request: Generate) -> Ticket:
        """Queue a request and return at once."""

    def step(self) -> Sequence[TicketResult]:
        """Do some work and return what finished since the last call, possibly nothing. Never waits for new requests."""

    def abort(self, tickets: Iterable[Ticket]) -> None:
        """Forget requests; unknown or finished tickets are ignored."""


class Session:
    """One caller's requests on a shared engine. Used by one thread at a time."""

    def __init__(self, worker: _Worker, ring: Callable[[], None]) -> None:
        self.ring = ring
        # filled by the engine's thread
        self.arrived: deque[TicketResult | BaseException] = deque()
        self.waiting = False
        self._worker = worker
        self._queued: list[tuple[Ticket, Generate]] = []
        self._live: set[Ticket] = set()

    def submit(self, request: Generate) -> Ticket:
        """Queue a request; it is sent with the next `step`, together with the others."""
        ticket = next(self._worker.tickets)
        self._live.add(ticket)
        self._queued.append((ticket, request))
        return ticket

    def step(self) -> list[TicketResult]:
        """Send what is queued and return what has finished, possibly nothing; does not wait.

        Raises:
            Exception: what the engine raised while it had requests of this session, which are lost.
        """
        done: list[TicketResult] = []
        while self.arrived:
            arrived = self.arrived.popleft()
            if isinstance(arrived, BaseException):
                self._live.clear()
                self._queued.clear()
                raise arrived
            if arrived[0] in self._live:
                done.append(arrived)
                self._live.discard(arrived[0])
        queued = self._queued
        self._queued = []
        self._worker.send(self, queued, idle=not done)
        return done

    def abort(self, tickets: Iterable[Ticket], *, wait: bool = True) -> None:
        """Forget requests; nothing comes back for them. May wait a step, until the engine has forgotten them too."""
        gone = self._live.intersection(tickets)
        self._live -= gone
        unsent = {ticket for ticket, _ in self._queued} & gone
        self._queued = [item for item in self._queued if item[0] not in unsent]
        if gone - unsent:
            self._worker.abort(gone - unsent, wait=wait)

    def close(self, *, wait: bool = True) -> None:
        """Abort what still runs, and end the session."""
        try:
            self.abort(list(self._live), wait=wait)
        finally:
            self._worker.leave(self)


class _Worker(threading.Thread):
    """The thread of one engine."""

    def __init__(self, engine: Serving) -> None:
        super().__init__(name="selfrag-engine", daemon=True)
        self.tickets = itertools.count()
        self.using = threading.Lock()  # held while the engine works
        self._engine = engine
        self._key = _key(engine)
        self._changed = threading.Condition()
        self._sessions: set[Session] = set()
        self._orders: list[tuple[Session, list[tuple[Ticket, Generate]]]] = []
        self._aborts: list[tuple[set[Ticket], threading.Event]] = []
        self._ended = False
        # The engine's ticket of each of ours, and back, with the session; touched by this thread only.
        self._theirs: dict[Ticket, Ticket] = {}
        self._owners: dict[Ticket, tuple[Session, Ticket]] = {}

    def enter(self, ring: Callable[[], None]) -> Session | None:
        """Return a new session, or None if this thread has ended."""
        with self._changed:
            if self._ended:
                return None
            if self.ident is None:
                self.start()
            session = Session(self, ring)
            self._sessions.add(session)
            self._changed.notify()
            return session

    def leave(self, session: Session) -> None:
        """Forget a session."""
        with self._changed:
            self._sessions.discard(session)
            self._changed.notify()

    def send(
        self, session: Session, queued: list[tuple[Ticket, Generate]], *, idle: bool
    ) -> None:
        """Take requests; `idle` if the session has just collected nothing."""
        with self._changed:
            session.waiting = idle and not session.arrived
            if queued:
                self._orders.append((session, queued))
            self._changed.notify()

    def abort(self, tickets: set[Ticket], *, wait: bool) -> None:
        """Take requests back."""
        done = threading.Event()
        with self._changed:
            self._aborts.append((tickets, done))
            self._changed.notify()
        # An abandoned generator may be collected in this very thread, or when the interpreter ends.
        if wait and threading.current_thread() is not self and not sys.is_finalizing():
            done.wait(PATIENCE)

    def run(self) -> None:
        """Serve sessions until none has been open for a while."""
        while self._wait():
            with self._changed:
                orders = self._orders
                self._orders = []
                aborts = self._aborts
                self._aborts = []
            with self.using:
                for session, queued in orders:
                    self._guarded([session], partial(self._submit, session, queued))
                for tickets, done in aborts:
                    self._forget(tickets)
                    done.set()
                if self._owners:
                    self._guarded(
                        [session for session, _ in self._owners.values()], self._step
                    )
        _WORKERS.pop(self._key, None)

    def _wait(self) -> bool:
        """Sleep until there is something to do; False where nobody needs this thread any more."""
        with self._changed:
            while not (
                self._orders or self._aborts or (self._owners and self._may_step())
            ):
                if self._sessions:
                    self._changed.wait()
                elif not self._changed.wait(IDLE) and not self._sessions:
                    self._ended = True
                    return False
        return True

    def _may_step(self) -> bool:
        """Return whether to step now. A single session is waited for, so that its next requests join the batch."""
        return len(self._sessions) > 1 or all(
            session.waiting for session in self._sessions
        )

    def _submit(self, session: Session, queued: list[tuple[Ticket, Generate]]) -> None:
        for ours, request in queued:
            theirs = self._engine.submit(request)
            self._theirs[ours] = theirs
            self._owners[theirs] = (session, ours)

    def _step(self) -> None:
        by_session: dict[Session, list[TicketResult]] = {}
        for theirs, result in self._engine.step():
            if theirs in self._owners:
                session, ours = self._owners[theirs]
                del self._owners[theirs], self._theirs[ours]
                by_session.setdefault(session, []).append((ours, result))
        for session, results in by_session.items():
            self._deliver(session, results)

    def _guarded(self, sessions: Iterable[Session], work: Callable[[], None]) -> None:
        """Work for some sessions. An error of the engine is raised in each of them, and their requests are dropped."""
        try:
            work()
        except BaseException as error:
            hit = set(sessions)
            self._forget(
                {ours for session, ours in self._owners.values() if session in hit}
            )
            for session in hit:
                self._deliver(session, [error])

    def _deliver(
        self, session: Session, results: Iterable[TicketResult | BaseException]
    ) -> None:
        with self._changed:
            session.waiting = False
            session.arrived.extend(results)
        session.ring()

    def _forget(self, tickets: Iterable[Ticket]) -> None:
        theirs = [
            self._theirs.pop(ours) for ours in sorted(tickets) if ours in self._theirs
        ]
        for ticket in theirs:
            del self._owners[ticket]
        if theirs:
            # a dead engine has nothing to abort, and must not hide why it died
            with suppress(Exception):
                self._engine.abort(theirs)


_WORKERS: dict[tuple[int, int], _Worker] = {}
"""The running thread of each engine in use, by process and identity; an entry goes when its thread ends."""


def _key(engine: Serving) -> tuple[int, int]:
    return os.getpid(), id(engine)


def open_session(engine: Serving, ring: Callable[[], None]) -> Session:
    """Open a session on an engine, from any thread; the engine's thread calls `ring` whenever results have arrived."""
    while True:
        key = _key(engine)
        worker = _WORKERS.get(key) or _WORKERS.setdefault(key, _Worker(engine))
        if (entered := worker.enter(ring)) is not None:
            return entered


def close(engine: Any) -> None:
    """Close an engine that may be in use. Running requests end with the engine's own error."""
    worker = _WORKERS.get(_key(engine))
    with worker.using if worker is not None else nullcontext():
        engine.close()
