"""Fills and searches collections of Milvus; the functions of a `retrieval.remote.RemoteIndexes`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import copy
from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path
from typing import Any, Self

import numpy as np

from selfrag.extensions.milvus.collections import (
    MOST_ROWS,
    PREPARING,
    Collection,
    literal,
)
from selfrag.interface import (
    FUSED_ROWS,
    MODES,
    OPERATORS,
    Condition,
    Encoder,
    Fusion,
    IndexRetriever,
    Passage,
    Progress,
    Query,
    RemoteCard,
    UserError,
    check_choice,
    different_texts,
    encoder_of,
    live_blocks,
    open_parts,
    parse_condition,
    require_vectors,
    user_path,
)

# columns that a condition can name: nothing that could end a quoted text
_NAME = re.compile(r"[\w .:/@+-]+")


class MilvusRetriever(IndexRetriever):
    """Search in a collection of Milvus. Safe to call from many threads.

    A query finds at most 16,384 rows, the limit of Milvus. For the arguments see `open_index`.
    """

    def __init__(
        self, collection: Collection, encoder: Encoder | None, mode: str
    ) -> None:
        self.encoder, self._template = encoder, collection.card.template
        self._collection = collection
        self._mode = mode
        self._analyzer = None
        if mode != "dense":
            self._analyzer = collection.card.word_analyzer()
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
        depth = max(rows, FUSED_ROWS) if self._mode == "hybrid" else rows
        rankings = []
        if self._mode != "words":
            vectors = [np.asarray(query.vector).tolist() for query in queries]
            rankings.append(
                self._collection.rank("vector", vectors, depth, self._where)
            )
        if self._analyzer is not None:
            terms = [self._analyzer.query_terms(query.text) for query in queries]
            texts = [" ".join(chain.from_iterable(words)) for words in terms]
            rankings.append(self._ranked_by_words(texts, depth))
        results = []
        for ranked in zip(*rankings, strict=True):
            hits, others = ranked[0], ranked[-1]
            if len(ranked) == 2:
                hits = _fused(hits, others, rows)
            results.append((different_texts(hits, k), len(hits)))
        return results

    def _ranked_by_words(self, texts: Sequence[str], k: int) -> list[list[Passage]]:
        """Return the best passages by words; none for a text without one that counts."""
        wordy = list(filter(None, texts))
        if not wordy:
            return [[] for _ in texts]
        ranked = iter(self._collection.rank("bm25", wordy, k, self._where))
        return [next(ranked) if text else [] for text in texts]


def _fused(
    first: Sequence[Passage], second: Sequence[Passage], rows: int
) -> list[Passage]:
    """Return two rankings as one."""
    by_id = {passage.id: passage for passage in (*first, *second)}
    left = [(hit.id, hit.score or 0.0) for hit in first]
    right = [(hit.id, hit.score or 0.0) for hit in second]
    return [by_id[key].with_score(score) for key, score in Fusion()(left, right, rows)]


def _expression(collection: Collection, condition: Condition) -> str:
    """Return a condition as an expression of Milvus. Nothing in a value or a name can end a text."""
    column, operator, values = condition.column, condition.operator, condition.values
    check_choice("operator", operator, OPERATORS)
    field, holds_texts = column, True
    if column not in ("id", "title"):
        field = f"metadata[{literal(column)}]"
        rows = []
        if _NAME.fullmatch(column):
            rows = collection.metadata(f"exists {field}", 1)
        if not rows or column not in rows[0]:
            raise UserError(
                f"where: no passage in {collection.address} has a column {column!r:.80}"
            )
        content = _kind(rows[0][column])
        holds_texts = content == "texts" and operator in ("=", "!=", "in")
        if not holds_texts and {_kind(value) for value in values} - {content}:
            raise UserError(
                f"where: column {column!r:.60} holds {content}; {operator} cannot compare them with "
                f"{', '.join(map(str, values)):.60}"
            )
    shown = list(map(literal, values))
    if holds_texts:
        shown = [
            text if isinstance(value, str) else literal(text)
            for value, text in zip(values, shown, strict=True)
        ]
    if operator == "in":
        alternatives = [f"{field} == {text}" for text in shown]
        compared = " or ".join(alternatives) or 'id == ""'
    else:
        compared = f"{field} {'==' if operator == '=' else operator} {shown[0]}"
    return f"({compared})" if field == column else f"(exists {field} and ({compared}))"


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "truth values"
    return "texts" if isinstance(value, str) else "numbers"


def open_index(
    address: str | Path,
    encoder: Encoder | str | Path | None = None,
    *,
    mode: str | None = None,
) -> MilvusRetriever:
    """Return a retriever over a collection of Milvus that `push_index` made.

    Args:
        address: of the collection; see `Collection`.
        encoder: the encoder of the collection, or where to load it; None loads it from where it was.
        mode: `dense`, `words`, or `hybrid` for both; None is hybrid where the collection has words, else dense.

    Raises:
        UserError: no such collection, or it was filled with another encoder.
    """
    check_choice("mode", mode or "dense", MODES)
    collection = Collection(address)
    collection.load()
    card = collection.card
    if mode in ("words", "hybrid") and not card.language:
        raise UserError(f"{address} has no words; push an index that has")
    mode = mode or ("hybrid" if card.language else "dense")
    loaded = None
    if mode != "words":
        loaded = encoder_of(str(address), card.encoder, encoder)
    return MilvusRetriever(collection, loaded, mode)


def read_card(address: str | Path) -> RemoteCard:
    """Return what a collection says of itself."""
    collection = Collection(address)
    collection.load()
    card = collection.card
    passages, columns = len(collection), ["id", "title", *collection.columns()]
    values = {"passages": passages, "columns": columns, **asdict(card)}
    return RemoteCard(card.encoder, passages, columns, card.language, "Milvus", values)


def push_index(
    directory: str | Path, address: str | Path, *, progress: bool | None = None
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
    corpus, kept = parts.corpus, parts.corpus.kept
    rows = corpus.live()
    total = manifest.rows - manifest.removed
    written = 0
    with Progress(collection.name, "passage", total, show=progress) as bar:
        for vectors in live_blocks(parts.vectors, kept):
            block = list(islice(rows, len(vectors)))
            written += collection.write(block, vectors)
            bar.advance(len(block))
    if kept is not None:
        removed = {corpus[int(row)].id for row in np.flatnonzero(~kept)}
        again = {corpus[int(row)].id for row in corpus.rows_with(sorted(removed))}
        collection.delete(sorted(removed - again))
    if written:
        collection.ask("flush", timeout=PREPARING)
    return written, len(collection)
