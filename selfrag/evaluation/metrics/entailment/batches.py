"""Batches of sequences of about one length, so that little is padded. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def batches(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Positions in batches, longest first, so that a batch that does not fit the memory is the first.

    Args:
        lengths: of each sequence.
        tokens: most tokens of a batch, padding included; a longer sequence makes a batch of its own.
    """
    batch: list[int] = []
    for position in sorted(range(len(lengths)), key=lambda at: (-lengths[at], at)):
        longest = lengths[batch[0]] if batch else 0
        if batch and longest * (len(batch) + 1) > tokens:
            yield batch
            batch = []
        batch.append(position)
    if batch:
        yield batch
