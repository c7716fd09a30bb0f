"""Tables with columns `id`, `title`, `text`: comma- or tab-separated with a header line, and Parquet."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from retrieval.errors import UserError
from retrieval.readers.row import Row, to_row
from retrieval.reading import read_lines, regular_file


def _check_columns(path: Path, columns: list[str]) -> None:
    if "text" not in columns or not {"id", "_id"} & set(columns):
        found = ", ".join(column[:40] for column in columns[:20]) or "none"
        raise UserError(f"{path}: the header must name the columns id and text (title is optional); found: {found}")
    repeated = sorted(column for column, count in Counter(columns).items() if count > 1)
    if repeated:
        raise UserError(f"{path}: the header names {', '.join(repeated)} more than once")


def read_separated(path: Path, delimiter: str) -> Iterator[Row]:
    """Rows of a `,` or tab separated file; fields may be quoted as spreadsheets write them.

    Raises:
        UserError: no usable header, a row of another width, or a wrong value.
    """
    reader = csv.reader(read_lines(path), delimiter=delimiter, strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_columns(path, header)
        while True:
            number = reader.line_num + 1  # a quoted field may span lines: the row is named by its first
            fields = next(reader, None)
            if fields is None:
                return
            if not fields:
                continue
            if len(fields) != len(header):
                raise UserError(f"{path}:{number}: {len(fields)} fields where the header has {len(header)}")
            yield to_row(dict(zip(header, fields, strict=True)), path, number)
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num}: {error}; very long texts are better given as jsonl") from error


def read_parquet(path: Path) -> Iterator[Row]:
    """Rows of a Parquet file, a batch in memory at a time.

    Raises:
        UserError: not a Parquet file, columns missing, or a wrong value.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(regular_file(path))
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: not a readable Parquet file ({error})") from error
    with file:
        names = list(file.schema_arrow.names)
        _check_columns(path, names)
        wanted = [name for name in ("id", "_id", "title", "text") if name in names]
        number = 0
        try:
            for batch in file.iter_batches(batch_size=1024, columns=wanted):
                for fields in batch.to_pylist():
                    number += 1
                    yield to_row(fields, path, number, unit="row")
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise UserError(f"{path}: damaged after row {number} ({error})") from error
