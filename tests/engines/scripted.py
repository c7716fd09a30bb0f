"""A deterministic engine without a model, for tests: replies are looked up by prompt, and every request is recorded.

It obeys the same protocol and the same refusals as the real engines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from selfrag.common.errors import EngineError, count_of
from selfrag.engines.base import EngineLimits, Ticket, refusal
from selfrag.reflection.requests import Failed, Finish, Generate, Generated
from selfrag.runtime.sessions import TicketResult

WatchedProbabilities = Mapping[int, float]
"""Probabilities of watched ids at one position; ids left out have `FLOOR`."""

FLOOR = 1e-9


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """What the model would write after a prompt."""

    # what greedy decoding emits, before stop ids, EOS and budget cut it; it must reach one of them
    token_ids: tuple[int, ...]
    # position to probabilities of watched ids there; an emitted watched id needs no entry (0.9)
    rows: Mapping[int, WatchedProbabilities] = field(default_factory=dict)
    # log-probability of each emitted id; those that are left out at the end get `unlike`
    logprobs: Sequence[float] = ()


def unlike(position: int) -> float:
    """Return a log-probability in [-1, 0) that differs from those of all positions near by."""
    return -(position * 379 % 1000 + 1) / 1000


@dataclass(slots=True)
class ScriptedEngine:
    """Serves `reply(request)`."""

    # from a request to what the model would write, or `Failed`
    reply: Callable[[Generate], ScriptedReply | Failed]
    eos_id: int  # ends every generation
    # as of a real engine
    limits: EngineLimits = field(
        default_factory=lambda: EngineLimits(max_model_len=4096, vocab_size=100_000)
    )
    batch: int = 1_000_000  # requests served in one step; fewer shows interleaving
    # everything submitted, in order
    requests: list[Generate] = field(default_factory=list)
    aborted: list[Ticket] = field(default_factory=list)
    _waiting: dict[Ticket, Generate] = field(default_factory=dict)
    _closed: bool = False

    def submit(self, request: Generate) -> Ticket:
        """Queue a request."""
        if self._closed:
            raise EngineError("the engine is closed")
        ticket = len(self.requests)
        self.requests.append(request)
        self._waiting[ticket] = request
        return ticket

    def step(self) -> Sequence[TicketResult]:
        """Serve the oldest requests."""
        if self._closed:
            raise EngineError("the engine is closed")
        done: list[TicketResult] = []
        for ticket, request in list(self._waiting.items())[: self.batch]:
            del self._waiting[ticket]
            done.append((ticket, self._serve(request)))
        return done

    def abort(self, tickets: Iterable[Ticket]) -> None:
        """Forget requests."""
        for ticket in tickets:
            if self._waiting.pop(ticket, None) is not None:
                self.aborted.append(ticket)

    def close(self) -> None:
        """Refuse further calls."""
        self._closed = True

    def _serve(self, request: Generate) -> Generated | Failed:
        reason = refusal(request, self.limits)
        if reason is not None:
            return Failed(reason)
        reply = self.reply(request)
        if isinstance(reply, Failed):
            return reply
        ids, finish = self._cut(reply, request)
        watched = np.full(
            (len(ids), len(request.watch_ids)), np.log(FLOOR), dtype=np.float32
        )
        for position, emitted in enumerate(ids):
            row = reply.rows.get(position, {emitted: 0.9})
            for column, token_id in enumerate(request.watch_ids):
                probability = row.get(token_id, FLOOR)
                watched[position, column] = (
                    math.log(probability) if probability > 0 else -math.inf
                )
        logprobs = list(reply.logprobs[: len(ids)])
        logprobs += map(unlike, range(len(logprobs), len(ids)))
        return Generated(tuple(ids), tuple(logprobs), watched, finish)

    def _cut(self, reply: ScriptedReply, request: Generate) -> tuple[list[int], Finish]:
        room = self.limits.max_model_len - len(request.prompt_ids)
        ids: list[int] = []
        for position, token_id in enumerate(reply.token_ids):
            if request.allowed_ids is not None and token_id not in request.allowed_ids:
                row = reply.rows.get(position, {})
                token_id = max(
                    request.allowed_ids, key=lambda allowed: row.get(allowed, FLOOR)
                )
            ids.append(token_id)
            if token_id == self.eos_id:
                return ids, Finish.EOS
            if token_id in request.stop_ids:
                return ids, Finish.STOP
            if len(ids) == request.max_tokens:
                return ids, Finish.BUDGET
            if len(ids) == room:
                return ids, Finish.CONTEXT
        raise ValueError(
            f"the reply of {count_of(len(ids), 'tokens')} ends without EOS, a stop id or the budget"
            f" ({request.max_tokens})"
        )
