"""The highest score that a segment can still reach while it is written, and what that rules out.

`docs/explanation/pruning.md` has the proof.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any, Generic, NamedTuple

import numpy as np

from selfrag.decoding.policy import Decoding
from selfrag.decoding.segments import Score, applicable, critique_score, path_score
from selfrag.decoding.trace import Node, Status
from selfrag.reflection.labels import CRITIQUES

MARGIN = 1e-6
"""By how much, relative to its size, a bound must be below a score: more than the rounding of both."""


def below(bound: Any, score: Any) -> Any:
    """Whether bounds are certainly below scores, elementwise; of numbers and arrays."""
    return bound + MARGIN * (1 + abs(bound)) < score


def highest_likelihood(policy: Decoding, logprobs: Sequence[float], most: int) -> float:
    """The highest likelihood of a segment of at most `most` tokens that begins with these log-probabilities.

    The tokens to come have at most probability 1, and a mean is the highest where there are most of them.
    """
    if policy.likelihood == "none":
        return 0.0
    return math.exp(min(0.0, math.fsum(logprobs)) / (1 if policy.likelihood == "product" else most))


def segment_range(node: Node, weights: Sequence[Score], policy: Decoding) -> tuple[Score, Score]:
    """The lowest and the highest score of a segment that was given up, or is being written.

    Args:
        node: `likelihood` is its highest, and `judgments` holds the critiques that are known, None among them.
        weights: of IsRel, IsSup and IsUse; numbers, or arrays of S settings.
        policy: settings, without reflectors.
    """
    choices: list[tuple[float, ...]] = []
    for labels in CRITIQUES:
        if labels.role not in node.judgments and labels in applicable(node.branch):
            choices.append((math.nan, min(labels.values), max(labels.values)))  # undefined, or anywhere between
        else:
            judgment = node.judgments.get(labels.role)
            choices.append((math.nan if judgment is None else judgment.score,))
    # The score is linear in the critiques that are defined, so its extremes are at their ends.
    corners = [critique_score(corner, weights, policy.undefined) for corner in product(*choices)]
    low, high = _extremes(corners)
    return low, high + node.likelihood


def _extremes(scores: Sequence[Score]) -> tuple[Any, Any]:
    """The lowest and the highest score; elementwise of arrays."""
    if isinstance(scores[0], np.ndarray):
        return np.min(scores, axis=0), np.max(scores, axis=0)
    return min(scores), max(scores)


class Bounds(NamedTuple, Generic[Score]):
    """The highest scores that are possible for a node; numbers, or arrays of S settings."""

    segment: Score  # of its segment
    path: Score  # of the path that ends with it
    answer: Score  # of an answer that begins with that path


def segment_limits(weights: Sequence[Score], policy: Decoding) -> tuple[Score, Score]:
    """The lowest and the highest score that any segment can have."""
    unwritten = Node(0, 0, 0, "passage", None, likelihood=float(policy.likelihood != "none"), status=Status.BOUNDED)
    return segment_range(unwritten, weights, policy)


def bounds(
    node: Node,
    segment: tuple[Score, Score],
    before: Sequence[Score],
    policy: Decoding,
    limits: tuple[Score, Score],
) -> Bounds[Score]:
    """The highest scores of a node.

    Args:
        node: the node.
        segment: the lowest and the highest score of its segment.
        before: scores of the segments before it.
        policy: settings, without reflectors.
        limits: as of `segment_limits`.

    A path score is linear in each of its segments, so its extremes are at theirs; a blank segment does not count.
    Means, sums and products of positive numbers change in one direction with each equal segment that is added, so the
    highest answer has none or all of those that may follow.
    """
    low, high = segment
    earlier: list[Any] = [*before]  # mypy cannot spread either kind
    ends = [path_score([*earlier, low], policy.accumulate), path_score([*earlier, high], policy.accumulate)]
    if before and not node.text.strip():
        ends.append(path_score(before, policy.accumulate))
    path = _extremes(ends)[1]
    left = policy.max_segments - node.depth
    if left == 0:
        return Bounds(high, path, path)
    steps, most, ends = [*earlier, high], limits[1], [path]
    if policy.accumulate == "product":  # of two negative ones, too
        steps = [*map(abs, earlier), _extremes([abs(low), abs(high)])[1]]
        most = _extremes([abs(limits[0]), abs(most)])[1]
        ends.append(path_score(steps, "product"))
    ends.append(path_score(steps + [most] * left, policy.accumulate))
    return Bounds(high, path, _extremes(ends)[1])
