"""Lexical neighbours of a question in the corpus: the hard negatives that retrieval will bring. Knows no labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from retrieval.passage import Passage
from selfrag.errors import require


def search(corpus: Mapping[str, Passage], queries: Sequence[str], k: int) -> list[list[Passage]]:
    """BM25 (k1 1.2, b 0.75, title and text): for each query its `k` best passages.

    Raises:
        MissingExtraError: bm25s is not installed.
    """
    if not queries or not corpus:
        return [[] for _ in queries]
    bm25s = require("bm25s", extra="eval")
    passages = list(corpus.values())
    index = bm25s.BM25(k1=1.2, b=0.75)
    texts = [f"{p.title} {p.text}" for p in passages]
    index.index(bm25s.tokenize(texts, stopwords="en", show_progress=False), show_progress=False)
    tokens = bm25s.tokenize(list(queries), stopwords="en", show_progress=False)
    found, _ = index.retrieve(tokens, k=min(k, len(passages)), show_progress=False)
    return [[passages[int(i)] for i in row] for row in found]
