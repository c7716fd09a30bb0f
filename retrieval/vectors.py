"""Indexes over the vectors of a corpus: search by inner product."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from selfrag.common.checks import check_float, check_int
from selfrag.common.errors import UserError, require

if TYPE_CHECKING:
    from retrieval.gpu import GpuCandidates

Matrix: TypeAlias = NDArray[np.float32]
Mask: TypeAlias = NDArray[np.bool_]
RowNumbers: TypeAlias = NDArray[np.int64]
Backend: TypeAlias = Literal["auto", "faiss", "numpy"]

LEAST_GPU_ROWS = 20_000  # a CPU searches fewer in a millisecond
_SLACK = 16  # candidates beyond k: near-ties that a backend's rounding may have put in another order
_QUERIES, BLOCK = 256, 8_192  # queries and rows that are multiplied at once
_BLAS_QUERIES = 4  # from this many on BLAS is faster than faiss's own scan (measured at 100,000 x 384)
# What numpy raises for a damaged or crafted `.npy` file, whose header it reads as Python source.
NPY_ERRORS = (
    OSError,
    EOFError,
    ValueError,
    TypeError,
    OverflowError,
    MemoryError,
    SyntaxError,
    TokenError,
    RecursionError,
)


class VectorHits(NamedTuple):
    """Best rows of m queries."""

    scores: Matrix  # float32 [m, k], falling; inner products
    # int64 [m, k]; equal scores stand in the order of their rows. -1 where an approximate index found no more.
    rows: RowNumbers

    def rankings(self) -> list[list[tuple[int, float]]]:
        """Return for each query its rows and their scores."""
        rankings = []
        for rows, scores in zip(self.rows.tolist(), self.scores.tolist(), strict=True):
            rankings.append(
                [
                    (row, score)
                    for row, score in zip(rows, scores, strict=True)
                    if row >= 0
                ]
            )
        return rankings


class VectorIndex(Protocol):
    """A searchable set of n vectors of length d."""

    def __len__(self) -> int:
        """Return the number of vectors, n."""

    @property
    def dim(self) -> int:
        """Length of a vector, d."""

    def search(
        self, queries: Matrix, k: int, allowed: Mask | None = None
    ) -> VectorHits:
        """Return the best rows for each of the queries, float32 [m, d], at most min(k, allowed rows) a query.

        `allowed` is bool [n], the rows that may be found; None for all.
        """


class FlatIndex:
    """Exact search over all rows of a matrix.

    Scores and order do not depend on the backend or on how many queries are asked at once: candidates are scored again
    row by row.

    `vectors` are float32 or float16 [n, d], or int8 rows as `stored_type` has them; they may be memory-mapped. The
    backend `auto` is faiss where it is installed.
    """

    def __init__(self, vectors: NDArray[Any], backend: Backend = "auto") -> None:
        self._vectors = vectors
        if backend == "faiss":
            require("faiss", extra="cpu")
        self._faiss = backend == "faiss" or (
            backend == "auto" and find_spec("faiss") is not None
        )
        self._gpu: GpuCandidates | None = None
        if self._faiss and len(self) >= LEAST_GPU_ROWS:
            from retrieval.gpu import GpuCandidates

            self._gpu = GpuCandidates(self._on_gpu)

    @classmethod
    def open(cls, file: Path, backend: Backend = "auto") -> FlatIndex:
        """Memory-map a `.npy` file."""
        try:
            vectors = np.lib.format.open_memmap(file, mode="r")  # type: ignore[no-untyped-call]
        except NPY_ERRORS as error:
            raise UserError(
                f"{file} is not a readable vector file ({error!s:.200}); build the index again"
            ) from error
        is_known = _width(vectors) > 0
        if vectors.ndim == 2:  # of no numbers where an index is searched by words only
            is_known = vectors.dtype in (np.float32, np.float16)
        if not vectors.flags.c_contiguous or not is_known:
            raise UserError(
                f"{file} holds {vectors.dtype!s:.80} {vectors.shape}, not a float32 matrix; build the index again"
            )
        return cls(vectors, backend)

    def __len__(self) -> int:
        return int(self._vectors.shape[0])

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return _width(self._vectors)

    @property
    def dtype(self) -> str:
        """Number format of the vectors, such as `float32`."""
        return "int8" if self._vectors.ndim == 1 else str(self._vectors.dtype.name)

    def all_finite(self) -> bool:
        """Read every vector; return whether all can be compared."""
        return all(
            np.isfinite(self.block(row, row + BLOCK)).all()
            for row in range(0, len(self), BLOCK)
        )

    def search(
        self, queries: Matrix, k: int, allowed: Mask | None = None
    ) -> VectorHits:
        """Return the best rows for each of the queries [m, d]; see `VectorIndex.search`."""
        n = len(self) if allowed is None else int(np.count_nonzero(allowed))
        k = min(k, n)
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        hits = VectorHits(
            np.zeros((len(queries), k), np.float32),
            np.zeros((len(queries), k), np.int64),
        )
        for start in range(0, len(queries) if k else 0, _QUERIES):
            part = slice(start, start + _QUERIES)
            rows = np.sort(
                self._candidates(queries[part], min(k + _SLACK, n), allowed), axis=1
            )
            hits.scores[part], hits.rows[part] = self.rescored(queries[part], rows, k)
        return hits

    def _on_gpu(self, resources: Any) -> Any:
        from retrieval.gpu import flat_on_gpu

        blocks = (self.block(row, row + BLOCK) for row in range(0, len(self), BLOCK))
        return flat_on_gpu(resources, self.dim, self.dtype != "float32", blocks)

    def gpu_candidates(self, queries: Matrix, k: int, allowed: Mask | None) -> Any:
        """Return unordered rows [m, at least k] of the best by a GPU, -1 for none; None where the CPU is to search."""
        if self._gpu is None:
            return None
        return self._gpu.best_rows(queries, min(k + _SLACK, len(self)), allowed)

    def _candidates(self, queries: Matrix, k: int, allowed: Mask | None) -> RowNumbers:
        """Return unordered rows of the k best, [m, at least k]."""
        rows: RowNumbers | None = self.gpu_candidates(queries, k, allowed)
        if rows is not None:
            return rows
        if self._faiss and allowed is None and self._vectors.dtype == np.float32:
            return _faiss_top(self._vectors, queries, k)
        return _numpy_top(self._vectors, queries, k, allowed)

    def rescored(self, queries: Matrix, rows: RowNumbers, k: int) -> VectorHits:
        """Return the k best of some rows [m, candidates] (rising, -1 for none) by exact scores."""
        # multiply and sum, not matmul: the result for one row must not depend on which others are there
        scores = np.empty(rows.shape, np.float32)
        for number, query in enumerate(queries):
            scores[number] = (self.rows(rows[number]).astype(np.float64) * query).sum(
                -1
            )
        scores[rows < 0] = -np.inf
        return _best_hits(scores, rows, k)

    def block(self, start: int, stop: int) -> Matrix:
        """Return some rows as float32."""
        return as_float32(self._vectors[start:stop])

    def rows(self, rows: RowNumbers) -> Matrix:
        """Return the vectors of some rows as float32."""
        return as_float32(self._vectors[rows])


class SegmentedIndex:
    """Several indexes searched as one; row numbers continue. `kept` is bool [n], false for rows that were removed."""

    def __init__(self, parts: Sequence[VectorIndex], kept: Mask | None = None) -> None:
        self._parts = parts
        self._kept = kept
        self._starts = np.cumsum([0, *map(len, parts)]).tolist()

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return self._parts[0].dim

    def search(
        self, queries: Matrix, k: int, allowed: Mask | None = None
    ) -> VectorHits:
        """Return the best rows for each of the queries [m, d]; see `VectorIndex.search`."""
        if self._kept is not None:
            allowed = self._kept if allowed is None else self._kept & allowed
        scores, rows = [], []
        for part, start in zip(self._parts, self._starts, strict=False):
            inside = None if allowed is None else allowed[start : start + len(part)]
            hits = part.search(queries, k, inside)
            scores.append(hits.scores)
            rows.append(np.where(hits.rows < 0, -1, hits.rows + start))
        return _best_hits(
            np.concatenate(scores, axis=1), np.concatenate(rows, axis=1), k
        )


def _best_hits(scores: Matrix, rows: RowNumbers, k: int) -> VectorHits:
    """Return the k best rows of each query by scores [m, n]; equal ones keep their order."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return VectorHits(
        np.take_along_axis(scores, order, axis=1),
        np.take_along_axis(rows, order, axis=1),
    )


