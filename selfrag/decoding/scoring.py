"""Segment and path scores (Eq. 3-4). Pure arithmetic on judgments; knows no tokens.

Vectorised over settings where a sweep needs it; the scalar functions are the one-setting case of the same code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import CRITIQUES, Role
from selfrag.reflection.weights import Weights

Undefined = Literal["skip", "force", "zero"]
Accumulate = Literal["mean", "sum", "product"]
Floats = NDArray[np.float64]


def group_scores(judgments: Mapping[Role, Judgment | None]) -> Floats:
    """Normalised scores in the order isrel, issup, isuse; NaN where a critique is undefined. Shape [3]."""
    found = (judgments.get(labels.role) for labels in CRITIQUES)
    return np.array([np.nan if judgment is None else judgment.score for judgment in found])


def critique_scores(scores: Floats, weights: Floats, undefined: Undefined) -> Floats:
    """Weighted critique term S of Eq. 4 for every setting and candidate.

    With `skip` the weights of the defined groups are scaled up to the sum of all weights, so that a candidate is
    neither rewarded nor punished for a critique it does not have; with `zero` (and after `force`, where one could not
    be made) an undefined group adds 0.

    Args:
        scores: [N, 3] group scores, NaN where undefined.
        weights: [S, 3] weights.
        undefined: the policy.

    Returns:
        [S, N].
    """
    defined = ~np.isnan(scores)
    total: Floats = weights @ np.where(defined, scores, 0.0).T
    if undefined != "skip" or defined.all():
        return total
    present = weights @ defined.T.astype(np.float64)
    every = weights.sum(axis=1, keepdims=True)
    usable = np.abs(present) > 1e-12
    scale: Floats = np.divide(every, present, out=np.ones_like(total), where=usable)
    scaled: Floats = total * scale
    return scaled


def segment_score(
    likelihood: float, judgments: Mapping[Role, Judgment | None], weights: Weights, undefined: Undefined = "skip"
) -> float:
    """Score of one candidate: p(y_t|x,d,y_<t) + sum_G w_G s_G."""
    scores = group_scores(judgments)[None, :]
    return likelihood + float(critique_scores(scores, np.array([weights.vector]), undefined)[0, 0])


def path_score(segment_scores: Sequence[float], accumulate: Accumulate) -> float:
    """Score of a hypothesis from the scores of its segments, at least one."""
    values = np.asarray(segment_scores, dtype=np.float64)
    if accumulate == "mean":
        return float(values.mean())
    return float(values.sum() if accumulate == "sum" else values.prod())


def option_scores(passage_weights: Floats, option_probabilities: Floats) -> Floats:
    """Aggregate option probabilities over passages: sum_d w(d) p(option|d), weights below 0 counting as 0.

    Args:
        passage_weights: [D] or, where the critique depends on the option, [D, O].
        option_probabilities: [D, O].

    Returns:
        [O].
    """
    weights = np.maximum(passage_weights, 0.0)
    if weights.ndim == 1:
        weights = weights[:, None]
    total: Floats = (weights * option_probabilities).sum(axis=0)
    return total
