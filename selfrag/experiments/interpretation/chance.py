"""Agreement of two verdicts beyond chance: Cohen's kappa with a bootstrap interval over items. Pure numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from selfrag.evaluation.intervals import Estimate, Floats, bootstrap

Verdicts = Sequence[tuple[bool, bool]]
"""Both verdicts on each thing that belongs to one item."""


def kappa(items: Sequence[Verdicts], *, seed: int = 0) -> Estimate:
    """Cohen's kappa over the verdicts of all items together; whole items are resampled.

    It is 1 for perfect agreement and 0 for that of chance. Where one side always says the same, chance agrees as often
    as they do, and kappa is 0; where both always say the same one thing, it is not defined and NaN.

    Args:
        items: for each item its pairs.
        seed: of the interval.
    """
    counts = np.array([_counts(pairs) for pairs in items if pairs], dtype=np.float64).reshape(-1, 4)
    return bootstrap(len(counts), lambda drawn: _kappa(drawn @ counts), seed)


def _counts(pairs: Verdicts) -> tuple[int, int, int, int]:
    """How often both say yes, only the first, only the second, neither."""
    return (
        sum(one and other for one, other in pairs),
        sum(one and not other for one, other in pairs),
        sum(other and not one for one, other in pairs),
        sum(not one and not other for one, other in pairs),
    )


def _kappa(table: Floats) -> Floats:
    """[R, 4] counts to [R] values."""
    both, first, second, neither = table.T
    total = table.sum(axis=1)
    observed = (both + neither) / total
    yes = (both + first) * (both + second) / total**2
    no = (neither + first) * (neither + second) / total**2
    chance = yes + no
    room = 1 - chance
    return np.asarray(np.divide(observed - chance, room, out=np.full_like(room, np.nan), where=room > 1e-12))
