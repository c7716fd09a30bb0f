"""Seeded bootstrap intervals of figures over items, and the area under the ROC curve.

The bootstrap says nothing where all items agree: every resampling is alike, and its interval has no width, also with
three items. `interval` then gives the exact interval of Clopper and Pearson (Biometrika 26, 1934) for the share of
items that are unlike those seen, and lets such items hold any possible value. At 0% and 100% of a share that is the
interval of Clopper and Pearson itself: 3 of 3 are [29.2, 100.0]. Items of different weight (questions with several
rows) count as Kish's effective number of items, which Korn and Graubard (Survey Methodology 24, 1998) put into that
interval.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

NONE = "\N{EN DASH}"
"""Stands for a figure that is not defined."""

SPELLED = "{} ({} to {})"
"""Form of a figure with its interval in reports of studies."""

ROUNDS = 2000
LEVEL = 0.95
EQUAL = 1e-9
"""Difference that rounding makes between equal figures."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its percentile interval."""

    value: float  # on all items; NaN without items, which is shown as a dash and written as None
    low: float  # lower end of the 95% interval; NaN with fewer than two items
    high: float  # upper end
    n: int  # items behind it

    def as_dict(self) -> dict[str, Any]:
        """Return plain values; NaN becomes None."""
        values: dict[str, Any] = json_values(self)
        return values

    @property
    def defined(self) -> bool:
        """Return whether there is a figure at all."""
        return self.value == self.value

    def __str__(self) -> str:
        if not self.defined:
            return f"{NONE} n={self.n}"
        text = f"{self.value:.3f}"
        if self.low == self.low:
            text += f" [{self.low:.3f}, {self.high:.3f}]"
        return f"{text} n={self.n}"


def json_values(figures: Any) -> Any:
    """Return figures, and dataclasses and mappings of them, as values for JSON; NaN becomes None."""
    if is_dataclass(figures):
        figures = {
            field.name: getattr(figures, field.name) for field in fields(figures)
        }
    if isinstance(figures, Mapping):
        values = {}
        for name, value in figures.items():
            if hasattr(value, "as_dict"):
                values[name] = value.as_dict()
            else:
                values[name] = json_values(value)
        return values
    if figures != figures:
        return None
    return figures


def bracketed(
    estimate: Estimate | None,
    *,
    scale: float = 100,
    digits: int = 1,
    form: str = "{} [{}, {}]",
) -> str:
    """Return `54.9 [51.0, 58.8]`, in percent unless told otherwise.

    It is the value alone where there is no interval, and a dash where there is no value.
    """
    if estimate is None or not estimate.defined:
        return NONE
    ends = (estimate.value, estimate.low, estimate.high)
    value, low, high = (f"{scale * end:.{digits}f}" for end in ends)
    if estimate.low == estimate.low:
        return form.format(value, low, high)
    return value


def counted(estimate: Estimate, *, scale: float = 100) -> str:
    """Return `54.9 [51.0, 58.8] n=200`."""
    return f"{bracketed(estimate, scale=scale)} n={estimate.n}"


def share(part: FloatArray, total: FloatArray) -> FloatArray:
    """Return `part / total`, and 0 where the total is 0."""
    return np.divide(
        part, total, out=np.zeros_like(part, dtype=np.float64), where=total > 0
    )


Bounds = tuple[float, float]
"""Lowest and highest possible value of a figure."""

SHARE: Bounds = (0.0, 1.0)
DIFFERENCE: Bounds = (-1.0, 1.0)


def effective_items(weights: FloatArray) -> float:
    """Return Kish's effective number of items, (sum of weights)^2 / sum of squared weights; 0.0 without weight."""
    squared = float((weights**2).sum())
    if squared > 0:
        return float(weights.sum()) ** 2 / squared
    return 0.0


def bootstrap(
    items: int,
    statistic: Callable[[FloatArray], FloatArray],
    seed: int = 0,
    *,
    effective: float | None = None,
    bounds: Bounds | None = SHARE,
) -> Estimate:
    """Return any figure of items with its interval.

    Args:
        items: how many there are.
        statistic: maps counts [R, n] (how often each of R samples holds each item) to R values.
        seed: of the resampling.
        effective: items that the figure rests on, of `effective_items`; by default all.
        bounds: of the figure; None where it has none.
    """
    if items == 0:
        return Estimate(float("nan"), float("nan"), float("nan"), 0)
    value = float(statistic(np.ones((1, items)))[0])
    if items == 1:
        return interval(value, np.empty(0), 1)
    counts = (
        np.random.default_rng(seed)
        .multinomial(items, [1 / items] * items, size=ROUNDS)
        .astype(np.float64)
    )
    return interval(value, statistic(counts), items, effective=effective, bounds=bounds)


def interval(
    value: float,
    samples: FloatArray,
    items: int,
    *,
    effective: float | None = None,
    bounds: Bounds | None = SHARE,
) -> Estimate:
    """Return a figure with the percentile interval of its bootstrap samples; without finite ones its ends are NaN.

    Where all samples are equal, the interval is that of `agreeing_interval`.
    """
    known = samples[np.isfinite(samples)]
    if items < 2 or not len(known):
        return Estimate(value, float("nan"), float("nan"), items)
    tail = 100 * (1 - LEVEL) / 2
    low, high = np.percentile(known, [tail, 100 - tail])
    if high - low < EQUAL:
        if effective is None:
            effective = items
        low, high = agreeing_interval(value, effective, bounds)
    return Estimate(value, float(low), float(high), items)


