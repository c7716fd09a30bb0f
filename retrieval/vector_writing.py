"""Writes the vectors of an index, which may be stopped and continued."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.vectors import BLOCK, FlatIndex, Mask, Matrix, as_float32, stored_type
from selfrag.common.atomic import write_json, writing
from selfrag.common.errors import UserError
from selfrag.common.reading import read_json


def as_stored(vectors: Matrix, storage: str) -> NDArray[Any]:
    """Vectors [n, d] as a vector file holds them; see `stored_type`."""
    kind = stored_type(storage, vectors.shape[1])
    if storage != "int8":
        return np.ascontiguousarray(vectors, kind.base)
    found = np.empty(len(vectors), kind)
    found["scale"] = np.abs(vectors).max(axis=1) / 127
    found["codes"] = np.rint(vectors / np.maximum(found["scale"], np.finfo(np.float32).tiny)[:, None])
    return found


class GrowingMatrix:
    """Append-only matrix [rows, dim] in a `.npy` file; one of the same shape and type that is there is continued.

    Rows that the journal does not vouch for are cut off on opening, so a torn write is written again, not kept. `done`
    is the number of rows on disk.
    """

    def __init__(self, file: Path, journal: Path, rows: int, dim: int, dtype: str = "float32") -> None:
        self._file, self._journal = file, journal
        self._dtype = dtype
        self._row_bytes = stored_type(dtype, dim).itemsize
        self._header = _header(rows, stored_type(dtype, dim))
        self.done = self._safe_rows(rows)
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
            raise UserError(f"a vector holds values too large for {self._dtype}; store float32")
        with writing(self._file):
            with self._file.open("r+b") as file:
                file.seek(self._end(self.done))
                file.write(stored.tobytes())
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


def _header(rows: int, row: np.dtype[Any]) -> bytes:
    buffer = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(row.base)  # type: ignore[no-untyped-call]
    layout = {"descr": descr, "fortran_order": False, "shape": (rows, *row.shape)}
    np.lib.format.write_array_header_1_0(buffer, layout)  # type: ignore[no-untyped-call]
    return buffer.getvalue()


def live_blocks(parts: Sequence[FlatIndex], kept: Mask | None) -> Iterator[Matrix]:
    """The vectors of all rows that are `kept` (bool [rows of all]), [n, d], block by block in their order."""
    first = 0
    for part in parts:
        for start in range(0, len(part), BLOCK):
            block = part.block(start, start + BLOCK)
            yield block if kept is None else block[kept[first + start : first + start + len(block)]]
        first += len(part)
