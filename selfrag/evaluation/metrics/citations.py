"""Citations and rankings against gold: the passages, or passage sentences, that an annotator answered from.

A good passage that nobody annotated counts as wrong; whether a passage *entails* a sentence is asked in `alce`. An
answer that abstains makes no claim, and its citations do not count.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from selfrag.evaluation.intervals import Estimate, Floats, bootstrap, plain, share
from selfrag.evaluation.items import Item
from selfrag.evaluation.metrics.output import Output
from selfrag.evaluation.metrics.registry import Part, harmonic, metric
from selfrag.evaluation.normalisation import abstains, contains_any

CITATIONS = ("citation_precision", "citation_precision_alce", "citation_recall")


@metric("citation_precision", of_failure=None, source="ours")
def citation_precision(item: Item, output: Output) -> Part | None:
    """Of all citations over all items, the share that is gold; None if the file names no gold passages."""
    if item.gold is None:
        return None
    cited = _cited(output, item)
    return float(len(cited & item.gold)), float(len(cited))


@metric("citation_precision_alce", source="ALCE (arXiv 2305.14627)")
def citation_precision_alce(item: Item, output: Output) -> float | None:
    """Precision of one item, 0 where nothing is cited (as ALCE counts); None without gold passages."""
    if not item.gold:
        return None
    cited = _cited(output, item)
    return len(cited & item.gold) / len(cited) if cited else 0.0


@metric("citation_recall", source="ours")
def citation_recall(item: Item, output: Output) -> float | None:
    """Share of an item's gold passages that is cited; None if there are none."""
    return len(_cited(output, item) & item.gold) / len(item.gold) if item.gold else None


@metric("citation_f1", source="ours")
def citation_f1(item: Item, output: Output) -> float | None:
    """Harmonic mean of precision and recall of one item, so that its figure is the mean over questions."""
    precision, recall = citation_precision_alce(item, output), citation_recall(item, output)
    return None if precision is None or recall is None else harmonic(precision, recall)


@metric("citation_bears_answer", of_failure=None, source="ours")
def citation_bears_answer(item: Item, output: Output) -> Part | None:
    """Of all citations, the share whose passage contains a gold answer; None without short answers or passages."""
    if item.answers is None or not item.passages:
        return None
    cited = _cited(output, item)
    bearing = [p for p in item.passages if p.id in cited and contains_any(f"{p.title} {p.text}", item.answers)]
    return float(len(bearing)), float(len(cited))


def _cited(output: Output, item: Item) -> frozenset[str]:
    # For multiple choice the text is an option, whatever it says.
    return frozenset() if not item.options and abstains(output.text) else frozenset(output.cited)


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

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return plain(self)


def by_sentence(citations: Collection[Cited]) -> frozenset[Hashable]:
    """Pairs of response sentence and passage sentence."""
    return frozenset(citations)


def by_passage(citations: Collection[Cited]) -> frozenset[Hashable]:
    """Pairs of response sentence and passage."""
    return frozenset((one.sentence, one.passage) for one in citations)


def pair_figures(
    gold: Sequence[Collection[Hashable]], given: Sequence[Collection[Hashable]], *, seed: int = 0
) -> PairFigures:
    """Micro-averaged figures of one set of pairs a response; duplicates count once.

    Raises:
        ValueError: not as many responses on both sides.
    """
    sets = [(frozenset(right), frozenset(said)) for right, said in zip(gold, given, strict=True)]
    counts = [(len(right & said), len(right), len(said), right == said, 1) for right, said in sets]
    hit, are, said, same, one = np.array(counts, dtype=np.float64).reshape(-1, 5).T

    def estimate(part: Floats, whole: Floats) -> Estimate:
        return bootstrap(len(sets), lambda drawn: share(drawn @ part, drawn @ whole), seed)

    return PairFigures(estimate(hit, said), estimate(hit, are), estimate(2 * hit, are + said), estimate(same, one))


# Retrieval against relevance judgments, as trec_eval computes it: gains are linear, the discount is log2(rank + 1), and
# a passage that a ranking names twice counts at its first place only.


def recall_at(ranking: Sequence[str], relevant: Collection[str], k: int) -> float | None:
    """Share of the relevant passages among the first `k` ids of a ranking; None without relevant passages."""
    wanted = set(relevant)
    return len(wanted & set(_top(ranking, k))) / len(wanted) if wanted else None


def ndcg_at(ranking: Sequence[str], gains: Mapping[str, float], k: int) -> float | None:
    """Normalised discounted cumulative gain of the first `k`; None where no passage has a gain above 0.

    Args:
        ranking: ids, best first.
        gains: id -> how relevant it is; 1 for binary judgments. Passages that are not in it have none.
        k: depth, at least 1.
    """
    ideal = _discounted(sorted((gain for gain in gains.values() if gain > 0), reverse=True)[:k])
    found = _discounted([max(0.0, gains.get(one, 0.0)) for one in _top(ranking, k)])
    return found / ideal if ideal else None


@metric("retrieval_recall@K", source="trec_eval")
def retrieval_recall(item: Item, output: Output, k: int) -> float | None:
    """Recall@K of the gold passages among those the model was shown, in order."""
    return recall_at(output.read, item.gold, k) if item.gold else None


@metric("retrieval_ndcg@K", source="trec_eval")
def retrieval_ndcg(item: Item, output: Output, k: int) -> float | None:
    """nDCG@K of the gold passages among those the model was shown, in order."""
    return ndcg_at(output.read, dict.fromkeys(item.gold, 1.0), k) if item.gold else None


def _top(ranking: Sequence[str], k: int) -> list[str]:
    if k < 1:
        raise ValueError(f"k={k}; it must be at least 1")
    return list(dict.fromkeys(ranking))[:k]


def _discounted(gains: Sequence[float]) -> float:
    return math.fsum(gain / math.log2(rank + 2) for rank, gain in enumerate(gains))
