"""How far labels of several teachers agree: Cohen's kappa, raw agreement and confusion, group by group.

Only cases that both of two teachers labelled are compared; what one of them set aside is counted beside it. Intervals
are percentile bootstraps over cases; drawing cases with replacement is drawing cells of the confusion matrix.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from critic.cases import GROUPS
from selfrag.evaluation.intervals import ROUNDS, Estimate, interval, json_values

Labels = Mapping[str, Mapping[str, str]]
"""Group -> id of a case -> label name."""

ORDERED = ("IsSup", "IsUse")
"""Groups whose labels are a scale, so that near misses count as such in the weighted kappa."""

HUMAN = {"Retrieve": 0.95, "IsRel": 0.95, "IsSup": 0.90, "IsUse": 0.80}
"""Share of 20 cases each on which the paper's authors agreed with GPT-4 (appendix A.1)."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Two teachers on one group."""

    first: str  # name of the teacher whose labels are the rows of `confusion`
    second: str  # name of the other one, the columns
    group: str
    confusion: tuple[tuple[int, ...], ...]  # cases by both labels, in label order
    only_first: int  # cases that the first labelled and the second did not
    only_second: int
    agreement: Estimate  # share of equal labels
    kappa: Estimate  # Cohen's; NaN where chance alone agrees always
    weighted: Estimate | None  # kappa with quadratic weights, for groups with a scale

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; NaN becomes None."""
        return {**json_values(self), "labels": list(GROUPS[self.group].names)}


def agreements(teachers: Mapping[str, Labels], *, seed: int = 0) -> list[Agreement]:
    """Compare every two teachers on every group that one of them labelled; the seed is of the intervals."""
    compared = []
    for first, second in combinations(teachers, 2):
        for group in GROUPS:
            left = teachers[first].get(group, {})
            right = teachers[second].get(group, {})
            if left or right:
                compared.append(compare(first, second, group, left, right, seed=seed))
    return compared


def compare(
    first: str,
    second: str,
    group: str,
    left: Mapping[str, str],
    right: Mapping[str, str],
    *,
    seed: int = 0,
    rounds: int = ROUNDS,
) -> Agreement:
    """Compare two teachers on one group; `left` and `right` are id -> label name of the first and the second."""
    labels = GROUPS[group]
    shared = left.keys() & right.keys()
    confusion = np.zeros((len(labels), len(labels)), dtype=np.int64)
    for key in shared:
        confusion[labels.index(left[key]), labels.index(right[key])] += 1
    size = len(labels)
    apart = np.abs(np.subtract.outer(np.arange(size), np.arange(size))).astype(
        np.float64
    )
    differ = (apart > 0).astype(np.float64)
    return Agreement(
        first,
        second,
        group,
        tuple(map(tuple, confusion.tolist())),
        len(left) - len(shared),
        len(right) - len(shared),
        _estimate(confusion, differ, seed, rounds, by_chance=False),
        _estimate(confusion, differ, seed, rounds),
        _estimate(confusion, apart**2, seed, rounds) if group in ORDERED else None,
    )


def _estimate(
    confusion: NDArray[np.int64],
    weights: NDArray[np.float64],
    seed: int,
    rounds: int,
    *,
    by_chance: bool = True,
) -> Estimate:
    """1 - observed / expected disagreement, which is Cohen's kappa; or 1 - observed.

    `weights` [n, n] of disagreements are 0 on the diagonal: 1 elsewhere, or squared distances.
    """
    cases = int(confusion.sum())
    if cases == 0:
        return Estimate(math.nan, math.nan, math.nan, 0)

    def statistic(counts: NDArray[Any]) -> NDArray[np.float64]:
        observed = np.asarray(np.einsum("rij,ij->r", counts, weights)) / cases
        if not by_chance:
            return 1 - observed
        expected = (
            np.einsum("ri,rj,ij->r", counts.sum(axis=2), counts.sum(axis=1), weights)
            / cases**2
        )
        return np.asarray(
            1
            - np.divide(
                observed, expected, out=np.full(len(counts), np.nan), where=expected > 0
            )
        )

    value = float(statistic(confusion[None])[0])
    chance = confusion.sum(axis=1) @ weights @ confusion.sum(axis=0) / cases**2
    lowest = 0.0
    if by_chance and chance > 0:
        lowest = 1 - weights.max() / chance
    drawn = np.random.default_rng(seed).multinomial(
        cases, confusion.ravel() / cases, size=rounds
    )
    return interval(
        value,
        statistic(drawn.reshape(rounds, *confusion.shape)),
        cases,
        bounds=(float(lowest), 1.0),
    )
