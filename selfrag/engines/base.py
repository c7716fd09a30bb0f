"""The protocol of engines (submit requests, step, collect results), and functions that run requests to their end."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from selfrag.common.errors import TOO_LONG, EngineError, UserError, count_of
from selfrag.common.reading import user_path
from selfrag.reflection.requests import Failed, Generate
from selfrag.runtime.sessions import Serving, TicketResult
from selfrag.runtime.sessions import Ticket as Ticket

TokenSequence: TypeAlias = Sequence[int] | NDArray[np.int64]


def common_length(left: TokenSequence, right: TokenSequence) -> int:
    """Return the number of leading ids that two sequences share."""
    size = min(len(left), len(right))
    different = np.flatnonzero(np.asarray(left[:size]) != np.asarray(right[:size]))
    return int(different[0]) if different.size else size


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What an engine can take."""

    max_model_len: int  # prompt and new tokens together
    vocab_size: int  # ids are below this
    max_watch: int = 128  # most `watch_ids` of a request
    adapters: frozenset[str] = frozenset()  # adapter names a request may ask for
    activated: frozenset[str] = frozenset()  # those of them that are activated LoRA
    inspects: bool = False  # whether requests may have a seed or ask for internals


@dataclass(frozen=True, slots=True)
class Architecture:
    """A type of model that a package teaches to transformers.

    The package registers it by an entry point of `selfrag.architectures`, which is called as `model_type` in the
    `config.json` of its checkpoints.
    """

    # makes the type known; gets the checkpoint's name, for its `EngineError`
    register: Callable[[str], None]
    # whether sequences must run one at a time, and keys and values are all that it keeps, though it is called stateful
    alone: bool = False


class Engine(Serving, Protocol):
    """A source of next tokens with continuous batching.

    Methods are called by one thread at a time; `selfrag.runtime.sessions` lets any number of threads share an engine.
    Tickets are the engine's own, unique for its lifetime. After `abort` nothing comes back for the ticket. An engine
    that dies raises `EngineError` from `submit` or `step`; a request that it cannot serve comes back as `Failed` from
    `step`.

    Example:
        >>> class Refusing:
        ...     limits = EngineLimits(max_model_len=4096, vocab_size=100_000)
        ...     waiting = []
        ...     def submit(self, request):
        ...         self.waiting.append(len(self.waiting))
        ...         return self.waiting[-1]
        ...     def step(self):
        ...         tickets, self.waiting = self.waiting, []
        ...         return [(ticket, Failed("no model")) for ticket in tickets]
        ...     def abort(self, tickets):
        ...         self.waiting = [ticket for ticket in self.waiting if ticket not in set(tickets)]
        ...     def close(self):
        ...         self.waiting = []
        >>> engine: Engine = Refusing()
        >>> engine.submit(Generate((1, 5), max_tokens=10))
        0
        >>> engine.step()
        [(0, Failed(reason='no model'))]
    """

    @property
    def limits(self) -> EngineLimits:
        """Return what the engine can take; constant."""

    def close(self) -> None:
        """Free the model and its threads. Further calls raise `EngineError`; closing twice is fine."""


def reason(error: BaseException) -> str:
    """Return one line on an exception of torch or transformers."""
    text = str(error).strip().partition("\n")[0].strip() or "no message"
    if type(error).__name__ in ("OutOfMemoryError", "MemoryError") or "memory" in text:
        return f"out of memory ({text}); lower max_batch, max_prefill_tokens or prefix_cache_mib"
    return f"{type(error).__name__}: {text}"


def check_process(pid: int) -> None:
    """Refuse an engine that was loaded in another process: in a fork its threads, locks and device are the parent's."""
    if os.getpid() != pid:
        raise EngineError(
            f"the engine was loaded in process {pid} and cannot be used in its fork; load it there again"
        )


