"""How far labels of several teachers agree: Cohen's kappa, raw agreement and confusion, group by group.

Only cases that both of two teachers labelled are compared; what one of them set aside is counted beside it. Intervals
are percentile bootstraps over cases; drawing cases with replacement is drawing cells of the confusion matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from critic.cases import GROUPS
from selfrag.evaluation.intervals import (
    ROUNDS,
    SHARE,
    Bounds,
    FloatArray,
    interval,
    json_values,
    kappa_bounds,
    kappas,
)
from selfrag.interface import Estimate

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
) -> Agreement:
    """Compare two teachers on one group; `left` and `right` are id -> label name of the first and the second."""
    labels = GROUPS[group]
    shared = left.keys() & right.keys()
    confusion = np.zeros((len(labels), len(labels)))
    for key in shared:
        confusion[labels.index(left[key]), labels.index(right[key])] += 1
    places = np.arange(len(labels))
    apart = np.abs(np.subtract.outer(places, places)) * 1.0
    return Agreement(
        first,
        second,
        group,
        tuple(map(tuple, confusion.astype(int).tolist())),
        len(left) - len(shared),
        len(right) - len(shared),
        _estimate(confusion, _agreements, SHARE, seed),
        _kappa(confusion, np.sign(apart), seed),
        _kappa(confusion, apart**2, seed) if group in ORDERED else None,
    )


def _agreements(tables: FloatArray) -> FloatArray:
    """Return the share of cases on the diagonal of each table."""
    return np.asarray(np.trace(tables, axis1=1, axis2=2) / tables.sum(axis=(1, 2)))


def _kappa(confusion: FloatArray, weights: FloatArray, seed: int) -> Estimate:
    bounds = kappa_bounds(confusion, weights)
    return _estimate(confusion, lambda tables: kappas(tables, weights), bounds, seed)


def _estimate(
    confusion: FloatArray,
    statistic: Callable[[FloatArray], FloatArray],
    bounds: Bounds | None,
    seed: int,
) -> Estimate:
    """Return a figure of a confusion matrix with its interval."""
    cases = int(confusion.sum())
    if cases == 0:
        return Estimate(math.nan, math.nan, math.nan, 0)
    value = float(statistic(confusion[None])[0])
    drawn = np.random.default_rng(seed).multinomial(
        cases, confusion.ravel() / cases, size=ROUNDS
    )
    tables = drawn.reshape(ROUNDS, *confusion.shape).astype(np.float64)
    samples = statistic(tables)
    return interval(value, samples, cases, bounds=bounds)
