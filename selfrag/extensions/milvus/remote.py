"""Fills and searches collections of Milvus; the functions of a `retrieval.remote.RemoteIndexes`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import asdict
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Self

import numpy as np

from retrieval.conditions import OPERATORS, Condition, parse_condition
from retrieval.corpus import Row, Scalar
from retrieval.encoders import BLOCK_ROWS
from retrieval.index import (
    MODES,
    OpenParts,
    encoder_of,
    open_parts,
    require_vectors,
)
from retrieval.remote import RemoteCard
from retrieval.search import FUSED_ROWS, Fusion, Query, Ranking, different_texts
from retrieval.vectors import Matrix
from selfrag.extensions.milvus.collections import (
    _NAME,
    MOST_ROWS,
    Collection,
    literal,
)
from selfrag.interface import (
    Encoder,
    IndexRetriever,
    Passage,
    UserError,
    check_choice,
    user_path,
)


class MilvusRetriever(IndexRetriever):
    """Search in a collection of Milvus. Safe to call from many threads.

    A query finds at most 16,384 rows, the limit of Milvus. For the arguments see `open_index`.
    """

    def __init__(
        self,
        collection: Collection,
        encoder: Encoder | None,
        mode: str,
        fusion: Fusion | None = None,
    ) -> None:
        self.encoder, self._template = encoder, collection.card.template
        self._collection = collection
        self._fields = {
            "dense": ["vector"],
            "words": ["bm25"],
            "hybrid": ["vector", "bm25"],
        }[mode]
        self._analyzer = (
            collection.card.word_analyzer() if "bm25" in self._fields else None
        )
        self._fusion = fusion or Fusion()
        self._where = ""

    def where(self, *conditions: Condition | str) -> Self:
        """Return the same search among the passages that meet all of some conditions; see `IndexRetriever.where`.

        Numbers are compared with numbers only: a text such as "2020" is none.
        """
        narrowed = copy(self)
        expressions = [self._where] if self._where else []
        for condition in conditions:
            if isinstance(condition, str):
                condition = parse_condition(condition)
            expressions.append(_expression(self._collection, condition))
        narrowed._where = " and ".join(expressions)
        return narrowed

    def notice(self, query: str) -> str:
        """Return what the words of a query cannot find, in one line, or an empty text."""
        return "" if self._analyzer is None else self._analyzer.notice(query)

    def _most_rows(self) -> int:
        return MOST_ROWS

    def _best_passages(
        self, queries: Sequence[Query], rows: int, k: int
    ) -> list[tuple[list[Passage], int]]:
        depth = rows if len(self._fields) == 1 else max(rows, FUSED_ROWS)
        ranked = self._ranked(self._fields[0], queries, depth)
        if len(self._fields) == 2:
            by_words = self._ranked(self._fields[1], queries, depth)
            pairs = zip(ranked, by_words, strict=True)
            ranked = [self._fusion(*both, rows) for both in pairs]
        ids = dict.fromkeys(identifier for hits in ranked for identifier, _ in hits)
        passages = self._collection.passages(ids)
        results = []
        for hits in ranked:
            scored = [
                passages[identifier].with_score(score)
                for identifier, score in hits
                if identifier in passages
            ]
            results.append((different_texts(scored, k), len(hits)))
        return results

    def _ranked(
        self, field: str, queries: Sequence[Query], k: int
    ) -> list[Ranking[str]]:
        rankings: list[Ranking[str]] = [[] for _ in queries]
        values = {}
        for number, query in enumerate(queries):
            value = self._search_value(field, query)
            if value != "":  # a word of the query counts
                values[number] = value
        if values:
            ranked = self._collection.rank(field, list(values.values()), k, self._where)
            for number, ranking in zip(values, ranked, strict=True):
                rankings[number] = ranking
        return rankings

    def _search_value(self, field: str, query: Query) -> str | list[float]:
        if field == "bm25":
            assert self._analyzer is not None  # noqa: S101 - there is one where words are searched
            return " ".join(chain.from_iterable(self._analyzer.query_terms(query.text)))
        return [] if query.vector is None else query.vector.tolist()


def _expression(collection: Collection, condition: Condition) -> str:
    """Return a condition as an expression of Milvus. Nothing in a value or a name can end a text."""
    check_choice("operator", condition.operator, OPERATORS)
    column, values = condition.column, list(condition.values)
    field = column
    if column not in ("id", "title"):
        field = f"metadata[{literal(column)}]"
        known = _NAME.fullmatch(column) and collection.rows_where(
            f"exists {field}", ["metadata"], 1
        )
        if not known or column not in known[0]["metadata"]:
            raise UserError(
                f"where: no passage in {collection.address} has a column {column!r:.80}"
            )
        values = _comparable(known[0]["metadata"][column], condition)
    else:
        values = _as_texts(values)
    if condition.operator == "in":
        alternatives = [f"{field} == {literal(value)}" for value in values]
        compared = " or ".join(alternatives) or 'id == ""'
    else:
        operator = "==" if condition.operator == "=" else condition.operator
        compared = f"{field} {operator} {literal(values[0])}"
    return f"({compared})" if field == column else f"(exists {field} and ({compared}))"


def _comparable(example: Scalar, condition: Condition) -> list[Scalar]:
    """Return the values of a condition as those of a column, which holds a value such as the example."""
    values = list(condition.values)
    if isinstance(example, str) and condition.operator in ("=", "!=", "in"):
        return _as_texts(values)
    content = _kind(example)
    if {_kind(value) for value in values} - {content}:
        raise UserError(
            f"where: column {condition.column!r:.60} holds {content}; {condition.operator} cannot compare them with "
            f"{', '.join(map(str, values)):.60}"
        )
    return values


def _as_texts(values: Sequence[Scalar]) -> list[Scalar]:
    return [value if isinstance(value, str) else json.dumps(value) for value in values]


def _kind(value: Scalar) -> str:
    if isinstance(value, bool):
        return "truth values"
    return "texts" if isinstance(value, str) else "numbers"


def open_index(
    address: str | Path,
    encoder: Encoder | str | Path | None = None,
    *,
    mode: str | None = None,
    fusion: Fusion | None = None,
) -> MilvusRetriever:
    """Return a retriever over a collection of Milvus that `push_index` made.

    Args:
        address: of the collection; see `Collection`.
        encoder: the encoder of the collection, or where to load it; None loads it from where it was.
        mode: `dense`, `words`, or `hybrid` for both; None is hybrid where the collection has words, else dense.
        fusion: how a hybrid search combines both.

    Raises:
        UserError: no such collection, or it was filled with another encoder.
    """
    if mode is not None:
        check_choice("mode", mode, MODES)
    collection = Collection.open(address)
    card = collection.card
    if mode in ("words", "hybrid") and not card.language:
        raise UserError(f"{address} has no words; push an index that has")
    mode = mode or ("hybrid" if card.language else "dense")
    loaded = None
    if mode != "words":
        loaded = encoder_of(str(address), card.encoder, encoder)
    return MilvusRetriever(collection, loaded, mode, fusion)


def read_card(address: str | Path) -> RemoteCard:
    """Return what a collection says of itself."""
    collection = Collection.open(address)
    card = collection.card
    passages, columns = len(collection), ["id", "title", *collection.columns()]
    values = {"passages": passages, "columns": columns, **asdict(card)}
    return RemoteCard(
        card.encoder,
        passages,
        columns,
        card.language,
        card.analyzer,
        f"Milvus, {card.kind}",
        values,
    )


def push_index(
    directory: str | Path,
    address: str | Path,
    *,
    progress: bool | None = None,
) -> tuple[int, int]:
    """Copy the passages and vectors of an index into a collection of Milvus, which is made if it is not there.

    Passages that are there with the same content are not sent again, so an interrupted call is continued by the next
    one. Passages that were removed from the index are removed from the collection.

    Args:
        directory: the index.
        address: of the collection; see `Collection`.
        progress: show a bar on stderr; None shows a bar on a terminal, else plain lines.

    Returns:
        The number of passages that were written, and of all passages of the collection.

    Raises:
        UserError: no such index, no Milvus at the address, or a collection of another encoder or language.
    """
    source = user_path(directory)
    manifest, parts = open_parts(source)
    require_vectors(source, manifest)
    collection = Collection(address)
    collection.create(manifest.encoder, manifest.template, manifest.language)
    written = collection.write(
        _stored(parts), manifest.rows - manifest.removed, progress
    )
    corpus, kept = parts.corpus, parts.corpus.kept
    if kept is not None:
        rows = np.flatnonzero(~kept).tolist()
        removed = {corpus[row].id for row in rows}
        kept_rows = corpus.rows_with(sorted(removed)).tolist()
        again = {corpus[row].id for row in kept_rows}
        collection.delete(sorted(removed - again))
    return written, len(collection)


def _stored(parts: OpenParts) -> Iterator[tuple[list[Row], Callable[[], Matrix]]]:
    """Yield blocks of the passages of an index that were not removed, and their vectors."""
    rows, kept, first = parts.corpus.live(), parts.corpus.kept, 0
    for vectors in parts.vectors:
        for start in range(0, len(vectors), BLOCK_ROWS):
            numbers = np.arange(start, min(start + BLOCK_ROWS, len(vectors)))
            if kept is not None:
                numbers = numbers[kept[first + numbers]]
            yield list(islice(rows, len(numbers))), partial(vectors.rows, numbers)
        first += len(vectors)
