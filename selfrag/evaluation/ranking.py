"""Area under the ROC curve from scores, and how it splits over items. Pure numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def wins(positives: Sequence[float], negatives: Sequence[float]) -> float:
    """Number of (positive, negative) pairs in which the positive scores higher; ties count one half."""
    ordered = np.sort(np.asarray(negatives, dtype=np.float64))
    scores = np.asarray(positives, dtype=np.float64)
    below = np.searchsorted(ordered, scores, side="left")
    not_above = np.searchsorted(ordered, scores, side="right")
    return float((below + not_above).sum() / 2)


def auc(positives: Sequence[float], negatives: Sequence[float]) -> float:
    """Probability that a random positive scores above a random negative (Mann-Whitney); NaN if a side is empty."""
    pairs = len(positives) * len(negatives)
    return wins(positives, negatives) / pairs if pairs else float("nan")


def win_matrix(positives: Sequence[Sequence[float]], negatives: Sequence[Sequence[float]]) -> Floats:
    """[n, n] wins of the positives of item i over the negatives of item j.

    With counts c of how often a bootstrap sample draws each item, the pooled AUC of the sample is
    `c W c / ((c . n_positives) (c . n_negatives))`.
    """
    sizes = [len(scores) for scores in positives]
    flat = np.asarray([score for scores in positives for score in scores], dtype=np.float64)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    matrix = np.zeros((len(positives), len(negatives)))
    for j, scores in enumerate(negatives):
        ordered = np.sort(np.asarray(scores, dtype=np.float64))
        below = np.searchsorted(ordered, flat, side="left")
        not_above = np.searchsorted(ordered, flat, side="right")
        matrix[:, j] = np.bincount(owner, weights=(below + not_above) / 2, minlength=len(sizes))
    return matrix
