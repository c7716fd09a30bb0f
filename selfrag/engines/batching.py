"""What engines that run a model in this process share: which requests run, what their prompts share, how they end.

Nothing here knows what computes: keys and values are what an engine makes of them (`Prefix`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from selfrag.common.errors import EngineError
from selfrag.engines.base import BaseEngine, Ticket, common_length
from selfrag.reflection.requests import (
    Failed,
    Finish,
    Generate,
    Generated,
    Internals,
)
from selfrag.runtime.sessions import TicketResult

if TYPE_CHECKING:
    from selfrag.engines.grammars import Matcher


class Prefix(Protocol):
    """Keys and values of the first tokens of one sequence."""

    def __len__(self) -> int: ...

    @property
    def nbytes(self) -> int:
        """Memory of the keys and values."""


P = TypeVar("P", bound=Prefix)


@dataclass(frozen=True, slots=True)
class PrefixScope:
    """The weights that compute the keys and values of a prompt."""

    adapter: str | None = None  # name of the adapter, None for the base model
    # position from which an activated LoRA acts, None for adapters that act everywhere
    start: int | None = None

    @property
    def key(self) -> str | None:
        """Prompts with equal keys may share the keys and values of a common prefix.

        Different starts give different keys: a token may precede the invocation in one and follow it in the other.
        """
        return self.adapter if self.start is None else f"{self.adapter}@{self.start}"

    @property
    def base_length(self) -> int:
        """Number of leading tokens that the base model computes."""
        return self.start or 0


BASE = PrefixScope()


@dataclass(frozen=True, slots=True)
class _CacheEntry(Generic[P]):
    """The keys and values of one sequence of ids."""

    scope: str | None  # `PrefixScope.key` of the weights that computed them
    ids: NDArray[np.int64]  # [tokens]
    prefix: P
    nbytes: int  # summed once

    def continues(self, shorter: _CacheEntry[P]) -> bool:
        """Return whether the ids of this entry begin with those of a shorter one of its scope."""
        return self.scope == shorter.scope and common_length(
            shorter.ids, self.ids
        ) == len(shorter.ids)


class PrefixCache(Generic[P]):
    """The keys and values of earlier prompts.

    Scopes share nothing; each adapter has its own, because an adapter changes every key and value.
    Nothing is evicted before `trim`, so whatever a step of an engine stores stays for the whole step.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget  # bytes that are kept after `trim`
        self._entries: list[_CacheEntry[P]] = []  # the least recently used first

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        """Memory of everything kept, in bytes."""
        return sum(entry.nbytes for entry in self._entries)

    def longest(self, scope: str | None, ids: Sequence[int]) -> tuple[P | None, int]:
        """Return the entry that shares most leading ids with `ids`, and how many; (None, 0) if none shares any."""
        sought = np.asarray(ids, dtype=np.int64)
        best = 0
        length = 0
        for position, entry in enumerate(self._entries):
            if entry.scope != scope:
                continue
            shared = common_length(entry.ids, sought)
            if shared > length:
                best = position
                length = shared
        if not length:
            return None, 0
        entry = self._entries.pop(best)
        self._entries.append(entry)
        return entry.prefix, length

    def put(self, scope: str | None, ids: Sequence[int], prefix: P) -> None:
        """Keep what was computed for `ids`; entries that `ids` continues say nothing more and are dropped."""
        new = _CacheEntry(scope, np.asarray(ids, dtype=np.int64), prefix, prefix.nbytes)
        self._entries = [entry for entry in self._entries if not new.continues(entry)]
        self._entries.append(new)

    def trim(self) -> None:
        """Forget the least recently used entries beyond the budget."""
        excess = self.nbytes - self._budget
        while excess > 0:
            excess -= self._entries.pop(0).nbytes


class SharedPrefix(NamedTuple):
    """Ids with which several prompts begin, computed once for all of them."""

    ids: tuple[int, ...]
    owner: int  # position of the prompt that is charged for the computation


def shared_prefixes(
    prompts: Sequence[tuple[int, ...]], known: Sequence[int], minimum: int
) -> list[SharedPrefix]:
    """Return the prefixes that are worth a computation of their own, at most one for each prompt, shorter than it.

    Args:
        prompts: token ids.
        known: for each prompt, how many of its leading ids are cached.
        minimum: least number of ids that a computation must add to those that are known.
    """
    order = sorted(range(len(prompts)), key=prompts.__getitem__)
    # overlap[i]: ids shared by the sorted neighbours i - 1 and i; nothing is shared over the two ends.
    overlap = [0]
    for left, right in pairwise(order):
        shorter = min(len(prompts[left]), len(prompts[right]))
        overlap.append(min(common_length(prompts[left], prompts[right]), shorter - 1))
    overlap.append(0)
    longest = [max(pair) for pair in pairwise(overlap)]
    prefixes = []
    start = 0  # first prompt of the group, in sorted order
    for end in range(1, len(order) + 1):
        if end < len(order) and overlap[end] + minimum > max(
            longest[end - 1], longest[end]
        ):
            continue
        members = order[start:end]
        if len(members) > 1:
            length = min(overlap[start + 1 : end])
            if length - known[members[0]] >= minimum:
                prefixes.append(
                    SharedPrefix(prompts[members[0]][:length], min(members))
                )
        start = end
    return prefixes


MIN_SHARED = 16
"""Fewest tokens for which prompts get a pass of their own for what they share."""


LOOKED_UP = (3, 2)
"""Lengths of the endings that are looked for."""