def _faiss_top(vectors: Matrix, queries: Matrix, k: int) -> RowNumbers:
    """Return unordered rows of the k best, [m, k]; the matrix is read in place, not copied."""
    import faiss

    if _threshold_counts_values():
        faiss.cvar.distance_compute_blas_threshold = _BLAS_QUERIES * vectors.shape[1]
    with faiss_threads(len(queries)):
        rows: RowNumbers = faiss.knn(
            queries, vectors, k, metric=faiss.METRIC_INNER_PRODUCT
        )[1]
    return rows


@cache
def _threshold_counts_values() -> bool:
    """Return whether this faiss multiplies by BLAS from a number of values on, as since 1.15, not of queries."""
    import faiss

    return int(getattr(faiss.cvar, "distance_compute_blas_threshold", 0)) > 10_000


@contextmanager
def faiss_threads(queries: int) -> Iterator[None]:
    """Use one OpenMP thread for a single query, which a second thread makes slower; all of them for a batch."""
    import faiss

    before = faiss.omp_get_max_threads()
    # OpenMP keeps this number by calling thread
    faiss.omp_set_num_threads(1 if queries == 1 else before)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def _numpy_top(
    vectors: NDArray[Any], queries: Matrix, k: int, allowed: Mask | None = None
) -> RowNumbers:
    """Return the same as `_faiss_top`, block by block so that memory stays bounded; at least k rows must be allowed."""
    scores = np.zeros((len(queries), 0), np.float32)
    rows = np.zeros((len(queries), 0), np.int64)
    for start in range(0, len(vectors), BLOCK):
        inside = slice(start, start + BLOCK)
        among = np.arange(start, min(start + BLOCK, len(vectors)))
        block = vectors[inside]
        if allowed is not None:
            among, block = among[allowed[inside]], block[allowed[inside]]
        products = queries @ as_float32(block).T
        scores = np.concatenate([scores, products], axis=1)
        rows = np.concatenate([rows, np.broadcast_to(among, products.shape)], axis=1)
        if scores.shape[1] > k:
            best = np.argpartition(-scores, k - 1, axis=1)[:, :k]
            scores = np.take_along_axis(scores, best, axis=1)
            rows = np.take_along_axis(rows, best, axis=1)
    return rows


