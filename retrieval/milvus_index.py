"""An index in a collection of Milvus: search with conditions on the metadata, and how its passages change."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self, TypeAlias

import numpy as np

from retrieval.checks import choice, whole
from retrieval.corpus import Corpus, Row
from retrieval.encoders import Encoder, checked_encode
from retrieval.encoding import BLOCK_ROWS
from retrieval.errors import UserError
from retrieval.filters import OPERATORS, Condition, parse_condition
from retrieval.fusion import Fusion
from retrieval.index import MODES, OpenParts, encoder_of, open_parts
from retrieval.metadata import Scalar
from retrieval.milvus import KINDS, MOST_ROWS, Collection, in_blocks, literal
from retrieval.passage import Passage
from retrieval.reading import user_path
from retrieval.search import FUSED_ROWS, IndexRetriever, Query, different_texts
from retrieval.vectors import Hits, Matrix
from retrieval.words import analyzer, query_words

Ranking: TypeAlias = list[tuple[str, float]]
_BATCH = 64  # queries that are encoded at once
_NAME = re.compile(r"[\w .:/@+-]+")  # columns that a condition can name: nothing that could end a quoted text


class MilvusRetriever(IndexRetriever):
    """Search in a collection of Milvus. Safe to call from many threads.

    A query finds at most 16,384 rows, the limit of Milvus.

    Args:
        collection: the passages.
        encoder: the encoder of the collection; None where only words are searched.
        mode: `dense`, `words`, or `hybrid` for both.
        fusion: how a hybrid search combines both.
    """

    def __init__(
        self, collection: Collection, encoder: Encoder | None, mode: str, fusion: Fusion | None = None
    ) -> None:
        self.encoder = encoder
        self._collection = collection
        self._fields = {"dense": ["vector"], "words": ["bm25"], "hybrid": ["vector", "bm25"]}[mode]
        self._analyzer = analyzer(collection.card.language) if "bm25" in self._fields else None
        self._fusion = fusion or Fusion()
        self._where = ""

    def where(self, *conditions: Condition | str) -> Self:
        """The same search among the passages that meet all of some conditions; see `IndexRetriever.where`.

        Numbers are compared with numbers only: a text such as "2020" is none.

        Raises:
            UserError: no passage has such a column, or it holds values of another type.
        """
        found = copy(self)
        parsed = [parse_condition(one) if isinstance(one, str) else one for one in conditions]
        expressions = [_expression(self._collection, condition) for condition in parsed]
        found._where = " and ".join(filter(None, [self._where, *expressions]))
        return found

    def _prepared(self, queries: Sequence[str]) -> list[Query]:
        if self.encoder is None:
            return super()._prepared(queries)
        texts = [self._collection.card.template.of_query(query) for query in queries]
        vectors = checked_encode(self.encoder, texts, _BATCH)
        return [Query(query, vector) for query, vector in zip(queries, vectors, strict=True)]

    def _most_rows(self) -> int:
        return MOST_ROWS

    def _found(self, queries: Sequence[Query], rows: int, k: int) -> list[tuple[list[Passage], int]]:
        depth = rows if len(self._fields) == 1 else max(rows, FUSED_ROWS)
        rankings = [self._ranked(field, queries, depth) for field in self._fields]
        ranked = rankings[0]
        if len(rankings) == 2:
            ranked = [_fused(dense, words, self._fusion, rows) for dense, words in zip(*rankings, strict=True)]
        passages = self._collection.passages(dict.fromkeys(identifier for hits in ranked for identifier, _ in hits))
        return [
            (
                different_texts((replace(passages[one], score=score) for one, score in hits if one in passages), k),
                len(hits),
            )
            for hits in ranked
        ]

    def _ranked(self, field: str, queries: Sequence[Query], k: int) -> list[Ranking]:
        asked = {n: self._asked(field, query) for n, query in enumerate(queries)}
        asked = {n: value for n, value in asked.items() if value != ""}  # no word of the query counts
        found = self._collection.rank(field, list(asked.values()), k, self._where) if asked else []
        return [dict(zip(asked, found, strict=True)).get(n, []) for n in range(len(queries))]

    def _asked(self, field: str, query: Query) -> str | list[float]:
        if field == "bm25":
            return " ".join(query_words(self._analyzer, query.text))
        return [] if query.vector is None else query.vector.tolist()


def _fused(dense: Ranking, words: Ranking, fusion: Fusion, k: int) -> Ranking:
    ids = sorted({identifier for identifier, _ in [*dense, *words]})
    numbers = {identifier: number for number, identifier in enumerate(ids)}
    first, second = (
        Hits(
            np.array([[score for _, score in hits]], np.float32),
            np.array([[numbers[one] for one, _ in hits]], np.int64),
        )
        for hits in (dense, words)
    )
    hits = fusion(first, second, k)
    found = zip(hits.rows[0].tolist(), hits.scores[0].tolist(), strict=True)
    return [(ids[number], score) for number, score in found if number >= 0]


def _expression(collection: Collection, condition: Condition) -> str:
    """A condition as an expression of Milvus. Values are literals, and a name can hold nothing that ends a text."""
    choice("operator", condition.operator, OPERATORS)
    column, values = condition.column, list(condition.values)
    field = column
    if column not in ("id", "title"):
        field = f"metadata[{literal(column)}]"
        known = _NAME.fullmatch(column) and collection.rows_where(f"exists {field}", ["metadata"], 1)
        if not known:
            raise UserError(f"where: no passage in {collection.address} has a column {column!r:.80}")
        values = _comparable(known[0]["metadata"][column], condition)
    else:
        values = [value if isinstance(value, str) else json.dumps(value) for value in values]
    if condition.operator == "in":
        compared = " or ".join(f"{field} == {literal(value)}" for value in values) or 'id == ""'
    else:
        compared = f"{field} {'==' if condition.operator == '=' else condition.operator} {literal(values[0])}"
    return f"({compared})" if field == column else f"(exists {field} and ({compared}))"


def _comparable(example: Scalar, condition: Condition) -> list[Scalar]:
    """The values of a condition as those of a column, which holds a value such as the example."""
    values = list(condition.values)
    if isinstance(example, str) and condition.operator in ("=", "!=", "in"):
        return [value if isinstance(value, str) else json.dumps(value) for value in values]
    held, given = _kind(example), {_kind(value) for value in values}
    if given - {held}:
        raise UserError(
            f"where: column {condition.column!r:.60} holds {held}; {condition.operator} cannot compare them with "
            f"{', '.join(map(str, values)):.60}"
        )
    return values


def _kind(value: Scalar) -> str:
    return "truth values" if isinstance(value, bool) else "texts" if isinstance(value, str) else "numbers"


def open_milvus(
    address: str | Path,
    encoder: Encoder | str | Path | None = None,
    *,
    mode: str | None = None,
    fusion: Fusion | None = None,
) -> MilvusRetriever:
    """A retriever over a collection of Milvus that `push_index` made.

    Args:
        address: of the collection; see `Collection`.
        encoder: the encoder of the collection, or where to load it; None loads it from where it was.
        mode: `dense`, `words`, or `hybrid` for both; None is hybrid where the collection has words, else dense.
        fusion: how a hybrid search combines both.

    Raises:
        UserError: no such collection, or it was filled with another encoder.
    """
    if mode is not None:
        choice("mode", mode, MODES)
    collection = Collection.open(address)
    card = collection.card
    if mode in ("words", "hybrid") and not card.language:
        raise UserError(f"{address} has no words; push an index that has")
    mode = mode or ("hybrid" if card.language else "dense")
    loaded = None if mode == "words" else encoder_of(str(address), card.encoder, encoder)
    return MilvusRetriever(collection, loaded, mode, fusion)


def push_index(
    directory: str | Path, address: str | Path, *, kind: str | None = None, progress: bool | None = None
) -> tuple[int, int]:
    """Copy the passages and vectors of an index into a collection of Milvus, which is made if it is not there.

    Passages that are there with the same content are not sent again, so an interrupted call is continued by the next
    one. Passages that were removed from the index are removed from the collection.

    Args:
        directory: the index.
        address: of the collection; see `Collection`.
        kind: of the vector index: `auto` lets Milvus choose, `flat` is exact, `ivf` is IVF with RaBitQ codes and int8
            vectors for rescoring (Milvus 2.6). None keeps it; a new collection is `auto`, or `flat` in a file.
        progress: show a bar on stderr; None shows a bar on a terminal, else plain lines.

    Returns:
        The number of passages that were written, and of all passages of the collection.

    Raises:
        UserError: no such index, no Milvus at the address, or a collection of another encoder, language or kind.
    """
    choice("kind", kind or "auto", KINDS)
    manifest, parts = open_parts(user_path(directory))
    collection = Collection(address)
    collection.create(manifest.encoder, manifest.template, manifest.language, kind)
    written = collection.write(_stored(parts), manifest.rows - manifest.removed, progress)
    if parts.corpus.kept is not None:
        removed = {parts.corpus[row].id for row in np.flatnonzero(~parts.corpus.kept).tolist()}
        again = {parts.corpus[row].id for row in parts.corpus.rows_with(sorted(removed)).tolist()}
        collection.delete(sorted(removed - again))
    return written, len(collection)


def _stored(parts: OpenParts) -> Iterator[tuple[list[Row], Callable[[], Matrix]]]:
    """Blocks of the passages of an index that were not removed, and their vectors."""
    rows, kept, first = parts.corpus.live(), parts.corpus.kept, 0
    for vectors in parts.vectors:
        for start in range(0, len(vectors), BLOCK_ROWS):
            numbers = np.arange(start, min(start + BLOCK_ROWS, len(vectors)))
            if kept is not None:
                numbers = numbers[kept[first + numbers]]
            yield list(islice(rows, len(numbers))), partial(vectors.rows, numbers)
        first += len(vectors)


def add_to_collection(
    address: str | Path,
    passages: Iterable[Passage | Row],
    *,
    encoder: Encoder | str | Path | None = None,
    batch_size: int = 64,
    progress: bool | None = None,
) -> int:
    """Encode passages and add them to a collection of Milvus; a passage with the same id is replaced.

    Passages that are there with the same content are not encoded again, so an interrupted call is continued by the
    next one.

    Args:
        address: of a collection that `push_index` made.
        passages: with unique ids.
        encoder: the encoder of the collection, or where to load it; None loads it from where it was.
        batch_size: texts that go through the encoder at once.
        progress: show a bar on stderr; None shows a bar on a terminal, else plain lines.

    Returns:
        The number of passages that were added or replaced.

    Raises:
        UserError: a bad passage, another encoder, or no such collection.
    """
    whole("batch_size", batch_size)
    collection = Collection.open(address)
    card = collection.card
    loaded = encoder_of(f"{address}", card.encoder, encoder)

    def encoded(rows: Sequence[Row]) -> Matrix:
        texts = [card.template.of_passage(row.passage) for row in rows]
        return checked_encode(loaded, texts, batch_size)

    with TemporaryDirectory() as folder:  # a corpus checks every passage before the first is sent
        corpus = Corpus.build(passages, Path(folder) / "corpus")
        blocks = ((rows, partial(encoded, rows)) for rows in in_blocks(corpus.live(), BLOCK_ROWS))
        return collection.write(blocks, len(corpus), progress)


def remove_from_collection(address: str | Path, ids: Sequence[str]) -> int:
    """Remove passages from a collection of Milvus by id; returns their number.

    Raises:
        UserError: an id that is not there, and then nothing is removed; or no such collection.
    """
    collection = Collection.open(address)
    wanted = list(dict.fromkeys(ids))
    found = collection.get(wanted, [])
    missing = next((identifier for identifier in wanted if identifier not in found), None)
    if missing is not None:
        raise UserError(f"no passage {missing!r:.80} in {address}; nothing was removed")
    collection.delete(wanted)
    return len(wanted)
