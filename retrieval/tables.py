"""Reads tables of passages: JSONL, CSV, TSV and Parquet files with the columns id, title and text."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.corpus import Place, Row, scalars
from retrieval.errors import UserError
from retrieval.passage import Passage
from retrieval.reading import parse_json, read_lines, regular_file, unpacked_limit

_TEXTS = ("id", "_id", "title", "text")


def to_row(fields: Mapping[str, Any], path: Path, number: int, unit: str = "line") -> Row:
    """A row from named values: `id` (or BEIR's `_id`), `text`, perhaps `title`; others are metadata."""
    place = Place(str(path), number, unit)
    identifier = fields.get("id", fields.get("_id"))
    if isinstance(identifier, int) and not isinstance(identifier, bool):
        identifier = str(identifier)
    title = fields.get("title")
    for name, value in (("id", identifier), ("text", fields.get("text")), ("title", "" if title is None else title)):
        if value is None:
            raise UserError(
                f"{place}: no {name}; a row needs id and text (found: {', '.join(map(str, fields)) or 'nothing'})"
            )
        if not isinstance(value, str):
            raise UserError(f"{place}: {name} must be text, not {type(value).__name__}")
        if not value.strip() and name != "title":
            raise UserError(f"{place}: {name} is empty")
    further = scalars({name: value for name, value in fields.items() if name not in _TEXTS})
    return Row(Passage(id=str(identifier), text=fields["text"], title=title or ""), place, further)


def read_jsonl(path: Path) -> Iterator[Row]:
    """One row a line; blank lines are no rows."""
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        value = parse_json(line, f"{path}:{number}")
        if not isinstance(value, dict):
            raise UserError(
                f'{path}:{number}: {type(value).__name__} where an object {{"id", "title", "text"}} is needed'
            )
        yield to_row(value, path, number)


def _check_columns(path: Path, columns: list[str]) -> None:
    if "text" not in columns or not {"id", "_id"} & set(columns):
        if len(columns) == 1 and ";" in columns[0]:
            raise UserError(
                f"{path}: its fields are separated by semicolons; save it with commas, or with tabs as .tsv"
            )
        if len(columns) == 1 and "\t" in columns[0]:
            raise UserError(f"{path}: its fields are separated by tabs; name it .tsv, or save it with commas")
        found = ", ".join(column[:40] for column in columns[:20]) or "none"
        raise UserError(f"{path}: the header must name the columns id and text (title is optional); found: {found}")
    repeated = sorted(column for column, count in Counter(columns).items() if count > 1)
    if repeated:
        raise UserError(f"{path}: the header names {', '.join(repeated)} more than once")


_HINTS = {
    "field limit": "; very long texts are better given as jsonl",
    "expected after": '; inside a quoted field write a quote twice: ""',
    "unexpected end of data": "; a quoted field has no end: close it, or write a quote inside a field twice",
    "new-line character": "; lines end in a bare carriage return; save the file with line ends of Windows or Unix",
}


def _hint(fault: str) -> str:
    """Return what to do about a fault that the csv module names."""
    for part, hint in _HINTS.items():
        if part in fault:
            return hint
    return ""


def read_separated(path: Path, delimiter: str) -> Iterator[Row]:
    """Rows of a `,` or tab separated file; fields may be quoted as spreadsheets write them."""
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
        raise UserError(f"{path}:{reader.line_num}: {error}{_hint(str(error))}") from error


_MAX_COLUMNS = 1000  # of a Parquet file; each takes memory of its own
_BATCH_ROWS = 1024
_LARGE_ROWS = 64  # of a batch, where a column is too large for a dictionary
_DELTA_ROWS = 8  # of a batch, where long values can take a few bytes each
_DELTA = "DELTA_BYTE_ARRAY"  # states a value by what it shares with the one before; Arrow makes no dictionary of it
_DICTIONARY_BYTES = 1 << 24  # of a column in a group of rows; a dictionary of a larger one would take much memory
_BATCH_BYTES = 1 << 26  # text that is taken out of a batch at once; no row may have more
_NUMBER_BYTES = 8


def read_parquet(path: Path) -> Iterator[Row]:
    """Yield the rows of a Parquet file, a batch in memory at a time.

    A value that is repeated takes next to no room in the file. So text is read as dictionaries or a few rows at a
    time, and the size of each row is known before its text is made.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(regular_file(path)) as file:
            schema, metadata = file.schema_arrow, file.metadata
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: not a readable Parquet file ({error})") from error
    _check_columns(path, list(schema.names))
    wanted = _wanted_columns(path, schema)
    most = unpacked_limit(path.stat().st_size)
    if sum(column.total_uncompressed_size for column in _chunks(metadata, wanted)) > most:
        raise UserError(f"{path}: {_bomb(most)}")
    batch_rows = _BATCH_ROWS
    plain = set[str]()  # columns that are not read as dictionaries
    for column in _chunks(metadata, wanted):
        if _DELTA in column.encodings:
            batch_rows = _DELTA_ROWS
            plain.add(column.path_in_schema)
        elif column.total_uncompressed_size > _DICTIONARY_BYTES:
            batch_rows = min(batch_rows, _LARGE_ROWS)
            plain.add(column.path_in_schema)
    texts = [name for name in wanted if _is_text(schema.field(name).type) and name not in plain]
    number, total = 0, 0
    try:
        # With a small buffer, a column is read page by page; without one, as a whole.
        with parquet.ParquetFile(path, metadata=metadata, read_dictionary=texts, buffer_size=1 << 16) as file:
            for batch in file.iter_batches(batch_size=batch_rows, columns=wanted):
                sizes = _row_bytes(batch)
                total += int(sizes.sum())
                if total > most:
                    raise UserError(f"{path}: after row {number}: {_bomb(most)}")
                for part in _small_parts(path, batch, sizes, number):
                    for fields in part:
                        number += 1
                        yield to_row(fields, path, number, unit="row")
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: damaged after row {number} ({error})") from error


def _bomb(most: int) -> str:
    return f"it unpacks to more than {most >> 20} MiB, far beyond its size; write it as jsonl if that is right"


def _wanted_columns(path: Path, schema: Any) -> list[str]:
    """Return the columns to read: id, title, text, and all of text, numbers and truth values."""
    from pyarrow import types

    wanted = []
    for field in schema:
        kind = _value_type(field.type)
        if _is_column(kind):
            wanted.append(field.name)
        elif field.name in _TEXTS:
            if not types.is_null(kind):
                raise UserError(f"{path}: the column {field.name} must hold text, not {kind!s:.60}")
            wanted.append(field.name)
    if len(wanted) > _MAX_COLUMNS:
        raise UserError(f"{path}: {len(wanted)} columns; keep id, title, text and at most {_MAX_COLUMNS - 3} others")
    return wanted


def _value_type(kind: Any) -> Any:
    from pyarrow import types

    return kind.value_type if types.is_dictionary(kind) else kind


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    kind = _value_type(kind)
    return any(test(kind) for test in (types.is_string, types.is_large_string, types.is_string_view))


def _is_column(kind: Any) -> bool:
    from pyarrow import types

    return _is_text(kind) or any(test(kind) for test in (types.is_integer, types.is_floating, types.is_boolean))


def _chunks(metadata: Any, wanted: Sequence[str]) -> Iterator[Any]:
    """Yield what a file states of the wanted columns, in each of its groups of rows."""
    columns = set(wanted)
    for group_number in range(metadata.num_row_groups):
        group = metadata.row_group(group_number)
        for column_number in range(group.num_columns):
            column = group.column(column_number)
            if column.path_in_schema in columns:
                yield column


def _row_bytes(batch: Any) -> NDArray[np.int64]:
    """Return the bytes of the values of each row [n]."""
    import pyarrow as pa
    from pyarrow import compute

    sizes = np.zeros(len(batch), np.int64)
    for column in batch.columns:
        if _is_text(column.type):
            if pa.types.is_dictionary(column.type):
                lengths = compute.binary_length(column.dictionary).take(column.indices)
            else:
                lengths = compute.binary_length(column)
            sizes += lengths.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        else:
            sizes += _NUMBER_BYTES
    return sizes


def _small_parts(path: Path, batch: Any, sizes: NDArray[np.int64], number: int) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of a batch in order, in parts of bounded size; `number` rows come before the batch."""
    import pyarrow as pa

    def _decoded(column: Any) -> Any:
        return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column

    step = len(batch) if sizes.sum() <= _BATCH_BYTES else 1
    for start in range(0, len(batch), step):
        if sizes[start] > _BATCH_BYTES:
            raise UserError(f"{path}:{number + start + 1}: a row of more than {_BATCH_BYTES >> 20} MiB; cut it")
        part = batch.slice(start, step)
        columns = [_decoded(column) for column in part.columns]
        yield pa.RecordBatch.from_arrays(columns, names=part.schema.names).to_pylist()


TABLES: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": read_jsonl,
    ".csv": partial(read_separated, delimiter=","),
    ".tsv": partial(read_separated, delimiter="\t"),
    ".parquet": read_parquet,
}
"""Reader of each suffix."""
