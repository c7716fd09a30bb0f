"""Writes the passages of an index, and their vectors, to a Parquet file."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from selfrag.interface import (
    VECTOR,
    Corpus,
    live_blocks,
    open_parts,
    require_vectors,
    user_path,
    writing,
)


def export_index(
    directory: str | Path, out: str | Path, *, vectors: bool = False
) -> int:
    """Write the passages of an index with their columns to a Parquet file, block by block; returns how many.

    `build_index([FILE], .., vectors=[FILE])` makes the same index of it again.

    Args:
        directory: the index.
        out: the file.
        vectors: also write them, as a column `vector` of float32.

    Raises:
        UserError: the index cannot be used, or the file not be written.
    """
    import pyarrow as pa
    from pyarrow import parquet

    source, target = user_path(directory), user_path(out)
    manifest, parts = open_parts(source)
    if vectors:
        require_vectors(source, manifest)
    corpus, kept = parts.corpus, parts.corpus.kept
    fields = [(name, pa.string()) for name in ("id", "title", "text")]
    fields += [
        (name, _type_of(corpus, name)) for name in corpus.columns() if name != VECTOR
    ]
    if vectors:
        fields.append((VECTOR, pa.list_(pa.float32(), parts.vectors[0].dim)))
    schema, count = pa.schema(fields), 0
    rows = corpus.live()
    partial = target.with_name(f".{target.name}.partial")
    with writing(target):
        try:
            with parquet.ParquetWriter(partial, schema) as writer:
                for matrix in live_blocks(parts.vectors, kept):
                    values = [next(rows) for _ in range(len(matrix))]
                    listed = [
                        {**row.passage.as_dict(), **row.metadata} for row in values
                    ]
                    columns = [
                        pa.array([row.get(name) for row in listed], kind)
                        for name, kind in fields
                        if name != VECTOR
                    ]
                    if vectors:
                        columns.append(
                            pa.FixedSizeListArray.from_arrays(
                                pa.array(matrix.ravel()), matrix.shape[1]
                            )
                        )
                    writer.write_batch(pa.record_batch(columns, schema=schema))
                    count += len(values)
            partial.replace(target)
        finally:
            with suppress(OSError):
                partial.unlink()
    return count


def _type_of(corpus: Corpus, name: str) -> Any:
    return next(values.type for values, _ in corpus.column(name) if values is not None)
