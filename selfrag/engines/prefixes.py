"""Which token prefixes are worth keeping (`PrefixCache`) and worth a computation of their own (`shared_prefixes`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

Payload = TypeVar("Payload")


Tokens: TypeAlias = Sequence[int] | NDArray[np.int64]


def common_length(one: Tokens, other: Tokens) -> int:
    """Number of leading ids that two sequences share."""
    size = min(len(one), len(other))
    different = np.flatnonzero(np.asarray(one[:size]) != np.asarray(other[:size]))
    return int(different[0]) if different.size else size


@dataclass(frozen=True, slots=True)
class Shared:
    """A prefix that several waiting prompts share."""

    tokens: tuple[int, ...]  # the prefix
    owner: int  # position of the prompt that is charged for computing it; the others get it for free


def shared_prefixes(prompts: Sequence[tuple[int, ...]], known: Sequence[int], minimum: int) -> list[Shared]:
    """Prefixes that are worth a computation of their own, at most one for each prompt.

    Args:
        prompts: what waits; each longer than its shared prefix will be, because the last id is always computed.
        known: for each prompt the number of leading ids that need no computation.
        minimum: fewest new ids for which an extra pass through the model pays.
    """
    order = sorted(range(len(prompts)), key=prompts.__getitem__)
    # overlap[i]: shared by sorted neighbours i - 1 and i; nothing is shared over the two ends.
    overlap = [0]
    for left, right in pairwise(order):
        shorter = min(len(prompts[left]), len(prompts[right]))
        overlap.append(min(common_length(prompts[left], prompts[right]), shorter - 1))
    overlap.append(0)
    best = [max(overlap[i], overlap[i + 1]) for i in range(len(order))]
    found = []
    start = 0
    for i in range(1, len(order) + 1):
        if i < len(order) and overlap[i] + minimum > max(best[i - 1], best[i]):
            continue
        if i - start > 1:
            length = min(overlap[start + 1 : i])
            members = order[start:i]
            if length - known[members[0]] >= minimum:
                found.append(Shared(prompts[members[0]][:length], min(members)))
        start = i
    return found


@dataclass(slots=True)
class _Entry(Generic[Payload]):
    scope: str | None
    tokens: NDArray[np.int64]
    payload: Payload
    size: int


class PrefixCache(Generic[Payload]):
    """A least-recently-used cache of values computed for token sequences.

    Scopes share nothing; each adapter has its own, because an adapter changes every key and value.
    Nothing is evicted before `trim`, so whatever a step of an engine stores stays for the whole step.
    """

    def __init__(self, budget: int) -> None:
        """An empty cache.

        Args:
            budget: largest total size after `trim`, in the unit of `put`'s `size`.
        """
        self._budget = budget
        self._entries: list[_Entry[Payload]] = []  # the least recently used first

    @property
    def size(self) -> int:
        """Size of everything kept."""
        return sum(entry.size for entry in self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def longest(self, scope: str | None, tokens: Sequence[int]) -> tuple[Payload | None, int]:
        """The entry that shares most leading ids with `tokens`, and how many. (None, 0) if none shares any."""
        wanted = np.asarray(tokens, dtype=np.int64)
        shared = [common_length(one.tokens, wanted) if one.scope == scope else 0 for one in self._entries]
        length = max(shared, default=0)
        if not length:
            return None, 0
        entry = self._entries.pop(shared.index(length))
        self._entries.append(entry)
        return entry.payload, length

    def covers(self, scope: str | None, tokens: Sequence[int]) -> bool:
        """Whether everything about `tokens` is kept already."""
        return self.longest(scope, tokens)[1] == len(tokens)

    def put(self, scope: str | None, tokens: Sequence[int], payload: Payload, size: int) -> None:
        """Keep `payload` for `tokens`; entries that `tokens` continues say nothing more and are dropped."""
        new = np.asarray(tokens, dtype=np.int64)
        others = [one for one in self._entries if one.scope != scope or not _continues(new, one.tokens)]
        self._entries = [*others, _Entry(scope, new, payload, size)]

    def trim(self) -> None:
        """Forget the least recently used entries beyond the budget."""
        excess = self.size - self._budget
        while excess > 0:
            excess -= self._entries.pop(0).size

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()


def _continues(tokens: NDArray[np.int64], beginning: NDArray[np.int64]) -> bool:
    return len(beginning) <= len(tokens) and np.array_equal(beginning, tokens[: len(beginning)])
