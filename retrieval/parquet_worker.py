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
_BATCH_BYTES = 1 << 26  # of a batch, as the file states it; and of a row
_PART_BYTES = 1 << 21  # that are sent at once, unless a single row has more
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

    A value that is repeated takes next to no room in the file; what takes too much in memory ends this process.
    """
    yield {"names": list(schema.names)}, b""
    columns = _wanted_columns(path, schema)
    most = unpacked_limit(path.stat().st_size)
    bomb = f"it unpacks to more than {most >> 20} MiB, far beyond its size; write it as jsonl if that is right"
    stated = _stated_bytes(metadata, columns)
    if stated > most:
        raise UserError(f"{path}: {bomb}")
    rows = _BATCH_BYTES * metadata.num_rows // max(1, stated)
    rows = min(_BATCH_ROWS, max(1, rows))
    number = total = 0
    with parquet.ParquetFile(path, metadata=metadata, buffer_size=_BUFFER) as file:
        for batch in file.iter_batches(rows, columns=columns, use_threads=False):
            for part in _small_parts(_decoded(batch)):
                total += part.nbytes
                if total > most:
                    raise UserError(f"{path}: after row {number}: {bomb}")
                number += len(part)
                if part.nbytes > _BATCH_BYTES:
                    raise UserError(
                        f"{path}:{number}: a row of more than {_BATCH_BYTES >> 20} MiB; cut it"
                    )
                yield {"columns": part.to_pydict(), "count": len(part)}, b""


def _decoded(batch: Any) -> Any:
    """Return a batch whose columns are no dictionaries."""
    columns = []
    for column in batch.columns:
        is_packed = types.is_dictionary(column.type)
        columns.append(column.dictionary_decode() if is_packed else column)
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def _small_parts(batch: Any) -> Iterator[Any]:
    """Yield a batch in parts of bounded size, or of one row."""
    if len(batch) < 2 or batch.nbytes <= _PART_BYTES:
        yield batch
        return
    half = len(batch) // 2
    yield from _small_parts(batch.slice(0, half))
    yield from _small_parts(batch.slice(half))


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


_COLUMN_TYPES = (
    *(types.is_string, types.is_large_string, types.is_string_view),
    *(types.is_integer, types.is_floating, types.is_boolean),
)


def _is_column(kind: Any) -> bool:
    return any(test(kind) for test in _COLUMN_TYPES)


def _stated_bytes(metadata: Any, columns: Sequence[str]) -> int:
    """Return the unpacked size of the wanted columns, as the file states it."""
    size = 0
    for group_number in range(metadata.num_row_groups):
        group = metadata.row_group(group_number)
        for column in map(group.column, range(group.num_columns)):
            if column.path_in_schema in columns:
                size += column.total_uncompressed_size
    return size


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
