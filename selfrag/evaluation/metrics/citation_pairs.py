"""Citations of sentences against gold ones: precision, recall and F1 over pairs, at the level of sentence or passage.

Pure. Gold is what an annotator selected; whether a citation *entails* its sentence is asked in `alce`. `citations` has
the passage-level figures of whole answers, which this file does not repeat.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from selfrag.evaluation.intervals import Estimate, bootstrap
from selfrag.evaluation.metrics.classes import share
from selfrag.evaluation.ranking import Floats


class Cited(NamedTuple):
    """A sentence of a response cites a sentence of a passage.

    Attributes:
        sentence: number of the response's sentence.
        passage: id of the passage.
        evidence: number of the passage's sentence.
    """

    sentence: int
    passage: str
    evidence: int


@dataclass(frozen=True, slots=True)
class PairFigures:
    """Figures over the pairs of all responses together; whole responses are resampled.

    Attributes:
        precision: share of the given pairs that are gold.
        recall: share of the gold pairs that were given.
        f1: their harmonic mean.
        exact: share of the responses whose pairs are exactly the gold ones.
    """

    precision: Estimate
    recall: Estimate
    f1: Estimate
    exact: Estimate

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {name: getattr(self, name).as_dict() for name in ("precision", "recall", "f1", "exact")}


def by_sentence(citations: Collection[Cited]) -> frozenset[Hashable]:
    """Pairs of response sentence and passage sentence."""
    return frozenset(citations)


def by_passage(citations: Collection[Cited]) -> frozenset[Hashable]:
    """Pairs of response sentence and passage."""
    return frozenset((one.sentence, one.passage) for one in citations)


def pair_figures(
    gold: Sequence[Collection[Hashable]], given: Sequence[Collection[Hashable]], *, seed: int = 0
) -> PairFigures:
    """Figures of one set of pairs a response.

    Args:
        gold: right pairs of each response.
        given: pairs that a system gave it; duplicates count once.
        seed: of the intervals.

    Raises:
        ValueError: not as many responses on both sides.
    """
    sets = [(frozenset(right), frozenset(said)) for right, said in zip(gold, given, strict=True)]
    hit = np.array([len(right & said) for right, said in sets], dtype=np.float64)
    are = np.array([len(right) for right, _ in sets], dtype=np.float64)
    said = np.array([len(one) for _, one in sets], dtype=np.float64)
    same = np.array([right == one for right, one in sets], dtype=np.float64)

    def estimate(part: Floats, whole: Floats) -> Estimate:
        return bootstrap(len(sets), lambda drawn: share(drawn @ part, drawn @ whole), seed)

    return PairFigures(
        estimate(hit, said), estimate(hit, are), estimate(2 * hit, are + said), estimate(same, np.ones_like(same))
    )
