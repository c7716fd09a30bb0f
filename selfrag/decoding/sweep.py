"""Re-ranking of recorded answers under many settings at once."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from selfrag.decoding.answer import Answer
from selfrag.decoding.rescore import Bools, Ints, Settings, replay


def sweep(answers: Iterable[Answer], weights: Settings) -> tuple[Ints, Bools]:
    """Re-ranks A answers under S settings: ids of the last nodes [A, S], and whether each choice is exact [A, S]."""
    replays = [(replay(answer.trace, weights), answer.final) for answer in answers]
    if not replays:
        return np.zeros((0, len(weights)), dtype=np.int64), np.zeros((0, len(weights)), dtype=bool)
    return np.stack([r.best for r, _ in replays]), np.stack([r.exact & final for r, final in replays])
