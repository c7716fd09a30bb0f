"""Calibration of probabilities: expected calibration error, reliability diagram, Brier score.

A prediction is its confidence (0 to 1) and whether it was right (1 or 0).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from selfrag.errors import UserError, require
from selfrag.evaluation.intervals import Estimate, Floats, bootstrap, mean
from selfrag.plotting import save

BINS = 10
"""Stretches of confidence of the paper's figure, and of most of the field's."""

Indices = NDArray[np.intp]
Statistic: TypeAlias = Callable[[Floats], Floats]


@dataclass(frozen=True, slots=True)
class Bin:
    """A bin that holds predictions: least and largest confidence, how many, their mean confidence, the share right."""

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


def equal_bins(confidence: ArrayLike, bins: int = BINS) -> Indices:
    """Bin of each confidence where [0, 1] is cut into stretches of one width; a border belongs to the upper bin."""
    values = np.asarray(confidence, dtype=np.float64)
    return np.clip((values * bins).astype(np.intp), 0, bins - 1)


def adaptive_bins(confidence: ArrayLike, bins: int = BINS) -> Indices:
    """Bin of each confidence where bins hold the same number of predictions (as far as equal confidences allow)."""
    values = np.asarray(confidence, dtype=np.float64)
    # Equal values share the place of the first of them, so the order of the rows does not matter.
    place = np.searchsorted(np.sort(values), values, side="left")
    return (place * bins // max(1, len(values))).astype(np.intp)


def error_statistic(surplus: Floats, bins: Indices) -> Statistic:
    """Expected calibration error of bootstrap samples.

    Args:
        surplus: confidence minus correctness of each prediction [n].
        bins: bin of each prediction [n]; the bins of the whole data are those of every sample.
    """
    if not len(surplus):
        return lambda counts: np.full(len(counts), np.nan)
    member = np.eye(int(bins.max()) + 1)[bins] * surplus[:, None]
    return lambda counts: np.asarray(np.abs(counts @ member).sum(axis=1) / counts.sum(axis=1))


def calibration_error(
    confidence: Sequence[float], correct: Sequence[float], *, bins: int = BINS, adaptive: bool = False, seed: int = 0
) -> Estimate:
    """Expected calibration error: the mean over predictions of |accuracy - confidence| of their bin.

    Bins are of equal width, or of equal counts (`adaptive`). Resampled errors lie above the true one on few rows, so
    the interval does too.

    Raises:
        ValueError: lengths differ, or a confidence is no probability.
    """
    values, right, where = _binned(confidence, correct, bins, adaptive)
    return bootstrap(len(values), error_statistic(values - right, where), seed)


def brier(confidence: Sequence[float], correct: Sequence[float], *, seed: int = 0) -> Estimate:
    """Brier score of a binary event: mean squared distance of confidence and correctness, 0 (best) to 1.

    Raises:
        ValueError: as `calibration_error`.
    """
    values, right, _ = _binned(confidence, correct)
    return mean((values - right) ** 2, seed=seed)


def reliability(
    confidence: Sequence[float], correct: Sequence[float], *, bins: int = BINS, adaptive: bool = False
) -> tuple[Bin, ...]:
    """The bins behind the error, in order of confidence.

    Raises:
        ValueError: as `calibration_error`.
    """
    values, right, where = _binned(confidence, correct, bins, adaptive)
    found = []
    for number in np.unique(where):
        inside, hits = values[where == number], right[where == number]
        means = float(inside.mean()), float(hits.mean())
        found.append(Bin(float(inside.min()), float(inside.max()), len(inside), *means))
    return tuple(found)


def _binned(
    confidence: Sequence[float], correct: Sequence[float], bins: int = BINS, adaptive: bool = False
) -> tuple[Floats, Floats, Indices]:
    values, right = np.asarray(confidence, dtype=np.float64), np.asarray(correct, dtype=np.float64)
    if values.shape != right.shape:
        raise ValueError(f"{values.size} confidences for {right.size} outcomes")
    if len(wrong := values[~((values >= 0) & (values <= 1))]):
        raise ValueError(f"no probability: {wrong[0]}")
    return values, right, adaptive_bins(values, bins) if adaptive else equal_bins(values, bins)


def plot_reliability(systems: Mapping[str, Sequence[Bin]], out: Path) -> Path:
    """The reliability diagram: accuracy against confidence, one curve a system, and the predictions in each bin.

    Args:
        systems: name of a system -> its bins, from `reliability`.
        out: a `.png`, `.svg` or `.pdf`; appears when it is complete.

    Raises:
        UserError: there is nothing to draw, or `out` cannot be written.
        MissingExtraError: matplotlib is not installed.
    """
    shown = {name: list(bins) for name, bins in systems.items() if bins}
    if not shown:
        raise UserError("no system has a bin: nothing to draw")
    require("matplotlib", extra="eval")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 6), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    upper.plot((0, 1), (0, 1), color="grey", linewidth=1, linestyle="--", label="calibrated")
    for name, bins in shown.items():
        confidence = [one.confidence for one in bins]
        (line,) = upper.plot(confidence, [one.accuracy for one in bins], marker="o", linewidth=1.5, label=name)
        lower.plot(confidence, [one.count for one in bins], marker="o", linewidth=1, color=line.get_color())
    upper.set(ylabel="share that was right", xlim=(0, 1), ylim=(0, 1))
    lower.set(xlabel="certainty", ylabel="answers", xlim=(0, 1), ylim=(0, None))
    upper.legend(fontsize="small")
    for axes in (upper, lower):
        axes.grid(alpha=0.3)
    return save(figure, out)
