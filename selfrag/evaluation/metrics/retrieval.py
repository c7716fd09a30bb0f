"""Retrieval against relevance judgments: recall@k and nDCG@k of one ranking, as trec_eval computes them.

Gains are linear, the discount is log2(rank + 1), the ideal ranking is taken over all judged passages. A passage that a
ranking names twice counts at its first place only.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from selfrag.evaluation.items import Item
from selfrag.evaluation.metrics.output import Output
from selfrag.evaluation.metrics.registry import metric


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
