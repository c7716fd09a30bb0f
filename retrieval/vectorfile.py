"""A `.npy` matrix that grows block by block and survives being killed. Knows no encoder and no text.

The header states the final shape, rows are appended, and a journal says how many rows are safe on disk.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from retrieval.atomic import write_json, writing
from retrieval.errors import UserError
from retrieval.reading import read_json


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
