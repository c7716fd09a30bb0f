"""Re-ranking of recorded answers under many settings at once."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from selfrag.decoding.answer import Answer
from selfrag.decoding.rescore import Bools, Ints, ReplayWeights, replay


def sweep(answers: Iterable[Answer], weights: ReplayWeights) -> tuple[Ints, Bools]:
    """Re-rank A answers under S settings: ids of the last nodes [A, S], and whether each choice is exact [A, S]."""
    best = []
    exact = []
    for answer in answers:
        result = replay(answer.trace, weights)
        best.append(result.best)
        exact.append(result.exact & answer.final)
    shape = len(best), len(weights)
    return np.array(best, dtype=np.int64).reshape(shape), np.array(
        exact, dtype=bool
    ).reshape(shape)
