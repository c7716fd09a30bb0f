"""The vectors of a corpus: encoded block by block into a file that a kill does not hurt."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.atomic import write_json, writing
from retrieval.corpus import Corpus
from retrieval.encoders import BlockEncoder, Encoder, Template, checked_encode
from retrieval.errors import UserError
from retrieval.progress import Progress
from retrieval.published import PublishedVectors
from retrieval.reading import read_json
from retrieval.vectors import as_float32, as_stored, stored_type


class GrowingMatrix:
    """Append-only matrix [rows, dim] in a `.npy` file.

    Rows that the journal does not vouch for are cut off on opening, so a torn write is written again, not kept.

    Args:
        file: the matrix; one of the same shape that is there is continued.
        journal: how many of its rows are safe.
        rows: rows of the finished matrix.
        dim: values of a row.
        dtype: `float32`, `float16` or `int8`.

    Attributes:
        done: rows on disk.
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
        """Add rows [n, dim]; when this returns they are on disk.

        Raises:
            UserError: the disk is full, and the rows before are safe; or a value does not fit into the format.
        """
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
    dtype: str = "float32",
    batch_size: int = 64,
    progress: bool | None = None,
    published: PublishedVectors | None = None,
) -> None:
    """Write the vectors of all passages, in row order, as a `.npy` matrix [n, d].

    Args:
        corpus: what to encode.
        encoder: gives the vectors.
        template: how a passage becomes a text.
        file: where to write; rows that an earlier call saved there are kept.
        journal: a small file beside it that says how many rows are safe.
        dtype: number format of the file, `float32`, `float16` or `int8`.
        batch_size: texts that go through the encoder at once.
        progress: show a bar on stderr; None shows a bar on a terminal, else plain lines.
        published: vectors to take in place of encoding.

    Raises:
        UserError: the disk is full, or the encoder returned nonsense. Finished blocks stay for the next call.
    """
    matrix = GrowingMatrix(file, journal, len(corpus), encoder.card.dim, dtype)
    blocks = (
        [template.of_passage(passage) for passage in corpus[start : start + BLOCK_ROWS]]
        for start in range(matrix.done, len(corpus), BLOCK_ROWS)
    )
    if published is not None:
        encoded = published.blocks(corpus, matrix.done)
    elif isinstance(encoder, BlockEncoder):
        encoded = encoder.encode_blocks(blocks, batch_size)
    else:
        encoded = (checked_encode(encoder, texts, batch_size) for texts in blocks)
    with Progress("encoding", "passage", len(corpus), matrix.done, show=progress) as bar:
        for vectors in encoded:
            matrix.append(vectors)
            bar.advance(len(vectors))
