"""Fusion of two rankings of the same rows. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.checks import choice, number
from retrieval.vectors import Hits

_RRF_K = 5  # the textbook's 60 is worse on the development questions


@dataclass(frozen=True, slots=True)
class Fusion:
    """How two rankings become one."""

    # `min-max` adds scores that are scaled to 0 to 1 in each ranking; `rrf` adds 1 / (5 + rank) (reciprocal rank
    # fusion, Cormack et al. 2009). A row that a ranking does not hold gets 0 from it.
    method: str = "min-max"
    weight: float = 0.5  # of the first ranking, from 0 to 1; the second has the rest

    def __post_init__(self) -> None:
        choice("fusion", self.method, ["min-max", "rrf"])
        number("weight", self.weight, 0, 1)

    def __call__(self, first: Hits, second: Hits, k: int) -> Hits:
        """The k best rows of both, scores falling, equal ones in the order of their rows.

        Args:
            first: of one query, scores falling; -1 for no row.
            second: likewise.
            k: how many to return; -1 and a score of 0 fill what is missing.
        """
        points: dict[int, float] = {}
        for hits, weight in ((first, self.weight), (second, 1 - self.weight)):
            known = hits.rows[0] >= 0
            scaled = self._scaled(hits.scores[0][known])
            for row, value in zip(hits.rows[0][known].tolist(), scaled.tolist(), strict=True):
                points[row] = points.get(row, 0.0) + weight * value
        rows, scores = np.full((1, k), -1, np.int64), np.zeros((1, k), np.float32)
        best = sorted(points.items(), key=lambda one: (-one[1], one[0]))[:k]
        rows[0, : len(best)] = [row for row, _ in best]
        scores[0, : len(best)] = [score for _, score in best]
        return Hits(scores, rows)

    def _scaled(self, scores: NDArray[np.float32]) -> NDArray[Any]:
        if self.method == "rrf":
            return 1.0 / np.arange(_RRF_K + 1, _RRF_K + 1 + len(scores), dtype=np.float64)
        values = scores.astype(np.float64)
        span = np.ptp(values) if len(values) else 0.0
        return (values - values.min()) / span if span > 0 else np.ones(len(values))
