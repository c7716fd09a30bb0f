"""The harmonic mean of two shares. Pure."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from selfrag.evaluation.intervals import Estimate, Floats, bootstrap
from selfrag.evaluation.items import Item
from selfrag.evaluation.metrics.classification import share
from selfrag.evaluation.metrics.output import Output
from selfrag.evaluation.metrics.registry import Metric, Part, mean_of
from selfrag.evaluation.normalisation import abstains, contains_any


def harmonic(one: float, other: float) -> float:
    """Harmonic mean, such as the F1 of a precision and a recall; 0 where both are 0."""
    return 2 * one * other / (one + other) if one + other else 0.0


def citation_precision(item: Item, output: Output) -> Part | None:
    """Of all citations over all items, the share that is gold; None if the file names no gold passages."""
    if item.gold is None:
        return None
    cited = _cited(output, item)
    return float(len(cited & item.gold)), float(len(cited))


def citation_recall(item: Item, output: Output) -> float | None:
    """Share of an item's gold passages that is cited; None if there are none."""
    return len(_cited(output, item) & item.gold) / len(item.gold) if item.gold else None


def citation_precision_alce(item: Item, output: Output) -> float | None:
    """Precision of one item, 0 where nothing is cited (as ALCE counts); None without gold passages."""
    if not item.gold:
        return None
    cited = _cited(output, item)
    return len(cited & item.gold) / len(cited) if cited else 0.0


def citation_f1(item: Item, output: Output) -> float | None:
    """Harmonic mean of the two above for one item, so that its figure is the mean over questions; None likewise."""
    precision, recall = citation_precision_alce(item, output), citation_recall(item, output)
    return None if precision is None or recall is None else harmonic(precision, recall)


def citation_bears_answer(item: Item, output: Output) -> Part | None:
    """Of all citations, the share whose passage contains a gold answer; None without short answers or passages."""
    if item.answers is None or not item.passages:
        return None
    cited = _cited(output, item)
    bearing = [p for p in item.passages if p.id in cited and contains_any(f"{p.title} {p.text}", item.answers)]
    return float(len(bearing)), float(len(cited))


def _cited(output: Output, item: Item) -> frozenset[str]:
    # On a closed set the text is an option, whatever it says.
    return frozenset() if not item.options and abstains(output.text) else frozenset(output.cited)


PRECISION = Metric("citation_precision", citation_precision, of_failure=None)
RECALL = Metric("citation_recall", mean_of(citation_recall))
PRECISION_ALCE = Metric("citation_precision_alce", mean_of(citation_precision_alce))
F1 = Metric("citation_f1", mean_of(citation_f1))
BEARS_ANSWER = Metric("citation_bears_answer", citation_bears_answer, of_failure=None)
CITATIONS = (PRECISION, PRECISION_ALCE, RECALL)


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