def look_up(ids: Sequence[int], most: int) -> list[int]:
    """Return at most `most` ids that followed where the last ids stood before: at the longest and last such place."""
    sequence = np.asarray(ids)
    for length in LOOKED_UP:
        if len(sequence) <= length:
            continue
        windows = np.lib.stride_tricks.sliding_window_view(sequence[:-1], length)
        places = np.flatnonzero((windows == sequence[-length:]).all(axis=1))
        if len(places):
            start = int(places[-1]) + length
            following: list[int] = sequence[start : start + most].tolist()
            return following
    return []


@dataclass(slots=True)
class RunningRequest:
    """One request while it runs: a row of a batch."""

    ticket: Ticket
    request: Generate
    scope: PrefixScope = BASE
    matcher: Matcher | None = None
    stuck: bool = False  # whether the constraint allows no token
    cached: int = 0  # prompt tokens that were not computed for it
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    # one row [watched ids] a token
    watched: list[NDArray[np.float32]] = field(default_factory=list)
    internals: Internals | None = None  # of its prompt

    @property
    def computed(self) -> tuple[int, ...]:
        """Ids whose keys and values exist: the newest id has not been through the model."""
        return (*self.request.prompt_ids, *self.ids[:-1])

    def result(self, finish: Finish) -> Generated:
        """Return what has been generated."""
        return Generated(
            tuple(self.ids),
            tuple(self.logprobs),
            np.stack(self.watched),
            finish,
            self.cached,
            self.internals,
        )

    def end(self, eos_ids: Collection[int], longest: int) -> Generated | Failed | None:
        """Return what the newest id makes of the request: its result where it ends, else None.

        Args:
            eos_ids: ids that end every sequence.
            longest: most tokens of prompt and new text.
        """
        request = self.request
        count = len(self.ids)
        if self.stuck:
            return Failed("the constraint allows no token here")
        if not np.isfinite(self.logprobs[-1]):
            return Failed(
                "the model gave no finite probability to any token; load it with dtype float32"
            )
        if self.ids[-1] in eos_ids:
            finish = Finish.EOS
        elif self.ids[-1] in request.stop_ids:
            finish = Finish.STOP
        elif count >= request.max_tokens:
            finish = Finish.BUDGET
        elif len(request.prompt_ids) + count >= longest:
            finish = Finish.CONTEXT
        else:
            return None
        return self.result(finish)

    def is_worth_keeping(self, cached: int) -> bool:
        """Return whether the finished sequence is kept for whatever continues it; `cached` of its ids are kept.

        Not what follows an invocation: it is short and is not continued. Nor a single token a little behind a kept
        prefix: copying a long conversation for each label that is scored would cost more than the tokens do.
        """
        if self.scope.start is not None:
            return False
        fresh = len(self.computed) - cached
        return fresh >= (MIN_SHARED if self.request.max_tokens == 1 else 1)


class BatchingEngine(BaseEngine):
    """Requests that wait and requests that run; a step starts some, and gives all that run one more token."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: deque[tuple[Ticket, Generate]] = deque()
        self._started: set[Ticket] = set()

    @abstractmethod
    def _advance(self) -> list[TicketResult]:
        """Start what waits if there is room, generate a token for everything that runs, return what finished."""

    @abstractmethod
    def _has_running(self) -> bool:
        """Return whether a request runs."""

    @abstractmethod
    def _drop(self, tickets: Collection[Ticket] | None) -> None:
        """Forget running requests, all of them for None."""

    @abstractmethod
    def _free(self) -> None:
        """Free the model."""

    def _queue(self, ticket: Ticket, request: Generate) -> str | None:
        self._waiting.append((ticket, request))
        return None

    def _take(self, room: int, batch: int) -> list[RunningRequest]:
        """Return waiting requests that start now; few are left waiting until `batch` / 4 of them find room.

        A pass over many prompts is cheaper than many passes over one.
        """
        enough = min(len(self._waiting), max(1, batch // 4))
        if not self._waiting or room < enough:
            return []
        taken = []
        for _ in range(min(room, len(self._waiting))):
            ticket, request = self._waiting.popleft()
            self._started.add(ticket)
            taken.append(RunningRequest(ticket, request))
        return taken

    def step(self) -> Sequence[TicketResult]:
        """Start what waits if there is room, generate one token for everything that runs, return what finished.

        Where the model fails, for example for lack of memory, the engine is dead.
        """
        self._check_open()
        done: list[TicketResult] = []
        if self._waiting or self._has_running():
            done = self._work()
        done = self._refusals() + done
        for ticket, _ in done:
            self._started.discard(ticket)
        return done

    def _work(self) -> list[TicketResult]:
        try:
            return self._advance()
        except EngineError as error:
            self._die(str(error))
            raise
        except MemoryError as error:
            self._die(
                f"out of memory ({type(error).__name__}); lower max_batch or prefix_cache_mib"
            )
            raise EngineError(str(self._gone)) from error
        except BaseException:
            # Ctrl-C inside a step: rows may be half written. The engine stays usable.
            self._refused += [
                (ticket, Failed("interrupted")) for ticket in sorted(self._started)
            ]
            self._started.clear()
            self._drop(None)
            raise

    def abort(self, tickets: Iterable[Ticket]) -> None:
        """Forget requests; nothing comes back for them."""
        gone = frozenset(tickets)
        self._waiting = deque(item for item in self._waiting if item[0] not in gone)
        self._refused = self._refusals(gone)
        self._started -= gone
        self._drop(gone)

    def close(self) -> None:
        """Free the model. Further calls of `submit` and `step` raise `EngineError`."""
        if self._gone is None:
            self._die("the engine is closed")

    def _die(self, why: str) -> None:
        self._gone = " ".join(why.split())
        self._waiting.clear()
        self._refused.clear()
        self._drop(None)
        self._free()
