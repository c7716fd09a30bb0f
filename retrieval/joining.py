"""Several retrievers as one: each in turn gives its next best passage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any, TypeAlias

from retrieval.errors import UserError
from retrieval.passage import Passage, Retriever
from retrieval.search import PassageLike, as_retriever, different_texts

Source: TypeAlias = Retriever | Callable[..., Any] | Sequence[PassageLike] | Mapping[str, Any]


class JoinedRetriever:
    """Search by several retrievers; see `join`. As safe to call from many threads as these are."""

    def __init__(self, retrievers: Sequence[Retriever]) -> None:
        self.retrievers = tuple(retrievers)

    def __call__(self, queries: Sequence[str], k: int, /) -> list[list[Passage]]:
        """For each query up to `k` passages, no two with the same text.

        Raises:
            UserError: a retriever failed.
        """
        found = [retriever(queries, k) for retriever in self.retrievers]
        return [_in_turn(lists, k) for lists in zip(*found, strict=True)]


def join(*sources: Source) -> JoinedRetriever:
    """A retriever that takes the passages of several in turn: the best of each, then the second best of each.

    With two of them and `k=10` there are five of each, as in the Self-RAG paper's biographies (4.3: five of an index,
    and five more of a web search). A retriever that finds less leaves its places to the others. Scores stay those of
    each retriever and cannot be compared.

    Args:
        sources: whatever `as_retriever` takes.

    Raises:
        UserError: fewer than two, or one is no retriever.
    """
    if len(sources) < 2:
        raise UserError(f"{len(sources)} retrievers to join; give at least two")
    return JoinedRetriever([as_retriever(one) for one in sources])


def _in_turn(lists: Sequence[Sequence[Passage]], k: int) -> list[Passage]:
    ranked = chain.from_iterable(zip_longest(*lists))
    return different_texts((one for one in ranked if one is not None), k) if k else []
