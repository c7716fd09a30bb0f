"""Citations against gold passages: precision, recall, F1, and whether a citation bears the answer.

A good passage that nobody annotated counts as wrong. An answer that abstains makes no claim, and its citations do not
count. `alce` needs no gold passages.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from selfrag.evaluation.intervals import (
    Estimate,
    FloatArray,
    bootstrap,
    effective_items,
    share,
)
from selfrag.evaluation.items import Item, Output
from selfrag.evaluation.metrics.registry import Part, harmonic, metric
from selfrag.evaluation.normalisation import contains_any

CITATIONS = ("citation_precision", "citation_precision_alce", "citation_recall")


@metric("citation_precision", of_failure=None, source="ours")
def citation_precision(item: Item, output: Output) -> Part | None:
    """Count gold citations of all citations over all items; None if the file names no gold passages."""
    if item.gold is None:
        return None
    cited = _cited(output, item)
    return float(len(cited & item.gold)), float(len(cited))


@metric("citation_precision_alce", source="ALCE (arXiv 2305.14627)")
def citation_precision_alce(item: Item, output: Output) -> float | None:
    """Return the precision of one item, 0 where nothing is cited (as ALCE counts); None without gold passages."""
    if not item.gold:
        return None
    cited = _cited(output, item)
    return len(cited & item.gold) / max(1, len(cited))


@metric("citation_recall", source="ours")
def citation_recall(item: Item, output: Output) -> float | None:
    """Return the share of an item's gold passages that is cited; None if there are none."""
    if not item.gold:
        return None
    return len(_cited(output, item) & item.gold) / len(item.gold)


@metric("citation_f1", source="ours")
def citation_f1(item: Item, output: Output) -> float | None:
    """Return the harmonic mean of precision and recall of one item, so that its figure is the mean over questions."""
    precision = citation_precision_alce(item, output)
    recall = citation_recall(item, output)
    if precision is None or recall is None:
        return None
    return harmonic(precision, recall)


@metric("citation_bears_answer", of_failure=None, source="ours")
def citation_bears_answer(item: Item, output: Output) -> Part | None:
    """Count citations whose passage contains a gold answer; None without short answers or passages."""
    if item.answers is None or not item.passages:
        return None
    cited = _cited(output, item)
    bearing = 0
    for passage in item.passages:
        bearing += passage.id in cited and contains_any(
            f"{passage.title} {passage.text}", item.answers
        )
    return float(bearing), float(len(cited))


def _cited(output: Output, item: Item) -> frozenset[str]:
    # For multiple choice the text is an option, whatever it says.
    if not item.options and output.declined:
        return frozenset()
    return frozenset(output.cited)


class Cited(NamedTuple):
    """Sentence number `sentence` of a response cites sentence number `evidence` of the passage with id `passage`."""

    sentence: int
    passage: str
    evidence: int


@dataclass(frozen=True, slots=True)
class PairFigures:
    """Precision, recall and F1 over the pairs of all responses together; whole responses are resampled.

    `exact` is the share of the responses whose pairs are exactly the gold ones.
    """

    precision: Estimate
    recall: Estimate
    f1: Estimate
    exact: Estimate


def by_sentence(citations: Collection[Cited]) -> frozenset[Hashable]:
    """Return pairs of response sentence and passage sentence."""
    return frozenset(citations)


def by_passage(citations: Collection[Cited]) -> frozenset[Hashable]:
    """Return pairs of response sentence and passage."""
    return frozenset((citation.sentence, citation.passage) for citation in citations)


def pair_figures(
    gold: Sequence[Collection[Hashable]],
    predicted: Sequence[Collection[Hashable]],
    *,
    seed: int = 0,
) -> PairFigures:
    """Return micro-averaged figures of one set of pairs a response; duplicates count once.

    Raises:
        ValueError: not as many responses on both sides.
    """
    rows = []
    for gold_pairs, predicted_pairs in zip(gold, predicted, strict=True):
        right, answered = frozenset(gold_pairs), frozenset(predicted_pairs)
        counts = len(right & answered), len(right), len(answered)
        rows.append((*counts, right == answered, 1))
    hits, relevant, cited, is_exact, responses = (
        np.array(rows, dtype=np.float64).reshape(-1, 5).T
    )

    def estimate(part: FloatArray, total: FloatArray) -> Estimate:
        effective = effective_items(total)
        return bootstrap(
            len(rows),
            lambda drawn: share(drawn @ part, drawn @ total),
            seed,
            effective=effective,
        )

    return PairFigures(
        precision=estimate(hits, cited),
        recall=estimate(hits, relevant),
        f1=estimate(2 * hits, relevant + cited),
        exact=estimate(is_exact, responses),
    )
