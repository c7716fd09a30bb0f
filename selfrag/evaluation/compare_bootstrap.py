"""Bootstrap over items for many figures at once, so that figures of one file are resampled together and can be paired.

Each resampling draws the items of a file with replacement; every system's figure is computed on the same draw, and the
difference of two figures is the difference draw by draw. Pure numbers.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from selfrag.evaluation.intervals import ROUNDS, Estimate, Floats, interval
from selfrag.evaluation.metrics.registry import Part

BLOCK = 200
"""Resamplings held in memory at once."""


@dataclass(frozen=True, slots=True)
class Draws:
    """A figure and what it was in each resampling.

    Attributes:
        value: on all items.
        samples: [R] in each resampling; NaN where no item of the draw counted.
        n: items that count.
    """

    value: float
    samples: Floats
    n: int

    @property
    def estimate(self) -> Estimate:
        """The figure with its 95% interval."""
        return interval(self.value, self.samples, self.n)

    def __sub__(self, other: Draws) -> Draws:
        """The paired difference; both figures must be of the same items and seed."""
        return Draws(self.value - other.value, self.samples - other.samples, min(self.n, other.n))


def bootstrap(
    figures: Sequence[Sequence[Part | None]], *, name: str = "", seed: int = 0, rounds: int = ROUNDS
) -> list[Draws | None]:
    """Resample items for several figures together.

    Args:
        figures: for each figure one part an item, in the same order of items.
        name: of the file; files of other names are resampled independently.
        seed: of the resampling.
        rounds: how often.

    Returns:
        For each figure its draws, or None where no item counts.

    Raises:
        ValueError: figures of different numbers of items.
    """
    items = len(figures[0]) if figures else 0
    if any(len(parts) != items for parts in figures):
        raise ValueError("figures of different numbers of items")
    if not items:
        return [None] * len(figures)
    top = np.array([[0.0 if p is None else p[0] for p in parts] for parts in figures]).T
    bottom = np.array([[0.0 if p is None else p[1] for p in parts] for parts in figures]).T
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    samples = np.concatenate(
        [_block(top, bottom, rng, min(BLOCK, rounds - done)) for done in range(0, rounds, BLOCK)], axis=0
    )
    total = bottom.sum(axis=0)
    counting = (bottom > 0).sum(axis=0)
    return [
        Draws(float(top[:, i].sum() / total[i]), samples[:, i], int(counting[i])) if total[i] > 0 else None
        for i in range(len(figures))
    ]


def average(draws: Sequence[Draws | None]) -> Draws | None:
    """The plain mean of figures of different files, resampled independently; None if one of them is undefined."""
    known = [one for one in draws if one is not None]
    if not known or len(known) < len(draws):
        return None
    value = sum(one.value for one in known) / len(known)
    return Draws(value, np.mean([one.samples for one in known], axis=0), sum(one.n for one in known))


def _block(top: Floats, bottom: Floats, rng: np.random.Generator, rounds: int) -> Floats:
    items = len(top)
    counts = rng.multinomial(items, [1 / items] * items, size=rounds).astype(np.float64)
    below = counts @ bottom
    return np.asarray(np.divide(counts @ top, below, out=np.full_like(below, np.nan), where=below > 0))
