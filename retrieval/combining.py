"""Retrievers made of others: ranked again by a function, or several in turn."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import chain, zip_longest
from typing import Any, TypeAlias

from retrieval.passage import Passage, Retriever
from retrieval.search import PassageLike, RetrieverSource, as_retriever, different_texts
from selfrag.common.checks import check_float, check_int
from selfrag.common.errors import UserError, count_of

Scorer: TypeAlias = Callable[
    [Sequence[str], Sequence[Sequence[Passage]]], Sequence[Sequence[float]]
]
"""Queries and the passages of each in; a score for each passage, higher is better, out."""


_ROUNDING = 1e-5  # of a probability in float32


class RerankedRetriever:
    """A retriever whose passages another function ranks again.

    Args:
        retriever: finds the passages.
        scorer: scores them, those of all queries in one call.
        depth: passages of a query to score; `k` where that is more.
        weight: of the scorer, from 0 to 1. The rest has the first rank r of n passages, as 1 - (r - 1) / n. Scores must
            then be from 0 to 1. With a weight of 1 the scores alone decide, and may be any numbers.

    Raises:
        UserError: an argument is none of these.
    """

    def __init__(
        self,
        retriever: Retriever | Sequence[PassageLike],
        scorer: Scorer,
        *,
        depth: int = 10,
        weight: float = 0.5,
    ) -> None:
        check_int("depth", depth)
        check_float("weight", weight, 0, 1)
        if not callable(scorer):
            raise UserError(
                f"a scorer is a callable (queries, passages), not {type(scorer).__name__}"
            )
        self._retriever = as_retriever(retriever)
        self._scorer, self._depth, self._weight = scorer, depth, weight
        self._name = getattr(scorer, "__name__", type(scorer).__name__)

    def __call__(self, queries: Sequence[str], k: int, /) -> list[list[Passage]]:
        """Return for each query up to `k` passages, best first; equal ones keep their order.

        Raises:
            UserError: the scorer does not give one number for each passage, or one that cannot be mixed with ranks.
                Errors of the scorer itself pass through.
        """
        check_int("k", k, 0)
        if k == 0:
            return [[] for _ in queries]
        results = self._retriever(queries, max(k, self._depth))
        if not any(results):
            return [[] for _ in queries]
        scores = self._scorer(queries, results)
        if _length(scores) != len(results):
            raise UserError(
                f"scorer {self._name} gave no list of scores for each of {count_of(len(results), 'queries')}"
            )
        return [self._ordered(*pair)[:k] for pair in zip(results, scores, strict=True)]

    def _ordered(
        self, passages: Sequence[Passage], scores: Sequence[float]
    ) -> list[Passage]:
        if _length(scores) != len(passages):
            raise UserError(
                f"scorer {self._name} gave no list of {count_of(len(passages), 'scores')} for"
                f" {count_of(len(passages), 'passages')}"
            )
        mixed = []
        for rank, (passage, value) in enumerate(zip(passages, scores, strict=True)):
            position = 1 - rank / len(passages)
            score = self._weight * self._checked(value) + (1 - self._weight) * position
            mixed.append(passage.with_score(score))
        return sorted(mixed, key=lambda passage: -(passage.score or 0.0))

    def _checked(self, value: Any) -> float:
        try:
            score = float(value)
        except (TypeError, ValueError, OverflowError):
            score = math.nan
        if not math.isfinite(score):
            raise UserError(
                f"scorer {self._name} gave {value!r:.80}; a score is a finite number"
            )
        if self._weight < 1 and not -_ROUNDING <= score <= 1 + _ROUNDING:
            raise UserError(
                f"scorer {self._name} gave {score:g}; with weight={self._weight:g} a score is from 0 to 1 "
                "(weight=1 takes any number)"
            )
        return score


def _length(values: Any) -> int:
    """Return the length of a list, or -1 where there is none."""
    is_list = hasattr(values, "__len__") and not isinstance(values, str)
    return len(values) if is_list else -1


class JoinedRetriever:
    """Search by several retrievers; see `join`. As safe to call from many threads as these are."""

    def __init__(self, retrievers: Sequence[Retriever]) -> None:
        self.retrievers = tuple(retrievers)

    def __call__(self, queries: Sequence[str], k: int, /) -> list[list[Passage]]:
        """Return for each query up to `k` passages, no two with the same text."""
        results = [retriever(queries, k) for retriever in self.retrievers]
        return [_in_turn(lists, k) for lists in zip(*results, strict=True)]


def join(*sources: RetrieverSource) -> JoinedRetriever:
    """Return a retriever that takes the passages of several in turn: the best of each, then the second best of each.

    With two of them and `k=10` there are five of each, as in the Self-RAG paper's biographies (4.3: five of an index,
    and five more of a web search). A retriever that finds less leaves its places to the others. Scores stay those of
    each retriever and cannot be compared.

    Args:
        sources: whatever `as_retriever` takes.

    Raises:
        UserError: fewer than two, or one is no retriever.
    """
    if len(sources) < 2:
        raise UserError(
            f"{count_of(len(sources), 'retrievers')} to join; give at least two"
        )
    return JoinedRetriever(list(map(as_retriever, sources)))


def _in_turn(lists: Sequence[Sequence[Passage]], k: int) -> list[Passage]:
    if k == 0:
        return []
    ranked = chain.from_iterable(zip_longest(*lists))
    return different_texts(filter(None, ranked), k)
