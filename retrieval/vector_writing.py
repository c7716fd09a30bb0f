"""Writes the vectors of an index, which may be stopped and continued."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.vectors import BLOCK, FlatIndex, Mask, Matrix, as_float32, stored_type
from selfrag.common.atomic import writing
from selfrag.common.errors import UserError
from selfrag.common.runs import RunLog

LOG = logging.getLogger("retrieval")


def as_stored(vectors: Matrix, storage: str) -> NDArray[Any]:
    """Return vectors [n, d] as a vector file holds them; see `stored_type`."""
    kind = stored_type(storage, vectors.shape[1])
    if storage != "int8":
        return np.ascontiguousarray(vectors, kind.base)
    stored = np.empty(len(vectors), kind)
    stored["scale"] = np.abs(vectors).max(axis=1) / 127
    stored["codes"] = np.rint(
        vectors / np.maximum(stored["scale"], np.finfo(np.float32).tiny)[:, None]
    )
    return stored


class EncodingJournal:
    """How many rows of an unfinished matrix are on disk. A journal of another matrix, or a damaged one, is begun anew.

    Args:
        path: the log.
        identity: what decides the vectors, as plain values.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self.done = 0
        try:
            self._log = RunLog(path, identity, self._take)
        except UserError as error:
            LOG.warning("vectors are encoded anew: %s", error)
            self.done = 0
            path.unlink()
            self._log = RunLog(path, identity, self._take)

    def _take(self, record: Mapping[str, Any]) -> None:
        self.done = int(record["rows"])

    def add(self, rows: int) -> None:
        """Record that so many rows are on disk, all together."""
        self._log.append({"rows": rows})

    def close(self) -> None:
        """Bring it to the disk."""
        self._log.close()


class GrowingMatrix:
    """Append-only matrix [rows, dim] in a `.npy` file; one of the same shape and type that is there is continued.

    Rows that the journal does not vouch for are cut off on opening, so a torn write is written again, not kept; without
    a journal these are all rows. `done` is the number of rows on disk.
    """

    def __init__(
        self,
        file: Path,
        rows: int,
        dim: int,
        dtype: str = "float32",
        journal: EncodingJournal | None = None,
    ) -> None:
        self._file, self._journal = file, journal
        self._dtype = dtype
        self._row_bytes = stored_type(dtype, dim).itemsize
        self._header = _header(rows, stored_type(dtype, dim))
        self.done = 0 if journal is None else self._safe_rows(journal.done, rows)
        with writing(file):
            if self.done == 0:
                file.write_bytes(self._header)
            else:
                os.truncate(file, self._end(self.done))

    def append(self, vectors: NDArray[np.float32]) -> None:
        """Add rows [n, dim]; when this returns they are on disk."""
        with np.errstate(over="ignore", invalid="ignore"):
            stored = as_stored(vectors, self._dtype)
        if not np.isfinite(as_float32(stored)).all():
            raise UserError(
                f"a vector holds values too large for {self._dtype}; store float32"
            )
        with writing(self._file), self._file.open("r+b") as file:
            file.seek(self._end(self.done))
            file.write(stored.tobytes())
            file.flush()
            os.fsync(file.fileno())
        self.done += len(vectors)
        if self._journal is not None:
            self._journal.add(self.done)

    def _end(self, rows: int) -> int:
        return len(self._header) + rows * self._row_bytes

    def _safe_rows(self, claimed: int, rows: int) -> int:
        """Return how many rows are on disk, by the journal; 0 where the file does not fit it."""
        try:
            with self._file.open("rb") as file:
                intact = file.read(len(self._header)) == self._header
            size = self._file.stat().st_size
        except OSError:
            return 0
        return (
            claimed
            if intact and 0 <= claimed <= rows and size >= self._end(claimed)
            else 0
        )


def _header(rows: int, row: np.dtype[Any]) -> bytes:
    buffer = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(row.base)  # type: ignore[no-untyped-call]
    layout = {"descr": descr, "fortran_order": False, "shape": (rows, *row.shape)}
    np.lib.format.write_array_header_1_0(buffer, layout)  # type: ignore[no-untyped-call]
    return buffer.getvalue()


def live_blocks(parts: Sequence[FlatIndex], kept: Mask | None) -> Iterator[Matrix]:
    """Yield the vectors of all rows that are `kept` (bool [rows of all]), [n, d], block by block in their order."""
    first = 0
    for part in parts:
        for start in range(0, len(part), BLOCK):
            block = part.block(start, start + BLOCK)
            yield (
                block
                if kept is None
                else block[kept[first + start : first + start + len(block)]]
            )
        first += len(part)