def agreeing_interval(value: float, effective: float, bounds: Bounds | None) -> Bounds:
    """Return the interval of a mean where all items hold the same value; NaN where nothing is known of other items.

    With n items, at least (alpha / 2)^(1 / n) of all items hold that value, or n of n would be less likely than
    alpha / 2. The others lie anywhere within the bounds.
    """
    if (
        bounds is None
        or effective <= 0
        or not bounds[0] - EQUAL <= value <= bounds[1] + EQUAL
    ):
        return float("nan"), float("nan")
    alike = ((1 - LEVEL) / 2) ** (1 / effective)
    return alike * value + (1 - alike) * bounds[0], alike * value + (
        1 - alike
    ) * bounds[1]


def mean(
    values: Iterable[float | None] | FloatArray,
    *,
    seed: int = 0,
    bounds: Bounds | None = SHARE,
) -> Estimate:
    """Return the mean of one value an item, without items whose value is None; `bounds` are those of a value."""
    data = np.array([value for value in values if value is not None], dtype=np.float64)
    return bootstrap(
        len(data),
        lambda counts: np.asarray(counts @ data / counts.sum(axis=1)),
        seed,
        bounds=bounds,
    )


def pooled_auc(
    positives: Sequence[Sequence[float]],
    negatives: Sequence[Sequence[float]],
    *,
    seed: int = 0,
) -> Estimate:
    """Return the AUC over the scores of each item's positives and negatives, all items together.

    Whole items are resampled, because their passages belong together.
    """
    matrix = win_matrix(positives, negatives)
    right = np.array(list(map(len, positives)), dtype=np.float64)
    wrong = np.array(list(map(len, negatives)), dtype=np.float64)

    def statistic(counts: FloatArray) -> FloatArray:
        won = ((counts @ matrix) * counts).sum(axis=1)
        pairs = (counts @ right) * (counts @ wrong)
        return np.asarray(
            np.divide(won, pairs, out=np.full(len(counts), np.nan), where=pairs > 0)
        )

    effective = min(effective_items(right), effective_items(wrong))
    return bootstrap(len(matrix), statistic, seed, effective=effective)


def win_matrix(
    positives: Sequence[Sequence[float]], negatives: Sequence[Sequence[float]]
) -> FloatArray:
    """Return [n, n] pairs in which a positive of item i scores above a negative of item j, ties half (Mann-Whitney).

    With counts c of how often a bootstrap sample draws each item, the pooled AUC of the sample is
    `c W c / ((c . n_positives) (c . n_negatives))`.
    """
    sizes = list(map(len, positives))
    flat = np.asarray(
        [score for scores in positives for score in scores], dtype=np.float64
    )
    owner = np.repeat(np.arange(len(sizes)), sizes)
    matrix = np.zeros((len(positives), len(negatives)))
    for j, scores in enumerate(negatives):
        ordered = np.sort(np.asarray(scores, dtype=np.float64))
        below = np.searchsorted(ordered, flat, side="left")
        not_above = np.searchsorted(ordered, flat, side="right")
        matrix[:, j] = np.bincount(
            owner, weights=(below + not_above) / 2, minlength=len(sizes)
        )
    return matrix


def kappa(items: Sequence[Sequence[tuple[bool, bool]]], *, seed: int = 0) -> Estimate:
    """Return Cohen's kappa over the pairs of verdicts of all items together; whole items are resampled."""
    counts = np.zeros((len(items), 2, 2))  # of pairs, by both verdicts
    for table, pairs in zip(counts, items, strict=True):
        for pair in pairs:
            table[tuple(map(int, pair))] += 1
    counts = counts[counts.any(axis=(1, 2))]
    differ = 1 - np.eye(2)
    return bootstrap(
        len(counts),
        lambda drawn: kappas(np.einsum("ri,ijk->rjk", drawn, counts), differ),
        seed,
        effective=effective_items(counts.sum(axis=(1, 2))),
        bounds=kappa_bounds(counts.sum(axis=0), differ),
    )


def kappas(tables: FloatArray, weights: FloatArray) -> FloatArray:
    """Return 1 - observed / expected disagreement of tables [R, n, n] of verdicts by two sides, Cohen's kappa.

    It is NaN where chance alone agrees always. `weights` [n, n] of disagreements are 0 on the diagonal: 1 elsewhere, or
    squared distances. `sklearn.metrics.cohen_kappa_score` is the oracle of the tests; called once for each of 2,000
    resamplings it would take seconds a figure.
    """
    observed = np.einsum("rij,ij->r", tables, weights) * tables.sum(axis=(1, 2))
    expected = np.einsum("ri,rj,ij->r", tables.sum(axis=2), tables.sum(axis=1), weights)
    undefined = np.full(len(tables), np.nan)
    return np.asarray(
        1 - np.divide(observed, expected, out=undefined, where=expected > 0)
    )


def kappa_bounds(table: FloatArray, weights: FloatArray) -> Bounds | None:
    """Return the kappas of total disagreement with the same margins and of agreement; None if chance always agrees."""
    chance = table.sum(axis=1) @ weights @ table.sum(axis=0)
    if chance > 0:
        return 1 - float(weights.max() * table.sum() ** 2 / chance), 1.0
    return None
