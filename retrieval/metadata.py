"""Columns of a corpus beyond id, title and text: an Arrow file beside the passages, where any row has such values."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import IO, Any, TypeAlias

from retrieval.errors import UserError

Scalar: TypeAlias = str | int | float | bool
FILE = "metadata.arrow"
_MOST_COLUMNS, _ROWS = 256, 2048


def scalars(fields: Mapping[str, Any]) -> dict[str, Scalar]:
    """The values that a column can hold: non-empty texts, numbers and truth values; others are left out."""
    return {str(name): value for name, value in fields.items() if _is_scalar(value)}


def _is_scalar(value: Any) -> bool:
    if isinstance(value, int):
        return -(1 << 63) <= value < 1 << 63
    return bool(value) if isinstance(value, str) else isinstance(value, float) and math.isfinite(value)


class MetadataWriter:
    """Collects the metadata of rows on disk, since the type of a column is known at the end only.

    The first 256 columns are kept. Whole and other numbers in one column become floats; texts and something else become
    texts.

    Args:
        folder: of the corpus.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._spool: IO[str] | None = None
        self._types: dict[str, set[type]] = {}
        self._rows = 0

    def add(self, values: Mapping[str, Scalar]) -> None:
        """The next row."""
        if values and self._spool is None:
            self._spool = (self._folder / "metadata.jsonl").open("w+", encoding="utf-8")
            self._spool.write("{}\n" * self._rows)
        kept = {}
        for name, value in values.items():
            if name in self._types or len(self._types) < _MOST_COLUMNS:
                self._types.setdefault(name, set()).add(type(value))
                kept[name] = value
        if self._spool is not None:
            self._spool.write(json.dumps(kept) + "\n")
        self._rows += 1

    def finish(self) -> str:
        """Write the file and return its digest; empty where no row has metadata."""
        import pyarrow as pa

        if self._spool is None:
            return ""
        types = {name: _arrow_type(found) for name, found in sorted(self._types.items())}
        schema = pa.schema(list(types.items()))
        with self._spool, (self._folder / FILE).open("wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
            self._spool.seek(0)
            while rows := [json.loads(line) for line in islice(self._spool, _ROWS)]:
                columns = [pa.array([_as(kind, row.get(name)) for row in rows], kind) for name, kind in types.items()]
                writer.write_batch(pa.record_batch(columns, schema=schema))
        (self._folder / "metadata.jsonl").unlink()
        return digest(self._folder / FILE)


def _arrow_type(found: set[type]) -> Any:
    import pyarrow as pa

    if found == {bool}:
        return pa.bool_()
    if found <= {int, float}:
        return pa.int64() if found == {int} else pa.float64()
    return pa.large_string()


def _as(kind: Any, value: Scalar | None) -> Scalar | None:
    import pyarrow as pa

    if value is None or kind != pa.large_string() or isinstance(value, str):
        return float(value) if kind == pa.float64() and value is not None else value
    return json.dumps(value)


def digest(file: Path) -> str:
    """blake2b of a file."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def read(folder: Path, rows: int) -> Any:
    """The table of a corpus, memory-mapped; None where there is none.

    Raises:
        UserError: it does not fit.
    """
    import pyarrow as pa

    if not (folder / FILE).exists():
        return None
    try:
        table = pa.ipc.open_stream(pa.memory_map(str(folder / FILE))).read_all()
        table.validate()
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise UserError(f"corpus {folder} is damaged ({error}); build it again") from error
    if len(table) != rows:
        raise UserError(f"corpus {folder} is damaged: {FILE} does not hold {rows} rows; build it again")
    return table


def rows_of(table: Any) -> Iterator[dict[str, Scalar]]:
    """The values of each row, those that are missing left out."""
    for batch in table.to_batches(max_chunksize=_ROWS):
        for row in batch.to_pylist():
            yield {name: value for name, value in row.items() if value is not None}
