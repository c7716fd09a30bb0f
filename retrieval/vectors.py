"""A corpus encoded block by block into a file that survives being killed, and indexes over it by inner product."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from retrieval.atomic import write_json, writing
from retrieval.corpus import Corpus
from retrieval.encoders import Encoder, Template, checked_encode
from retrieval.errors import UserError, require
from retrieval.reading import read_json

Matrix: TypeAlias = NDArray[np.float32]
Backend: TypeAlias = Literal["auto", "faiss", "numpy"]

_SLACK = 16  # candidates beyond k: near-ties that a backend's rounding may have put in another order
_QUERIES, _BLOCK = 256, 16_384  # queries and rows that are multiplied at once


class Hits(NamedTuple):
    """Best rows of m queries.

    Attributes:
        scores: float32 [m, k], falling; inner products.
        rows: int64 [m, k]; equal scores stand in the order of their rows.
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

    rows: NDArray[np.int64] = faiss.knn(queries, vectors, k, metric=faiss.METRIC_INNER_PRODUCT)[1]
    return rows


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


class GrowingMatrix:
    """Append-only float32 matrix [rows, dim] in a `.npy` file.

    Rows that the journal does not vouch for are cut off on opening, so a torn write is written again, not kept.

    Args:
        file: the matrix; one of the same shape that is there is continued.
        journal: how many of its rows are safe.
        rows: rows of the finished matrix.
        dim: values of a row.

    Attributes:
        done: rows on disk.
    """

    def __init__(self, file: Path, journal: Path, rows: int, dim: int) -> None:
        self._file, self._journal = file, journal
        self._row_bytes = 4 * dim
        self._header = _header(rows, dim)
        self.done = self._safe_rows(rows)
        with writing(file):
            if self.done == 0:
                file.write_bytes(self._header)
            else:
                os.truncate(file, self._end(self.done))

    def append(self, vectors: NDArray[np.float32]) -> None:
        """Add rows [n, dim]; when this returns they are on disk.

        Raises:
            UserError: the disk is full; the rows before are safe.
        """
        with writing(self._file):
            with self._file.open("r+b") as file:
                file.seek(self._end(self.done))
                file.write(np.ascontiguousarray(vectors, dtype="<f4").tobytes())
                file.flush()
                os.fsync(file.fileno())
            write_json(self._journal, {"rows": self.done + len(vectors)})
        self.done += len(vectors)

    def _end(self, rows: int) -> int:
        return len(self._header) + rows * self._row_bytes

    def _safe_rows(self, rows: int) -> int:
        try:
            claimed = int(read_json(self._journal)["rows"])
            with self._file.open("rb") as file:
                intact = file.read(len(self._header)) == self._header
            size = self._file.stat().st_size
        except (UserError, OSError, ValueError, KeyError, TypeError):
            return 0
        return claimed if intact and 0 <= claimed <= rows and size >= self._end(claimed) else 0


def _header(rows: int, dim: int) -> bytes:
    buffer = io.BytesIO()
    layout = {"descr": "<f4", "fortran_order": False, "shape": (rows, dim)}
    np.lib.format.write_array_header_1_0(buffer, layout)  # type: ignore[no-untyped-call]
    return buffer.getvalue()


BLOCK_ROWS = 1024
"""Rows that are encoded and saved together. A block is sorted by length and does not depend on other blocks, so an
encoding that was interrupted ends with the same vectors as one that was not."""


def encode_corpus(
    corpus: Corpus,
    encoder: Encoder,
    template: Template,
    file: Path,
    journal: Path,
    *,
    batch_size: int = 64,
    progress: bool | None = None,
) -> None:
    """Write the vectors of all passages, in row order, as a `.npy` matrix [n, d].

    Args:
        corpus: what to encode.
        encoder: gives the vectors.
        template: how a passage becomes a text.
        file: where to write; rows that an earlier call saved there are kept.
        journal: a small file beside it that says how many rows are safe.
        batch_size: texts that go through the encoder at once.
        progress: show a bar on stderr; None shows it on a terminal only.

    Raises:
        UserError: the disk is full, or the encoder returned nonsense. Finished blocks stay for the next call.
    """
    from tqdm import tqdm

    matrix = GrowingMatrix(file, journal, len(corpus), encoder.card.dim)
    disable = None if progress is None else not progress
    with tqdm(total=len(corpus), initial=matrix.done, desc="encoding", unit="passage", disable=disable) as bar:
        while matrix.done < len(corpus):
            passages = corpus[matrix.done : matrix.done + BLOCK_ROWS]
            texts = [template.of_passage(passage) for passage in passages]
            matrix.append(checked_encode(encoder, texts, batch_size))
            bar.update(len(passages))