def refusal(request: Generate, limits: EngineLimits) -> str | None:
    """Return one line on why `request` cannot be served within `limits`, or None.

    Engines call this before anything reaches the model, so that one bad request never sinks a batch.
    """
    prompt = len(request.prompt_ids)
    watch = request.watch_ids
    if prompt == 0:
        return "empty prompt"
    if request.max_tokens < 1:
        return f"max_tokens={request.max_tokens}; it must be at least 1"
    if prompt >= limits.max_model_len:
        return f"prompt of {count_of(prompt, 'tokens')} {TOO_LONG} {limits.max_model_len}; shorten it"
    if len(watch) > limits.max_watch:
        return f"{count_of(len(watch), 'watched ids')}; at most {limits.max_watch}"
    if len(set(watch)) != len(watch):
        return "watched ids are not distinct"
    if request.allowed_ids is not None and not request.allowed_ids:
        return "allowed_ids is empty: nothing may be generated"
    if request.allowed_ids is not None and request.constraint is not None:
        return "allowed_ids and constraint exclude each other"
    if request.adapter is not None and request.adapter not in limits.adapters:
        return f"unknown adapter {request.adapter!r}; loaded: {', '.join(sorted(limits.adapters)) or 'none'}"
    if (request.inspect or request.seed is not None) and not limits.inspects:
        return "this engine gives no attention, hidden states or random draws; --engine transformers does"
    if not 0 <= request.inspect < prompt or (request.seed or 0) < 0:
        return f"inspect={request.inspect}, seed={request.seed}; give 0 to {prompt - 1}, and a seed from 0"
    every = (
        *request.prompt_ids,
        *watch,
        *request.stop_ids,
        *(request.allowed_ids or ()),
    )
    if min(every) < 0 or max(every) >= limits.vocab_size:
        bad = next(i for i in every if not 0 <= i < limits.vocab_size)
        return f"token id {bad} is outside the vocabulary of {limits.vocab_size}"
    return None


class BaseEngine(ABC):
    """What the engines of this package have in common: tickets, refusals, and an end after which they take nothing."""

    limits: EngineLimits  # what the engine can take

    def __init__(self) -> None:
        self._refused: list[TicketResult] = []  # for the next step
        self._next: Ticket = 0
        self._gone: str | None = None  # why it takes nothing any more
        self._pid = os.getpid()

    def submit(self, request: Generate) -> Ticket:
        """Queue a request; one that cannot be served comes back as `Failed` from the next step.

        Raises:
            EngineError: the engine is closed, has died, or was loaded in another process.
        """
        self._check_open()
        ticket = self._next
        self._next = self._next + 1
        reason = refusal(request, self.limits) or self._queue(ticket, request)
        if reason is not None:
            self._refused.append((ticket, Failed(reason)))
        return ticket

    @abstractmethod
    def _queue(self, ticket: Ticket, request: Generate) -> str | None:
        """Take a request that is within the limits; return one line on why it cannot be served, or None."""

    def _refusals(self, without: Collection[Ticket] = ()) -> list[TicketResult]:
        """Return what was refused since the last call, but for these tickets."""
        refused = self._refused
        self._refused = []
        return [item for item in refused if item[0] not in without]

    def _check_open(self) -> None:
        check_process(self._pid)
        if self._gone is not None:
            raise EngineError(self._gone)


class NoEngine:
    """Stands where an engine is wanted for a model behind an endpoint, which takes texts: nothing is asked of it."""

    # old turns are left out by this context
    limits = EngineLimits(max_model_len=8192, vocab_size=1, max_watch=0)

    def __init__(self, close: Callable[[], None] = lambda: None) -> None:
        """Run nothing; `close` frees what the model's executor holds."""
        self.close = close

    def submit(self, request: Generate) -> Ticket:
        """Refuse a request."""
        raise UserError(
            f"an endpoint takes no token ids ({len(request.prompt_ids)} given)"
        )

    def step(self) -> Sequence[TicketResult]:
        """Return nothing."""
        return []

    def abort(self, tickets: Iterable[Ticket]) -> None:
        """Do nothing: nothing runs."""


def check_model(model: str) -> None:
    """Refuse what is neither a checkpoint directory nor a plausible name on the hub."""
    path = user_path(model)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise EngineError(
                f"{model} holds no config.json; give a checkpoint directory that transformers saved"
            )
    elif (
        path.is_absolute()
        or model.startswith((".", "~"))
        or model.count("/") > 1
        or path.exists()
    ):
        raise EngineError(
            f"model {model} is not a directory; give a checkpoint directory or a name on the hub"
        )
