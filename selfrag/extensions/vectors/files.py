"""Vectors that others encoded, as they are published: shards of Contriever, `.npy` and Parquet.

A shard is a pickled pair of ids and an array. It is read without running what it names: only the parts of an array are
known.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from selfrag.interface import (
    NPY_ERRORS,
    Corpus,
    Matrix,
    UserError,
    as_float32,
    count_of,
    read_vector_blocks,
    read_vector_size,
    regular_file,
)

BLOCK = 1_024
"""Vectors in memory at once."""
PassageIds: TypeAlias = list[str]
VectorBlocks: TypeAlias = Iterator[tuple[PassageIds | None, NDArray[Any]]]
"""Vectors [n, d] with their ids, where a file has ids."""


_KNOWN: dict[tuple[str, str], Any] = {
    ("multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    ("numeric", "_frombuffer"): np.empty(0).__reduce_ex__(5)[0],
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}
"""What a shard may name, by the last part of the module."""


class _Reader(pickle.Unpickler):
    """Reads the pickle of a shard."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what a name stands for; nothing is imported."""
        known = _KNOWN.get((module.rpartition(".")[2], name))
        if known is None or module.partition(".")[0] != "numpy":
            raise pickle.UnpicklingError(
                f"it names {module[:60]}.{name[:60]}, which no array needs"
            )
        return known


@dataclass(frozen=True, slots=True)
class _Source:
    """A file of vectors."""

    path: Path  # the file
    rows: int  # vectors in it
    dim: int  # length of one
    # from a row on, vectors [n, d] with their ids, where the file has ids
    blocks: Callable[[int], VectorBlocks]


def _shard(path: Path) -> _Source:
    with path.open("rb") as file:
        try:
            ids, matrix = _Reader(file).load()
            is_matrix = matrix.ndim == 2 and matrix.dtype.kind == "f"
            if not is_matrix or not isinstance(ids, list) or len(ids) != len(matrix):
                raise pickle.UnpicklingError(
                    "it holds no pair of ids and a matrix of floats with a row for each"
                )
        except Exception as error:  # whatever a damaged file makes of the reader
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise UserError(f"{path}: no shard of ids and vectors: {reason}") from error
    names = [str(key) for key in ids]
    return _Source(path, len(matrix), matrix.shape[1], partial(_cut, names, matrix))


def _cut(ids: PassageIds | None, matrix: NDArray[Any], start: int) -> VectorBlocks:
    for row in range(start, len(matrix), BLOCK):
        part = slice(row, row + BLOCK)
        yield None if ids is None else ids[part], matrix[part]


def _npy(path: Path) -> _Source:
    try:
        matrix = np.lib.format.open_memmap(path, mode="r")  # type: ignore[no-untyped-call]
    except NPY_ERRORS as error:
        raise UserError(f"{path}: no readable .npy file: {error!s:.200}") from error
    if matrix.ndim != 2 or matrix.dtype.kind != "f":
        raise UserError(
            f"{path}: holds {matrix.dtype} {matrix.shape}, not a matrix of floats"
        )
    return _Source(path, len(matrix), matrix.shape[1], partial(_cut, None, matrix))


def _parquet(path: Path) -> _Source:
    rows, dim = read_vector_size(path)
    return _Source(path, rows, dim, partial(_parquet_blocks, path))


def _parquet_blocks(path: Path, start: int) -> VectorBlocks:
    for block in read_vector_blocks(path, start):
        yield block.ids, block.vectors


class PublishedVectors:
    """The vectors of a corpus, from files in the order of its passages.

    Args:
        files: `.npy`, `.parquet` (a column `vector`, perhaps `id`), or shards of Contriever, whatever they are
            called.

    Raises:
        UserError: a file cannot be read, or two hold vectors of different lengths.
    """

    def __init__(self, files: Sequence[str | Path]) -> None:
        paths = [regular_file(file) for file in files]
        if not paths:
            raise UserError("no files of vectors; name at least one")
        self._paths = paths
        self._sizes = list[int]()
        self.dim = 0
        for path in paths:
            source = _opened(path)
            if self.dim not in (0, source.dim):
                raise UserError(
                    f"{path}: vectors of {source.dim}, those before have {self.dim}"
                )
            self.dim = source.dim
            self._sizes.append(source.rows)

    def __len__(self) -> int:
        return sum(self._sizes)

    @property
    def fingerprint(self) -> str:
        """Return a digest of the files by name, size and time of change."""
        stated = [
            (str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns)
            for path in self._paths
        ]
        return hashlib.blake2b(repr(stated).encode(), digest_size=16).hexdigest()

    def check(self, corpus: Corpus, dim: int) -> None:
        """Refuse another number of vectors than of passages, or vectors of another length than the encoder's `dim`."""
        if len(self) != len(corpus):
            raise UserError(
                f"{count_of(len(self), 'vectors', form=',')} for"
                f" {count_of(len(corpus), 'passages', form=',')}; give the files that belong together"
            )
        if self.dim != dim:
            raise UserError(
                f"the files hold vectors of {self.dim}, the encoder makes {dim}; name their own encoder"
            )

    def blocks(self, corpus: Corpus, start: int) -> Iterator[Matrix]:
        """Vectors [n, d] from a row on, in order."""
        done = 0
        for path, size in zip(self._paths, self._sizes, strict=True):
            if start >= done + size:
                done += size
                continue
            row = max(start - done, 0)
            for ids, vectors in _blocks(path, row):
                self._check_ids(path, row, ids, corpus, done)
                block = as_float32(
                    vectors.astype(vectors.dtype.newbyteorder("="), copy=False)
                )
                if not np.isfinite(block).all():
                    wrong = (
                        row
                        + int(np.flatnonzero(~np.isfinite(block).all(axis=1))[0])
                        + 1
                    )
                    raise UserError(
                        f"{path}: row {wrong} holds values that are not finite"
                    )
                row += len(block)
                yield block
            done += size

    def _check_ids(
        self, path: Path, row: int, ids: PassageIds | None, corpus: Corpus, done: int
    ) -> None:
        if ids is None:
            return
        for offset, (key, passage) in enumerate(
            zip(ids, corpus[done + row : done + row + len(ids)], strict=True)
        ):
            if key != passage.id:
                raise UserError(
                    f"{path}: row {row + offset + 1} has the id {key!r:.60}, passage {done + row + offset + 1} is "
                    f"{passage.id!r:.60}; give both in the same order"
                )


def _opened(path: Path) -> _Source:
    return {".npy": _npy, ".parquet": _parquet}.get(path.suffix.lower(), _shard)(path)


def _blocks(path: Path, start: int) -> VectorBlocks:
    """Return the vectors of a file from a row on; the size of a Parquet file is not asked for again."""
    if path.suffix.lower() == ".parquet":
        return _parquet_blocks(path, start)
    return _opened(path).blocks(start)
