"""Dense retrieval: encode the queries, search the index, read the passages. Knows no file layout."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from retrieval.checks import whole
from retrieval.corpus import Corpus
from retrieval.encoders.card import Encoder, checked_encode
from retrieval.errors import UserError
from retrieval.passage import Passage
from retrieval.template import Template
from retrieval.vectors import VectorIndex

_SPARE = 8  # rows beyond k that are fetched at first, to stand in for passages that repeat a better one


class DenseRetriever:
    """A retriever over an encoded corpus. Holds no state of a search: safe to call from many threads.

    Args:
        corpus: the passages; row i belongs to vector i.
        index: their vectors.
        encoder: the encoder that made them.
        template: how a query becomes a text.
        batch_size: queries that go through the encoder at once.

    Raises:
        UserError: the parts do not fit together.
    """

    def __init__(
        self,
        corpus: Corpus,
        index: VectorIndex,
        encoder: Encoder,
        template: Template | None = None,
        batch_size: int = 64,
    ) -> None:
        if len(corpus) != len(index):
            raise UserError(f"{len(corpus)} passages but {len(index)} vectors; build the index again")
        if index.dim != encoder.card.dim:
            raise UserError(
                f"the index holds vectors of {index.dim}, encoder {encoder.card.name!r} makes {encoder.card.dim}"
            )
        self.corpus = corpus
        self.encoder = encoder
        self._index = index
        self._template = template or Template()
        self._batch_size = batch_size

    def __call__(self, queries: Sequence[str], k: int, /) -> list[list[Passage]]:
        """For each query its best passages, scores falling; no two of them have the same text.

        Args:
            queries: m texts; equal ones are searched once.
            k: most passages a query, >= 0.

        Returns:
            m lists of min(k, number of different passages) passages.

        Raises:
            UserError: `queries` is not a list of texts, or `k` is negative.
        """
        listed = isinstance(queries, Iterable) and not isinstance(queries, str)
        if not listed or not all(isinstance(query, str) for query in queries):
            raise UserError(f"queries must be a list of texts, not {repr(queries)[:80]}")
        whole("k", k, 0)
        if k == 0:
            return [[] for _ in queries]
        distinct = list(dict.fromkeys(queries))
        if not distinct:
            return []
        vectors = checked_encode(self.encoder, [self._template.of_query(query) for query in distinct], self._batch_size)
        found = dict(zip(distinct, self._search(vectors, k), strict=True))
        return [list(found[query]) for query in queries]

    def _search(self, vectors: NDArray[np.float32], k: int) -> list[list[Passage]]:
        results: list[list[Passage]] = [[] for _ in vectors]
        pending, fetch = np.arange(len(vectors)), k + _SPARE
        while len(pending):
            hits = self._index.search(vectors[pending], fetch)
            for position, scores, rows in zip(pending, hits.scores, hits.rows, strict=True):
                results[position] = self._distinct(scores, rows, k)
            short = [position for position in pending if len(results[position]) < k]
            pending = np.array(short if fetch < len(self._index) else [], dtype=np.int64)
            fetch *= 4
        return results

    def _distinct(self, scores: NDArray[np.float32], rows: NDArray[np.int64], k: int) -> list[Passage]:
        best: dict[str, Passage] = {}
        for score, row in zip(scores, rows, strict=True):
            passage = self.corpus[int(row)]
            best.setdefault(" ".join(passage.text.split()), passage.with_score(float(score)))
            if len(best) == k:
                break
        return list(best.values())
