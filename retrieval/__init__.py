"""Passages in, ranked passages out: a corpus on disk, text encoders, a vector index, and retrievers over them.

Importing it costs neither torch nor faiss, spaCy or pyarrow.
"""

from __future__ import annotations

from retrieval.build import build_index, index_passages
from retrieval.change import add_files, add_passages, compact_index, remove_passages
from retrieval.corpus import Corpus
from retrieval.errors import UserError
from retrieval.index import open_index
from retrieval.passage import Passage, Retriever
from retrieval.search import DenseRetriever, FixedPassages, HybridRetriever, WordRetriever, as_retriever

DISTRIBUTION = "selfrag"
"""Who owns this import name: `import selfrag` refuses another package called `retrieval`."""

__all__ = [
    "DISTRIBUTION",
    "Passage",
    "Retriever",
    "open_index",
    "build_index",
    "index_passages",
    "add_files",
    "add_passages",
    "remove_passages",
    "compact_index",
    "as_retriever",
    "DenseRetriever",
    "WordRetriever",
    "HybridRetriever",
    "FixedPassages",
    "Corpus",
    "UserError",
]
