"""Reranking: another function orders what a retriever found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from retrieval import Passage, UserError
from retrieval.search import RerankedRetriever

ABCD = [Passage(name, f"text {name}", score=score) for name, score in zip("abcd", (9, 7, 5, 3), strict=True)]
SCORES = {"a": 0.0, "b": 0.2, "c": 1.0, "d": 0.4}


def searched(queries: Sequence[str], k: int) -> list[list[Passage]]:
    return [ABCD[:k] if query else [] for query in queries]


def by_name(queries: Sequence[str], passages: Sequence[Sequence[Passage]]) -> list[list[float]]:
    return [[SCORES[passage.id] for passage in found] for found in passages]


@pytest.mark.parametrize(
    ("k", "depth", "weight", "order", "best"),
    [
        (4, 4, 1.0, "cdba", 1.0),
        (4, 4, 0.5, "cabd", 0.5 * 1 + 0.5 * 0.5),
        (4, 4, 0.0, "abcd", 1.0),
        (1, 4, 1.0, "c", 1.0),  # a passage below k can come up
        (1, 2, 1.0, "b", 0.2),  # but not one below the depth
        (3, 1, 1.0, "cba", 1.0),  # all k are scored
    ],
)
def test_scores_and_ranks_are_mixed(k: int, depth: int, weight: float, order: str, best: float) -> None:
    found = RerankedRetriever(searched, by_name, depth=depth, weight=weight)(["q", ""], k)
    assert ["".join(passage.id for passage in one) for one in found] == [order, ""]
    assert found[0][0].score == pytest.approx(best)
    assert [passage.score for passage in found[0]] == sorted((p.score or 0 for p in found[0]), reverse=True)


def test_equal_scores_keep_their_order_and_nothing_found_asks_nobody() -> None:
    def same(queries: Sequence[str], passages: Sequence[Sequence[Passage]]) -> Any:
        assert any(passages)
        return [np.zeros(len(found), np.float32) for found in passages]

    reranked = RerankedRetriever(ABCD, same, weight=1.0)
    assert [passage.id for passage in reranked(["q"], 3)[0]] == ["a", "b", "c"]
    assert RerankedRetriever(searched, same)([""], 3) == [[]]
    assert reranked(["q"], 0) == [[]]


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (None, "no list of scores for each of 1 queries"),
        ([[1.0]], "no list of 4 scores"),
        ([[0.1, 0.2, 0.3, math.nan]], "gave nan; a score is a finite number"),
        ([[0.1, 0.2, 0.3, 7.5]], r"gave 7.5; with weight=0.5 a score is from 0 to 1 \(weight=1 takes any number\)"),
    ],
)
def test_scores_that_fit_nothing_are_named(scores: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        RerankedRetriever(searched, lambda queries, passages: scores)(["q"], 2)


@pytest.mark.parametrize("given", [{"depth": 0}, {"weight": 1.5}, {"weight": math.nan}, {"scorer": "isrel"}])
def test_settings_that_fit_nothing_are_named(given: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(given))):
        RerankedRetriever(searched, **{"scorer": by_name, **given})
