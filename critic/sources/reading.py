"""Rows from where they are: JSON Lines, JSON and Parquet files, Hugging Face data sets. Knows no schema.

Everything is streamed, with two exceptions: a `.json` file whose top level is an object (ASQA, 16 MB) is read whole,
and so is a single JSON object.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO, TypeAlias, cast

from critic.sources.json_array import begins_array, read_array
from critic.sources.raw import Raw
from critic.sources.streams import unbroken
from retrieval.errors import UserError
from retrieval.reading import regular_file
from selfrag.jsonl import read_jsonl

Source: TypeAlias = str | Path | Iterable[Mapping[str, Any]]
"""A file, or anything that gives rows: `datasets.Dataset`, `datasets.IterableDataset`, a list."""

_SUFFIXES = (".jsonl", ".json", ".parquet")


def raw_rows(source: Source, split: str = "train") -> Iterator[Raw]:
    """Rows of a source in its order.

    Args:
        source: a `.jsonl`, `.json` (both also with `.gz`) or `.parquet` file, or an iterable of rows.
        split: which part of a file or data set that holds several under their names.

    Raises:
        UserError: there is no such file, no reader for it, no such split, or a row is no object; names `file:line`.
    """
    if isinstance(source, str | Path):
        path = regular_file(source)
        suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
        if suffix == ".jsonl":
            rows = enumerate(read_jsonl(path, dict))
            return (Raw(f"{path}:{number + 1}", str(number), record) for number, record in rows)
        if suffix == ".json":
            return _json(path, split)
        if suffix == ".parquet" and path.suffix.lower() == ".parquet":
            return _parquet(path)
        raise UserError(f"{path}: no reader for it; known: {' '.join(_SUFFIXES)} (the first two also with .gz)")
    if isinstance(source, Mapping):
        return _iterable(_part(source, split, "the data set"))
    return _iterable(source)


def _iterable(rows: Iterable[Mapping[str, Any]]) -> Iterator[Raw]:
    info = getattr(rows, "info", None)
    name = getattr(info, "dataset_name", None) or "data set"
    for number, record in enumerate(unbroken(rows, name, "nothing was written, run the same again")):
        if not isinstance(record, Mapping):
            raise UserError(f"{name}: row {number + 1} must be an object, not {type(record).__name__}")
        yield Raw(f"{name}: row {number + 1}", str(number), record)


def _json(path: Path, split: str) -> Iterator[Raw]:
    try:
        with _open(path) as stream:
            array = begins_array(stream)
        with _open(path) as stream:
            if not array:
                yield from _keyed(path, json.load(stream), split)
                return
            for number, (line, record) in enumerate(read_array(stream, str(path))):
                yield Raw(f"{path}:{line}", str(number), record)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}: not JSON ({error.msg}); JSON lines are named .jsonl") from error
    except (OSError, EOFError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error


def _keyed(path: Path, value: Any, split: str) -> Iterator[Raw]:
    if not isinstance(value, dict):
        raise UserError(f"{path}: a file of rows, not one {type(value).__name__}")
    rows = _part(value, split, str(path))
    named = rows.items() if isinstance(rows, dict) else enumerate(rows)
    for key, record in named:
        place = f"{path}: {split}/{key}"
        if not isinstance(record, dict):
            raise UserError(f"{place}: a row must be an object, not {type(record).__name__}")
        yield Raw(place, str(key), record)


def _part(parts: Mapping[str, Any], split: str, name: str) -> Any:
    if split not in parts or isinstance(parts[split], str | int | float | None):
        raise UserError(f"{name} has no split {split!r}; choose one of {', '.join(map(str, list(parts)[:12]))}")
    return parts[split]


def _parquet(path: Path) -> Iterator[Raw]:
    import pyarrow as pa
    from pyarrow import parquet

    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=256):
                for record in batch.to_pylist():
                    yield Raw(f"{path}: row {number + 1}", str(number), cast(dict[str, Any], record))
                    number += 1
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"{path}: not a readable Parquet file after row {number} ({error})") from error


def _open(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return io.TextIOWrapper(gzip.open(path, "rb"), encoding="utf-8-sig")
    return path.open(encoding="utf-8-sig")
