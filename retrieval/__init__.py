"""Passages in, ranked passages out: a corpus on disk, text encoders, a vector index, and retrievers over them.

Importing it costs neither torch nor faiss, spaCy or pyarrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from retrieval.build import (
        add_passages,
        build_index,
        compact_index,
        index_passages,
        remove_passages,
    )
    from retrieval.combining import RerankedRetriever, join
    from retrieval.corpus import Corpus
    from retrieval.index import open_index
    from retrieval.passage import Passage, Retriever
    from retrieval.search import (
        DenseRetriever,
        FixedPassages,
        Fusion,
        HybridRetriever,
        WordRetriever,
        as_retriever,
    )
    from retrieval.sync import add_files, remove_files, sync_index
    from selfrag.common.errors import UserError

DISTRIBUTION = "selfrag"
"""Who owns this import name: `import selfrag` refuses another package called `retrieval`."""

_MODULES = {
    ".build": "build_index index_passages add_passages remove_passages compact_index",
    ".combining": "RerankedRetriever join",
    ".corpus": "Corpus",
    "selfrag.common.errors": "UserError",
    ".index": "open_index",
    ".passage": "Passage Retriever",
    ".search": (
        "as_retriever DenseRetriever WordRetriever HybridRetriever FixedPassages Fusion"
    ),
    ".sync": "sync_index add_files remove_files",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}
"""Where each name is defined, from this package on. Its module is imported when the name is first used."""

__all__ = [
    "DISTRIBUTION",
    "Passage",
    "Retriever",
    "open_index",
    "build_index",
    "index_passages",
    "sync_index",
    "add_files",
    "remove_files",
    "add_passages",
    "remove_passages",
    "compact_index",
    "as_retriever",
    "join",
    "DenseRetriever",
    "WordRetriever",
    "HybridRetriever",
    "FixedPassages",
    "Fusion",
    "RerankedRetriever",
    "Corpus",
    "UserError",
]


if not TYPE_CHECKING:  # else every name would be known to type checkers

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOMES[name], __name__), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
