"""Passages in, ranked passages out: a corpus on disk, text encoders, a vector index, and retrievers over them.

Importing it costs neither torch nor faiss, spaCy or pyarrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from retrieval.build import build_index, index_passages
    from retrieval.change import add_files, add_passages, compact_index, remove_passages
    from retrieval.corpus import Corpus
    from retrieval.errors import UserError
    from retrieval.index import open_index
    from retrieval.joining import join
    from retrieval.passage import Passage, Retriever
    from retrieval.search import DenseRetriever, FixedPassages, HybridRetriever, WordRetriever, as_retriever
    from retrieval.web import WebRetriever

DISTRIBUTION = "selfrag"
"""Who owns this import name: `import selfrag` refuses another package called `retrieval`."""

_HOMES = {
    "Passage": "retrieval.passage",
    "Retriever": "retrieval.passage",
    "open_index": "retrieval.index",
    "build_index": "retrieval.build",
    "index_passages": "retrieval.build",
    "add_files": "retrieval.change",
    "add_passages": "retrieval.change",
    "remove_passages": "retrieval.change",
    "compact_index": "retrieval.change",
    "as_retriever": "retrieval.search",
    "join": "retrieval.joining",
    "WebRetriever": "retrieval.web",
    "DenseRetriever": "retrieval.search",
    "WordRetriever": "retrieval.search",
    "HybridRetriever": "retrieval.search",
    "FixedPassages": "retrieval.search",
    "Corpus": "retrieval.corpus",
    "UserError": "retrieval.errors",
}
"""Where each name is defined. Its module is imported when the name is first used."""

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
    "join",
    "WebRetriever",
    "DenseRetriever",
    "WordRetriever",
    "HybridRetriever",
    "FixedPassages",
    "Corpus",
    "UserError",
]


if not TYPE_CHECKING:  # else every name would be known to type checkers

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
