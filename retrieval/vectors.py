"""Indexes over the vectors of a corpus: search by inner product."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from retrieval.errors import UserError, require

Matrix: TypeAlias = NDArray[np.float32]
Backend: TypeAlias = Literal["auto", "faiss", "numpy"]

_SLACK = 16  # candidates beyond k: near-ties that a backend's rounding may have put in another order
_QUERIES, _BLOCK = 256, 16_384  # queries and rows that are multiplied at once
_BLAS_QUERIES = 4  # from this many on BLAS is faster than faiss's own scan (measured at 100,000 x 384)


class Hits(NamedTuple):
    """Best rows of m queries.

    Attributes:
        scores: float32 [m, k], falling; inner products.
        rows: int64 [m, k]; equal scores stand in the order of their rows. -1 where an approximate index found no more.
    """

    scores: Matrix
    rows: NDArray[np.int64]


class VectorIndex(Protocol):
    """A searchable set of n vectors of length d."""

    def __len__(self) -> int:
        """The number of vectors, n."""
        ...

    @property
    def dim(self) -> int:
        """Length of a vector, d."""
        ...

    def all_finite(self) -> bool:
        """Read every vector; whether all can be compared."""
        ...

    def search(self, queries: Matrix, k: int) -> Hits:
        """The min(k, n) best rows for each of the queries [m, d]."""
        ...


class FlatIndex:
    """Exact search over all rows of a matrix.

    Scores and order do not depend on the backend or on how many queries are asked at once: candidates are scored again
    row by row.

    Args:
        vectors: float32 [n, d], n >= 1; may be memory-mapped.
        backend: `faiss`, `numpy`, or `auto` for the first that is installed.

    Raises:
        MissingExtraError: faiss is asked for and not installed.
    """

    def __init__(self, vectors: Matrix, backend: Backend = "auto") -> None:
        self._vectors = vectors
        if backend == "faiss":
            require("faiss", extra="cpu")
        numpy_only = backend == "numpy" or (backend == "auto" and find_spec("faiss") is None)
        self._candidates: Callable[[Matrix, Matrix, int], NDArray[np.int64]] = _numpy_top if numpy_only else _faiss_top

    @classmethod
    def open(cls, file: Path, backend: Backend = "auto") -> FlatIndex:
        """Memory-map a `.npy` file.

        Raises:
            UserError: it is not a float32 matrix.
        """
        try:
            vectors = np.lib.format.open_memmap(file, mode="r")  # type: ignore[no-untyped-call]
        except (OSError, ValueError, EOFError) as error:
            raise UserError(f"{file} is not a readable vector file ({error}); build the index again") from error
        if not vectors.flags.c_contiguous or vectors.ndim != 2 or vectors.dtype != np.float32:
            raise UserError(
                f"{file} holds {vectors.dtype} {vectors.shape}, not a float32 matrix; build the index again"
            )
        return cls(vectors, backend)

    def __len__(self) -> int:
        return int(self._vectors.shape[0])

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return int(self._vectors.shape[1])

    def all_finite(self) -> bool:
        """Read every vector; whether all can be compared."""
        return all(np.isfinite(self._vectors[row : row + _BLOCK]).all() for row in range(0, len(self), _BLOCK))

    def search(self, queries: Matrix, k: int) -> Hits:
        """The min(k, n) best rows for each of the queries [m, d]."""
        k = min(k, len(self))
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        hits = Hits(np.zeros((len(queries), k), np.float32), np.zeros((len(queries), k), np.int64))
        for start in range(0, len(queries), _QUERIES):
            part = slice(start, start + _QUERIES)
            rows = np.sort(self._candidates(self._vectors, queries[part], min(k + _SLACK, len(self))), axis=1)
            scores = np.stack(
                [self._scores(query, of_query) for query, of_query in zip(queries[part], rows, strict=True)]
            )
            order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
            hits.scores[part] = np.take_along_axis(scores, order, axis=1)
            hits.rows[part] = np.take_along_axis(rows, order, axis=1)
        return hits

    def _scores(self, query: NDArray[np.float32], rows: NDArray[np.int64]) -> Matrix:
        # multiply and sum, not matmul: the result for one row must not depend on which others are there
        scores: Matrix = (self._vectors[rows].astype(np.float64) * query).sum(-1).astype(np.float32)
        return scores


KINDS: dict[str, Callable[[Path], VectorIndex]] = {"flat": FlatIndex.open}


def _faiss_top(vectors: Matrix, queries: Matrix, k: int) -> NDArray[np.int64]:
    """Unordered rows of the k best, [m, k]; the matrix is read in place, not copied."""
    import faiss

    if _threshold_counts_values():
        faiss.cvar.distance_compute_blas_threshold = _BLAS_QUERIES * vectors.shape[1]
    with faiss_threads(len(queries)):
        rows: NDArray[np.int64] = faiss.knn(queries, vectors, k, metric=faiss.METRIC_INNER_PRODUCT)[1]
    return rows


@cache
def _threshold_counts_values() -> bool:
    """Whether this faiss multiplies by BLAS from a number of values on (128,000 since 1.15), not of queries (20)."""
    import faiss

    return int(getattr(faiss.cvar, "distance_compute_blas_threshold", 0)) > 10_000


@contextmanager
def faiss_threads(queries: int) -> Iterator[None]:
    """One OpenMP thread for a single query, which a second thread makes slower; all of them for a batch."""
    import faiss

    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1 if queries == 1 else before)  # OpenMP keeps this number by calling thread
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def _numpy_top(vectors: Matrix, queries: Matrix, k: int) -> NDArray[np.int64]:
    """As `_faiss_top`, block by block so that memory stays bounded."""
    scores = np.zeros((len(queries), 0), np.float32)
    rows = np.zeros((len(queries), 0), np.int64)
    for start in range(0, len(vectors), _BLOCK):
        block = queries @ vectors[start : start + _BLOCK].T
        scores = np.concatenate([scores, block], axis=1)
        rows = np.concatenate([rows, np.broadcast_to(np.arange(start, start + block.shape[1]), block.shape)], axis=1)
        if scores.shape[1] > k:
            best = np.argpartition(-scores, k - 1, axis=1)[:, :k]
            scores, rows = np.take_along_axis(scores, best, axis=1), np.take_along_axis(rows, best, axis=1)
    return rows
