"""Rankings against relevance judgments, as trec_eval computes them: recall@K and nDCG@K.

Gains are linear, and the discount is log2(rank + 1). A passage that a ranking names twice counts at its first place.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from selfrag.evaluation.items import Item, Output
from selfrag.evaluation.metrics.registry import metric


def recall_at(
    ranking: Sequence[str], relevant: Collection[str], k: int
) -> float | None:
    """Return the share of the relevant passages among the first `k` ids; None without relevant passages."""
    top, ids = set(_top(ranking, k)), set(relevant)
    if not ids:
        return None
    return len(ids & top) / len(ids)


def ndcg_at(ranking: Sequence[str], gains: Mapping[str, float], k: int) -> float | None:
    """Return the normalised discounted cumulative gain of the first `k`; None where no passage has a gain above 0.

    Args:
        ranking: ids, best first.
        gains: id -> how relevant it is; 1 for binary judgments. Passages that are not in it have none.
        k: depth, at least 1.
    """
    ideal = _discounted(
        sorted((gain for gain in gains.values() if gain > 0), reverse=True)[:k]
    )
    if not ideal:
        _top(ranking, k)
        return None
    return (
        _discounted([max(0.0, gains.get(name, 0.0)) for name in _top(ranking, k)])
        / ideal
    )


@metric("retrieval_recall@K", source="trec_eval")
def retrieval_recall(item: Item, output: Output, k: int) -> float | None:
    """Return recall@K of the gold passages among those the model was shown, in order."""
    if not item.gold:
        return None
    return recall_at(output.read, item.gold, k)


@metric("retrieval_ndcg@K", source="trec_eval")
def retrieval_ndcg(item: Item, output: Output, k: int) -> float | None:
    """Return nDCG@K of the gold passages among those the model was shown, in order."""
    if not item.gold:
        return None
    return ndcg_at(output.read, dict.fromkeys(item.gold, 1.0), k)


def _top(ranking: Sequence[str], k: int) -> list[str]:
    if k < 1:
        raise ValueError(f"k={k}; it must be at least 1")
    return list(dict.fromkeys(ranking))[:k]


def _discounted(gains: Sequence[float]) -> float:
    return math.fsum(gain / math.log2(rank + 2) for rank, gain in enumerate(gains))
