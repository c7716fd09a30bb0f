"""A sample of a stream that depends on the seed and the ids alone. Knows no data set.

Each item gets a number from its id and the seed, and the smallest numbers win. So the order of the rows, shards and
machines do not matter, and a smaller sample of the same seed is part of a larger one (data-size studies).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from hashlib import blake2b
from typing import Generic, TypeVar

from critic.pairs import Pair

T = TypeVar("T")


class Sample(Generic[T]):
    """At most `count` of the items added so far; no more are held at any time."""

    def __init__(self, count: int, seed: int) -> None:
        self.count = count
        self.seed = seed
        self._kept: list[tuple[int, int, T]] = []  # a heap with the largest number on top
        self._added = 0

    def add(self, key: str, item: T) -> None:
        """Offer an item under its id, which no other item has."""
        self._added += 1
        entry = (-number(key, self.seed), -self._added, item)
        if len(self._kept) < self.count:
            heapq.heappush(self._kept, entry)
        elif self._kept and entry[:2] > self._kept[0][:2]:
            heapq.heapreplace(self._kept, entry)

    def items(self) -> list[T]:
        """The sample, in the order in which it was added."""
        return [item for _, _, item in sorted(self._kept, key=lambda entry: -entry[1])]


def draw(pairs: Iterable[Pair], count: int, seed: int) -> list[Pair]:
    """At most `count` pairs, in the order they came in."""
    sample: Sample[Pair] = Sample(count, seed)
    for pair in pairs:
        sample.add(pair.id, pair)
    return sample.items()


def number(key: str, seed: int) -> int:
    """A number from 0 to 2**64 - 1, the same in every process."""
    return int.from_bytes(blake2b(f"{seed}\0{key}".encode("utf-8", "surrogatepass"), digest_size=8).digest())
