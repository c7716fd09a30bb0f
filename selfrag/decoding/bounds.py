"""The highest score that a segment can still reach while it is written, and what that rules out.

`docs/explanation/pruning.md` has the proof.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product

import numpy as np
from numpy.typing import NDArray

from selfrag.decoding.policy import Decoding
from selfrag.decoding.segments import Floats, applicable, critique_scores, path_score
from selfrag.decoding.trace import Node, Status
from selfrag.reflection.labels import CRITIQUES

MARGIN = 1e-6
"""By how much, relative to its size, a bound must be below a score: more than the rounding of both."""


def below(bound: Floats | float, score: Floats | float) -> NDArray[np.bool_]:
    """Whether bounds are certainly below scores, elementwise."""
    return np.asarray(bound + MARGIN * (1 + np.abs(bound)) < score)


def highest_likelihood(policy: Decoding, logprobs: Sequence[float], most: int) -> float:
    """The highest likelihood of a segment of at most `most` tokens that begins with these log-probabilities.

    The tokens to come have at most probability 1, and a mean is the highest where there are most of them.
    """
    if policy.likelihood == "none":
        return 0.0
    return math.exp(min(0.0, math.fsum(logprobs)) / (1 if policy.likelihood == "product" else most))


def segment_range(node: Node, weights: Floats, policy: Decoding) -> tuple[Floats, Floats]:
    """The lowest and the highest score of a segment for each of S settings.

    Args:
        node: a node that was given up or is being written: `likelihood` is its highest, and `judgments` holds the
            critiques that are known, None among them. Any other node has its own score.
        weights: [S, 3], of IsRel, IsSup and IsUse.
        policy: settings, without reflectors.
    """
    open_ones = node.status is Status.BOUNDED
    choices: list[tuple[float, ...]] = []
    for labels in CRITIQUES:
        if open_ones and labels.role not in node.judgments and labels in applicable(node.branch):
            choices.append((np.nan, min(labels.values), max(labels.values)))  # undefined, or anywhere between
        else:
            judgment = node.judgments.get(labels.role)
            choices.append((np.nan if judgment is None else judgment.score,))
    # The score is linear in the critiques that are defined, so its extremes are at their ends.
    corners = critique_scores(np.array(list(product(*choices))), weights, policy.undefined)
    return corners.min(axis=1) + (0 if open_ones else node.likelihood), corners.max(axis=1) + node.likelihood


@dataclass(frozen=True, slots=True)
class Bounds:
    """The highest scores [S] that are possible for a node."""

    segment: Floats  # of its segment
    path: Floats  # of the path that ends with it
    answer: Floats  # of an answer that begins with that path


def segment_limits(weights: Floats, policy: Decoding) -> tuple[Floats, Floats]:
    """The lowest and the highest score [S] that any segment can have."""
    unwritten = Node(0, 0, 0, "passage", None, likelihood=float(policy.likelihood != "none"), status=Status.BOUNDED)
    return segment_range(unwritten, weights, policy)


def bounds(
    node: Node, before: Sequence[Floats], weights: Floats, policy: Decoding, limits: tuple[Floats, Floats]
) -> Bounds:
    """The highest scores of a node, as of `segment_range`, after segments with the scores `before`.

    `limits` are those of `segment_limits`.

    A path score is linear in each of its segments, so its extremes are at theirs; a blank segment does not count.
    Means, sums and products of positive numbers change in one direction with each equal segment that is added, so the
    highest answer has none or all of those that may follow.
    """
    low, high = segment_range(node, weights, policy)
    ends = [path_score([*before, low], policy.accumulate), path_score([*before, high], policy.accumulate)]
    if before and not node.text.strip():
        ends.append(path_score(before, policy.accumulate))
    path = reduce(np.maximum, ends)
    left = policy.max_segments - node.depth
    if left == 0:
        return Bounds(high, path, path)
    least, most = limits
    steps = [*before, high]
    ends = [path]
    if policy.accumulate == "product":  # of two negative ones, too
        steps = [*map(np.abs, before), np.maximum(np.abs(low), np.abs(high))]
        most = np.maximum(np.abs(least), np.abs(most))
        ends.append(path_score(steps, "product"))
    ends.append(path_score([*steps, *[most] * left], policy.accumulate))
    return Bounds(high, path, reduce(np.maximum, ends))