def stored_type(storage: str, dim: int) -> np.dtype[Any]:
    """Return what a row of a vector file holds: numbers, or for `int8` a scale and the numbers as multiples of it."""
    if storage == "int8":
        return np.dtype([("scale", "<f4"), ("codes", "i1", (dim,))])
    return np.dtype((np.dtype(storage).newbyteorder("<"), (dim,)))


def _width(vectors: NDArray[Any]) -> int:
    """Return the numbers of a vector; 0 where these are no vectors."""
    if vectors.ndim == 2:
        return int(vectors.shape[1])
    dim = max(0, vectors.dtype.itemsize - 4)
    is_int8 = vectors.ndim == 1 and vectors.dtype == stored_type("int8", dim)
    return dim if is_int8 else 0


def as_float32(vectors: NDArray[Any]) -> Matrix:
    """Return the same numbers in float32; float16 by torch where it is, which converts four times as fast as numpy."""
    if vectors.dtype.names:
        scaled: Matrix = vectors["codes"] * vectors["scale"][:, None]
        return scaled
    if vectors.dtype == np.float16 and vectors.size and find_spec("torch"):
        import torch

        converted: Matrix = torch.from_numpy(np.array(vectors)).float().numpy()
        return converted
    return np.asarray(vectors, dtype=np.float32)


KINDS = ("auto", "flat", "rabitq", "ivf")


_FLAT_ROWS = 50_000
_RABITQ_ROWS = 500_000  # `auto` is flat, then rabitq up to these numbers of rows


@dataclass(frozen=True, slots=True)
class DenseCard:
    """An approximate index, its settings and what they reach."""

    factory: str  # faiss's description of it, such as `RR384,IVF4096,RaBitQfs`
    nprobe: int  # lists that a search visits; 0 where there are none
    candidates: int  # rows that a search scores exactly
    # mean share of the exact 10 best that it finds, over vectors as far from the passages as questions are
    recall: float
    recall_low: float  # lower end of the 95% interval of `recall`
    queries: int  # number of those vectors

    def __post_init__(self) -> None:
        check_int("nprobe", self.nprobe, 0)
        check_int("candidates", self.candidates)
        check_float("recall", self.recall, 0, 1)


def factory_of(kind: str, rows: int, dim: int) -> str:
    """Return faiss's description of a kind for n `rows` of length `dim`, empty for flat; it may be one already."""
    if kind == "flat" or (kind == "auto" and (rows <= _FLAT_ROWS or not dim)):
        return ""
    if kind == "rabitq" or (kind == "auto" and rows <= _RABITQ_ROWS):
        return "RaBitQfs"
    if kind in ("ivf", "auto"):
        lists = 1 << max(0, round(math.log2(2 * math.sqrt(rows))))
        return f"RR{dim},IVF{min(lists, rows)},RaBitQfs"
    # faiss's own names have capitals
    if kind.lower() == kind or not kind.isprintable():
        raise UserError(
            f"kind={kind!r:.80}: choose one of {', '.join(KINDS)}, or give faiss's factory string"
        )
    return kind
