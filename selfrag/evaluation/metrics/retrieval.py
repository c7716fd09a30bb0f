"""Retrieval against relevance judgments: recall@k and nDCG@k of one ranking. Pure; ids only.

`retrieval_metric` makes a metric of a run of them: of what the model was shown, in order, against the gold passages.

Both follow trec_eval: linear gains, discount log2(rank + 1), the ideal ranking taken over all judged passages. A
passage that a ranking names twice counts at its first place only.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from selfrag.errors import UserError
from selfrag.evaluation.items import Item
from selfrag.evaluation.metrics.output import Output
from selfrag.evaluation.metrics.registry import Metric, mean_of


def recall_at(ranking: Sequence[str], relevant: Collection[str], k: int) -> float | None:
    """Share of the relevant passages among the first `k`; None without relevant passages.

    Args:
        ranking: ids, best first.
        relevant: ids of the relevant passages.
        k: depth, at least 1.
    """
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


def retrieval_metric(kind: Literal["recall", "ndcg"], k: int) -> Metric:
    """Recall@k or nDCG@k of the passages that the model was shown; 0 where it was shown none.

    Args:
        kind: which of the two.
        k: depth, at least 1.

    Raises:
        UserError: a depth below 1.
    """
    if k < 1:
        raise UserError(f"{kind}@{k}: give a depth of at least 1, such as {kind}@5")

    def value(item: Item, output: Output) -> float | None:
        if not item.gold:
            return None
        if kind == "recall":
            return recall_at(output.read, item.gold, k)
        return ndcg_at(output.read, dict.fromkeys(item.gold, 1.0), k)

    return Metric(f"retrieval_{kind}@{k}", mean_of(value))


def _top(ranking: Sequence[str], k: int) -> list[str]:
    if k < 1:
        raise ValueError(f"k={k}; it must be at least 1")
    return list(dict.fromkeys(ranking))[:k]


def _discounted(gains: Sequence[float]) -> float:
    return math.fsum(gain / math.log2(rank + 2) for rank, gain in enumerate(gains))
