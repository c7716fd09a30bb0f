"""Retrievers: search by vectors, by words or by both, given passages, any callable; joined, or ranked again."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import starmap
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from retrieval.corpus import Corpus
from retrieval.encoders import Encoder, Template, checked_encode
from retrieval.normalisation import comparison_key
from retrieval.passage import Passage, Retriever
from retrieval.vectors import Mask, VectorIndex
from selfrag.common.checks import check_choice, check_float, check_int
from selfrag.common.errors import UserError, count_of

if TYPE_CHECKING:
    from retrieval.conditions import Condition
    from retrieval.words import WordIndex

_SPARE = 8  # rows beyond k that are fetched at first, to stand in for passages that repeat a better one
FUSED_ROWS = 100  # rows of each ranking that are fused
_MOST_FETCHED = 256  # times as many rows are looked at in the end, whatever the number of repeated passages
_RRF_K = 5  # the textbook's 60 is worse on the development questions


K = TypeVar("K", int, str)
Ranking: TypeAlias = list[tuple[K, float]]
"""Rows or ids with their scores, best first."""


@dataclass(frozen=True, slots=True)
class Fusion:
    """How two rankings become one."""

    # `min-max` adds scores that are scaled to 0 to 1 in each ranking; `rrf` adds 1 / (5 + rank) (reciprocal rank
    # fusion, Cormack et al. 2009). A row that a ranking does not hold gets 0 from it.
    method: str = "min-max"
    weight: float = 0.5  # of the first ranking, from 0 to 1; the second has the rest

    def __post_init__(self) -> None:
        check_choice("fusion", self.method, ["min-max", "rrf"])
        check_float("weight", self.weight, 0, 1)

    def __call__(self, first: Ranking[K], second: Ranking[K], k: int) -> Ranking[K]:
        """Return the k best of two rankings, whose scores fall; equal ones by their keys."""
        points: dict[K, float] = {}
        for ranking, weight in ((first, self.weight), (second, 1 - self.weight)):
            scaled = self._scaled([score for _, score in ranking])
            for (key, _), value in zip(ranking, scaled, strict=True):
                points[key] = points.get(key, 0.0) + weight * value
        best = sorted(points.items(), key=lambda item: (-item[1], item[0]))[:k]
        return [(key, float(np.float32(score))) for key, score in best]

    def _scaled(self, scores: Sequence[float]) -> list[float]:
        if self.method == "rrf":
            return [1.0 / (_RRF_K + rank) for rank in range(1, len(scores) + 1)]
        low, high = min(scores, default=0.0), max(scores, default=0.0)
        return [(score - low) / (high - low) if high > low else 1.0 for score in scores]


class Query(NamedTuple):
    """A query and its vector; None where vectors are not searched."""

    text: str
    vector: NDArray[np.float32] | None


class IndexRetriever(ABC):
    """Search in the passages of an index. Holds no state of a search: safe to call from many threads."""

    encoder: Encoder | None = None  # of the queries; None where only words are searched
    _template = Template()

    def __call__(self, queries: Sequence[str], k: int, /) -> list[list[Passage]]:
        """Return for each query its best passages, scores falling; no two of them have the same text.

        Args:
            queries: m texts; equal ones are searched once.
            k: most passages a query, >= 0.

        Returns:
            m lists of min(k, number of different passages) passages; fewer where an approximate index or a search by
            words finds no more, or where the best 256 * (k + 8) rows hold fewer different texts.

        Raises:
            UserError: `queries` is not a list of texts, or `k` is negative.
        """
        listed = isinstance(queries, Iterable) and not isinstance(queries, str)
        if not listed or not all(isinstance(query, str) for query in queries):
            raise UserError(
                f"queries must be a list of texts, not {repr(queries)[:80]}"
            )
        check_int("k", k, 0)
        if k == 0:
            return [[] for _ in queries]
        distinct = list(dict.fromkeys(queries))
        if not distinct:
            return []
        results = dict(
            zip(distinct, self._search(self._prepared(distinct), k), strict=True)
        )
        return [list(results[query]) for query in queries]

    @abstractmethod
    def where(self, *conditions: Condition | str) -> Self:
        """Return the same search among the passages that meet all of some conditions, such as `year>=2020`.

        Raises:
            UserError: no such column, or values of another type than it holds.
        """

    def notice(self, query: str) -> str:
        """Return why a search by words cannot find what a query asks for, in one line, or an empty text."""
        return ""

    def _prepared(self, queries: Sequence[str]) -> list[Query]:
        """Return queries with what is computed of them once."""
        if self.encoder is None:
            return [Query(query, None) for query in queries]
        texts = [self._template.of_query(query) for query in queries]
        vectors = checked_encode(self.encoder, texts)
        return [
            Query(query, vector) for query, vector in zip(queries, vectors, strict=True)
        ]

    @abstractmethod
    def _most_rows(self) -> int:
        """Return how many rows a search can give."""

    @abstractmethod
    def _best_passages(
        self, queries: Sequence[Query], rows: int, k: int
    ) -> list[tuple[list[Passage], int]]:
        """Return for each query the k best of its best rows that differ in their text, and how many rows it has."""

    def _search(self, queries: Sequence[Query], k: int) -> list[list[Passage]]:
        results: list[list[Passage]] = [[] for _ in queries]
        fetch = min(k + _SPARE, self._most_rows())
        pending = list(range(len(queries)))
        most = min(fetch * _MOST_FETCHED, self._most_rows())
        while pending:
            more = []
            hits = self._best_passages(
                [queries[position] for position in pending], fetch, k
            )
            for position, (passages, rows) in zip(pending, hits, strict=True):
                results[position] = passages
                if len(passages) < k and fetch < most and rows == fetch:
                    more.append(position)
            pending, fetch = more, min(fetch * 4, most)
        return results


def different_texts(passages: Iterable[Passage], k: int) -> list[Passage]:
    """Return the first k passages of which no two have the same text, as `comparison_key` compares them."""
    best: dict[str, Passage] = {}
    for passage in passages:
        best.setdefault(comparison_key(passage.text), passage)
        if len(best) == k:
            break
    return list(best.values())


class IndexVersion(NamedTuple):
    """Which state of an index is searched."""

    generation: int  # counts the changes since the index was built
    digest: str  # tells it from every other state, also from those of an index that was built anew


class LocalRetriever(IndexRetriever):
    """Search in the passages of an index on this machine."""

    corpus: Corpus  # the passages, by row; those that were removed are still there, and are never found
    version: IndexVersion | None = None  # of the index that it was opened from
    _allowed: Mask | None = None

    def where(self, *conditions: Condition | str) -> Self:
        """Return the same search among the passages that meet all of some conditions; see `IndexRetriever.where`."""
        from retrieval.conditions import allowed_rows

        narrowed = copy(self)
        allowed = allowed_rows(self.corpus, conditions)
        narrowed._allowed = (
            allowed if self._allowed is None else self._allowed & allowed
        )
        return narrowed

    @abstractmethod
    def _ranked(
        self, queries: Sequence[Query], k: int, allowed: Mask | None
    ) -> list[Ranking[int]]:
        """Return the k best rows of each query; fewer where no more are found."""

    def _most_rows(self) -> int:
        return len(self.corpus)

    def _best_passages(
        self, queries: Sequence[Query], rows: int, k: int
    ) -> list[tuple[list[Passage], int]]:
        ranked = self._ranked(queries, rows, self._allowed)
        return [
            (different_texts(starmap(self._passage, hits), k), len(hits))
            for hits in ranked
        ]

    def _passage(self, row: int, score: float) -> Passage:
        return replace(
            self.corpus[row], score=score, metadata=self.corpus.metadata_of(row)
        )


class DenseRetriever(LocalRetriever):
    """Search by the inner product of vectors.

    Args:
        corpus: the passages; row i belongs to vector i.
        index: their vectors.
        encoder: the encoder that made them.
        template: how a query becomes a text.

    Raises:
        UserError: the parts do not fit together.
    """

    def __init__(
        self,
        corpus: Corpus,
        index: VectorIndex,
        encoder: Encoder,
        template: Template | None = None,
    ) -> None:
        if len(corpus) != len(index):
            raise UserError(
                f"{count_of(len(corpus), 'passages')} but {count_of(len(index), 'vectors')}; build the index again"
            )
        if index.dim != encoder.card.dim:
            raise UserError(
                f"the index holds vectors of {index.dim}, encoder {encoder.card.name!r} makes {encoder.card.dim}"
            )
        self.corpus = corpus
        self.encoder = encoder
        self._index = index
        self._template = template or Template()

    def _ranked(
        self, queries: Sequence[Query], k: int, allowed: Mask | None
    ) -> list[Ranking[int]]:
        vectors = np.stack(
            [query.vector for query in queries if query.vector is not None]
        )
        return self._index.search(vectors, k, allowed).rankings()


class WordRetriever(LocalRetriever):
    """Search of a corpus by words: BM25."""

    def __init__(self, corpus: Corpus, words: WordIndex) -> None:
        self.corpus = corpus
        self._words = words

    def notice(self, query: str) -> str:
        """See `IndexRetriever.notice`."""
        return self._words.analyzer.notice(query)

    def _ranked(
        self, queries: Sequence[Query], k: int, allowed: Mask | None
    ) -> list[Ranking[int]]:
        kept = self.corpus.kept
        if kept is not None:
            allowed = kept if allowed is None else kept & allowed
        return [
            self._words.search(query.text, k, allowed).rankings()[0]
            for query in queries
        ]


class HybridRetriever(LocalRetriever):
    """Search of the same passages by vectors and by words; `fusion` makes the two rankings one."""

    def __init__(
        self, dense: DenseRetriever, words: WordRetriever, fusion: Fusion | None = None
    ) -> None:
        self.corpus = dense.corpus
        self.encoder = dense.encoder
        self._dense, self._words = dense, words
        self._fusion = fusion or Fusion()

    def notice(self, query: str) -> str:
        """See `IndexRetriever.notice`."""
        return self._words.notice(query)

    def _prepared(self, queries: Sequence[str]) -> list[Query]:
        return self._dense._prepared(queries)

    def _ranked(
        self, queries: Sequence[Query], k: int, allowed: Mask | None
    ) -> list[Ranking[int]]:
        depth = max(k, FUSED_ROWS)
        both = (
            retriever._ranked(queries, depth, allowed)
            for retriever in (self._dense, self._words)
        )
        return [
            self._fusion(dense, words, k) for dense, words in zip(*both, strict=True)
        ]


PassageLike: TypeAlias = Passage | Mapping[str, Any]


class FixedPassages:
    """Passages given by the caller instead of a search, in the order given.

    Args:
        passages: passages (or dictionaries with id, text and optional title, score) for every query, or a mapping from
            query to its passages. A query that only begins with a mapped one gets the passages of the longest such,
            since later searches of a question append what has been written.

    Raises:
        UserError: something is not a passage.
    """

    def __init__(
        self, passages: Sequence[PassageLike] | Mapping[str, Sequence[PassageLike]]
    ) -> None:
        self._by_query: dict[str, list[Passage]] = {}
        if isinstance(passages, Mapping):
            for query, listed in passages.items():
                if not isinstance(query, str):
                    raise UserError(
                        f"a query that passages are given for must be text, not {query!r:.80}"
                    )
                self._by_query[query] = _passages(listed, f"for {query[:60]!r}")
        else:
            self._by_query = {"": _passages(passages, "given")}
        self._lengths = sorted({len(query) for query in self._by_query}, reverse=True)

    def __call__(self, queries: Sequence[str], k: int, /) -> list[list[Passage]]:
        """Return for each query the first `k` of its passages.

        Raises:
            UserError: no passages are given for a query, or `k` is negative.
        """
        check_int("k", k, 0)
        return [self._of(query)[:k] for query in queries]

    def _of(self, query: str) -> list[Passage]:
        known = next(
            (
                query[:length]
                for length in self._lengths
                if query[:length] in self._by_query
            ),
            None,
        )
        if known is None:
            raise UserError(f"no passages are given for the query {query[:80]!r}")
        return self._by_query[known]


class CheckedRetriever:
    """A user's callable whose answers are checked, so that a fault is named here and not deep in the decoder."""

    def __init__(self, function: Callable[[Sequence[str], int], Any]) -> None:
        self._function = function
        self._name = getattr(function, "__name__", type(function).__name__)

    def __call__(self, queries: Sequence[str], k: int, /) -> list[list[Passage]]:
        """Return what the callable returns, as passages."""
        lists = self._function(queries, k)
        if not _is_list(lists):
            raise UserError(
                f"retriever {self._name} returned {type(lists).__name__}, not a list with a list for each query"
            )
        if len(lists) != len(queries):
            raise UserError(
                f"retriever {self._name} returned {len(lists)} lists for {count_of(len(queries), 'queries')}"
            )
        results = []
        for position, listed in enumerate(lists):
            where = f"from retriever {self._name} for query {position + 1}"
            passages = _passages(listed, where)
            if len(passages) > k:
                raise UserError(
                    f"{count_of(len(passages), 'passages')} {where}; at most {k} were asked for"
                )
            results.append(passages)
        return results


