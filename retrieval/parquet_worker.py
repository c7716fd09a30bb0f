"""The child process of `retrieval.parquet`: decodes Parquet files, whatever is in them, a part at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import compute, parquet, types

from retrieval.parquet import VECTOR
from selfrag.common.child_work import Replies, answer_requests
from selfrag.common.errors import UserError, count_of
from selfrag.common.reading import unpacked_limit

_TEXTS = ("id", "_id", "title", "text")
_MAX_COLUMNS = 1000  # each takes memory of its own
_BATCH_ROWS = 1024
_DELTA_ROWS = 8  # of a batch, where long values can take a few bytes each
_DELTA = "DELTA_BYTE_ARRAY"  # states a value by what it shares with the one before; Arrow makes no dictionary of it
# of a column in a group of rows; a dictionary of a larger one would take much memory
_DICTIONARY_BYTES = 1 << 24
# of text in a batch of a column without a dictionary, as the file states it; and of a row
_BATCH_BYTES = 1 << 26
_PART_BYTES = 1 << 21  # of text that is sent at once, unless a single row has more
_NUMBER_BYTES = 8
# with a small one a column is read page by page; without one, as a whole
_BUFFER = 1 << 16
_VECTOR_ROWS = 1_024  # vectors of a block
_BLOCK_BYTES = 1 << 26  # of such a block

_Message: TypeAlias = tuple[dict[str, Any], bytes | memoryview]
"""Values of a reply, and bytes that belong to it."""


def main() -> None:
    """Read files until no more are asked for."""
    answer_requests(_answer)


def _answer(request: Mapping[str, Any], replies: Replies) -> Mapping[str, Any]:
    path = Path(request["name"])
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            metadata, schema = file.metadata, file.schema_arrow
    except (pa.ArrowException, OSError) as error:
        raise UserError(
            f"{path}: not a readable Parquet file ({_line(error)})"
        ) from error
    if request["work"] == "vectors":
        messages = _vector_messages(path, metadata, schema, request["start"])
    else:
        messages = _row_messages(path, metadata, schema)
    try:
        for values, data in messages:
            number += values.get("count", 0)
            replies.send(values, data)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, MemoryError):
            raise
        raise UserError(
            f"{path}: damaged after row {number} ({_line(error)})"
        ) from error
    return {}


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _row_messages(path: Path, metadata: Any, schema: Any) -> Iterator[_Message]:
    """Yield the names of the columns, then columns of some rows.

    A value that is repeated takes next to no room in the file. So text is read as dictionaries or a few rows at a
    time, and the size of each row is known before its text is made.
    """
    yield {"names": list(schema.names)}, b""
    columns = _wanted_columns(path, schema)
    most = unpacked_limit(path.stat().st_size)
    bomb = f"it unpacks to more than {most >> 20} MiB, far beyond its size; write it as jsonl if that is right"
    if (
        sum(column.total_uncompressed_size for column in _chunks(metadata, columns))
        > most
    ):
        raise UserError(f"{path}: {bomb}")
    plain_names, batch_rows = _plain_columns(metadata, columns)
    texts = [
        name
        for name in columns
        if _is_text(schema.field(name).type) and name not in plain_names
    ]
    number = total = 0
    with parquet.ParquetFile(
        path, metadata=metadata, read_dictionary=texts, buffer_size=_BUFFER
    ) as file:
        for batch in file.iter_batches(
            batch_size=batch_rows, columns=columns, use_threads=False
        ):
            sizes = _row_bytes(batch)
            total += int(sizes.sum())
            if total > most:
                raise UserError(f"{path}: after row {number}: {bomb}")
            for start, end in _small_parts(path, sizes, number):
                part = batch.slice(start, end - start)
                values = {
                    name: _values(part.column(name)) for name in batch.schema.names
                }
                yield {"columns": values, "count": end - start}, b""
            number += len(batch)


def _plain_columns(metadata: Any, columns: Sequence[str]) -> tuple[set[str], int]:
    """Return the columns that are not read as dictionaries, and how many rows of them are read at once."""
    plain_names: set[str] = set()
    batch_rows = _BATCH_ROWS
    for column in _chunks(metadata, columns):
        size = column.total_uncompressed_size
        if _DELTA in column.encodings:
            batch_rows = min(batch_rows, _DELTA_ROWS)
            plain_names.add(column.path_in_schema)
        elif size > _DICTIONARY_BYTES:
            batch_rows = min(
                batch_rows, max(1, _BATCH_BYTES * column.num_values // size)
            )
            plain_names.add(column.path_in_schema)
    return plain_names, batch_rows


def _wanted_columns(path: Path, schema: Any) -> list[str]:
    """Return the columns to read: id, title, text, and all of text, numbers and truth values."""
    columns = []
    for field in schema:
        kind = _value_type(field.type)
        if _is_column(kind):
            columns.append(field.name)
        elif field.name in _TEXTS:
            if not types.is_null(kind):
                raise UserError(
                    f"{path}: the column {field.name} must hold text, not {kind!s:.60}"
                )
            columns.append(field.name)
    if len(columns) > _MAX_COLUMNS:
        raise UserError(
            f"{path}: {count_of(len(columns), 'columns')}; keep id, title, text and at most {_MAX_COLUMNS - 3} others"
        )
    return columns


def _value_type(kind: Any) -> Any:
    return kind.value_type if types.is_dictionary(kind) else kind


def _is_text(kind: Any) -> bool:
    kind = _value_type(kind)
    return any(
        test(kind)
        for test in (types.is_string, types.is_large_string, types.is_string_view)
    )


def _is_column(kind: Any) -> bool:
    return _is_text(kind) or any(
        test(kind) for test in (types.is_integer, types.is_floating, types.is_boolean)
    )


def _chunks(metadata: Any, columns: Sequence[str]) -> Iterator[Any]:
    """Yield what a file states of the wanted columns, in each of its groups of rows."""
    included = set(columns)
    for group_number in range(metadata.num_row_groups):
        group = metadata.row_group(group_number)
        for column_number in range(group.num_columns):
            column = group.column(column_number)
            if column.path_in_schema in included:
                yield column


def _row_bytes(batch: Any) -> NDArray[np.int64]:
    """Return the bytes of the values of each row [n]."""
    sizes = np.zeros(len(batch), np.int64)
    for column in batch.columns:
        if not _is_text(column.type):
            sizes += _NUMBER_BYTES
            continue
        if types.is_dictionary(column.type):
            lengths = compute.binary_length(column.dictionary).take(column.indices)
        else:
            lengths = compute.binary_length(column)
        sizes += lengths.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return sizes


def _small_parts(
    path: Path, sizes: NDArray[np.int64], number: int
) -> Iterator[tuple[int, int]]:
    """Yield ranges of the rows of a batch, each of bounded size; `number` rows come before the batch."""
    start = size = 0
    for row, row_size in enumerate(sizes.tolist()):
        if row_size > _BATCH_BYTES:
            raise UserError(
                f"{path}:{number + row + 1}: a row of more than {_BATCH_BYTES >> 20} MiB; cut it"
            )
        if row > start and size + row_size > _PART_BYTES:
            yield start, row
            start, size = row, 0
        size += row_size
    yield start, len(sizes)


def _values(column: Any) -> list[Any]:
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    values: list[Any] = column.to_pylist()
    return values


def _vector_messages(
    path: Path, metadata: Any, schema: Any, start: int
) -> Iterator[_Message]:
    """Yield the number of the vectors and their length, then blocks of them from a row on."""
    if VECTOR not in schema.names:
        names = ", ".join(schema.names[:20])
        raise UserError(f"{path}: no column {VECTOR}; found: {names}")
    columns = [name for name in ("id", VECTOR) if name in schema.names]
    dim = None
    with parquet.ParquetFile(path, metadata=metadata, buffer_size=_BUFFER) as file:
        for batch in file.iter_batches(
            _VECTOR_ROWS, columns=columns, use_threads=False
        ):
            if not len(batch):
                continue
            vectors = _matrix(path, batch.column(VECTOR))
            if dim is None:
                dim = vectors.shape[1]
                yield {"rows": metadata.num_rows, "dim": dim}, b""
            rows = batch.slice(min(start, len(batch)))
            vectors = vectors[min(start, len(batch)) :]
            start = max(0, start - len(batch))
            if len(rows):
                ids = (
                    list(map(str, rows.column("id").to_pylist()))
                    if "id" in columns
                    else None
                )
                values = {
                    "ids": ids,
                    "shape": vectors.shape,
                    "type": vectors.dtype.str,
                    "count": len(rows),
                }
                yield values, np.ascontiguousarray(vectors).data.cast("B")
    if dim is None:
        yield {"rows": metadata.num_rows, "dim": 0}, b""


def _matrix(path: Path, column: Any) -> NDArray[Any]:
    """Return the vectors of a column [n, d], at least one."""
    tests = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    if not any(test(column.type) for test in tests):
        raise UserError(
            f"{path}: the column {VECTOR} must hold lists of floats, all of one length"
        )
    values = np.asarray(column.flatten())
    lengths = compute.list_value_length(column)
    if column.null_count or len(lengths.unique()) != 1 or values.dtype.kind != "f":
        raise UserError(
            f"{path}: the column {VECTOR} must hold lists of floats, all of one length"
        )
    if values.nbytes > _BLOCK_BYTES:
        raise UserError(
            f"{path}: vectors of {count_of(len(values) // len(column), 'numbers', form=',')} are too long"
        )
    return values.reshape(len(column), -1)