RetrieverSource: TypeAlias = (
    Retriever | Callable[..., Any] | Sequence[PassageLike] | Mapping[str, Any]
)


def as_retriever(source: RetrieverSource) -> Retriever:
    """Return a retriever from a callable `queries, k -> passages`, or from passages.

    Raises:
        UserError: `source` is neither.
    """
    if callable(source):
        is_ours = isinstance(source, CheckedRetriever | FixedPassages | IndexRetriever)
        return source if is_ours else CheckedRetriever(source)
    if isinstance(source, Mapping) or _is_list(source):
        return FixedPassages(source)
    raise UserError(
        f"a retriever is a callable (queries, k) or a list of passages, not {type(source).__name__}"
    )


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _passages(values: Any, where: str) -> list[Passage]:
    if not _is_list(values):
        raise UserError(f"passages {where} must be a list, not {type(values).__name__}")
    return [
        _passage(value, f"passage {number} {where}")
        for number, value in enumerate(values, start=1)
    ]


def _passage(value: Any, where: str) -> Passage:
    if isinstance(value, Passage):
        return value
    if not isinstance(value, Mapping):
        raise UserError(
            f"{where} is {type(value).__name__}; a passage is a Passage or a dictionary with id and text"
        )
    missing = [name for name in ("id", "text") if value.get(name) is None]
    if missing:
        present = ", ".join(map(str, value)) or "nothing"
        raise UserError(f"{where} has no {' and no '.join(missing)} (found: {present})")
    score = value.get("score")
    if score is not None and not (
        isinstance(score, int | float) and abs(score) <= sys.float_info.max
    ):
        raise UserError(
            f"{where}: score must be a number, finite and not {score!r:.80}"
        )
    identifier = str(value["id"]) if isinstance(value["id"], int) else value["id"]
    return Passage(
        identifier,
        value["text"],
        value.get("title") or "",
        None if score is None else float(score),
    )
