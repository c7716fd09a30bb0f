"""Rows of public data sets as they come, from files or streams."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

from selfrag.common.errors import UserError
from selfrag.common.jsonl import read_jsonl
from selfrag.common.reading import regular_file


@dataclass(frozen=True, slots=True)
class RawRow:
    """One row before anybody looked into it."""

    place: str  # `file:line`, or what comes nearest to it
    key: str  # the row's name in its source where the source names rows by key, else its number from 0
    record: Mapping[str, Any]  # the row

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """Put the place in front of what is wrong with this row."""
        try:
            yield
        except UserError as error:
            raise UserError(
                f"{self.place}: {error}; fix this row, or choose the format it is in"
            ) from error


PublicRows: TypeAlias = Iterable[Mapping[str, Any]]
RowSource: TypeAlias = str | Path | PublicRows
"""A file, or anything that gives rows: `datasets.Dataset`, `datasets.IterableDataset`, a list."""


def raw_rows(source: RowSource, split: str = "train") -> Iterator[RawRow]:
    """Rows of a source in its order.

    Args:
        source: a `.jsonl`, `.json` (both also with `.gz`) or `.parquet` file, or an iterable of rows.
        split: which part of a file or data set that holds several under their names.

    Raises:
        UserError: there is no such file, no reader for it, no such split, or a row is no object; names the row.
    """
    if isinstance(source, Mapping):
        return _iterable(_part(source, split, "the data set"))
    if not isinstance(source, str | Path):
        return _iterable(source)
    path = regular_file(source)
    match Path(path.name.removesuffix(".gz")).suffix.lower(), path.suffix.lower():
        case ".jsonl", _:
            rows = enumerate(read_jsonl(path, dict))
            return (
                RawRow(f"{path}:{number + 1}", str(number), record)
                for number, record in rows
            )
        case ".json", _:
            return _json(path, split)
        case _, ".parquet":
            return _parquet(path)
    raise UserError(
        f"{path}: no reader for it; known: .jsonl .json .parquet (the first two also with .gz)"
    )


def _iterable(rows: PublicRows) -> Iterator[RawRow]:
    name = getattr(getattr(rows, "info", None), "dataset_name", None) or "data set"
    return _numbered(
        unbroken(rows, name, "nothing was written, run the same again"), name
    )


def _json(path: Path, split: str) -> Iterator[RawRow]:
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            value = json.loads(file.read().decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path}:{error.lineno}: not JSON ({error.msg}); JSON lines are named .jsonl"
        ) from error
    except (OSError, EOFError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    if isinstance(value, list):
        yield from _numbered(value, str(path))
        return
    if not isinstance(value, dict):
        raise UserError(f"{path}: a file of rows, not one {type(value).__name__}")
    rows = _part(value, split, str(path))
    for key, record in rows.items() if isinstance(rows, dict) else enumerate(rows):
        place = f"{path}: {split}/{key}"
        yield RawRow(place, str(key), _object(record, place))


def _parquet(path: Path) -> Iterator[RawRow]:
    import pyarrow as pa
    from pyarrow import parquet

    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            batches = file.iter_batches(batch_size=256)
            rows = chain.from_iterable(batch.to_pylist() for batch in batches)
            for raw in _numbered(rows, str(path)):
                yield raw
                number += 1
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(
            f"{path}: not a readable Parquet file after row {number} ({error})"
        ) from error


def _numbered(rows: PublicRows, name: str) -> Iterator[RawRow]:
    for number, record in enumerate(rows):
        place = f"{name}: row {number + 1}"
        yield RawRow(place, str(number), _object(record, place))


def _object(record: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(record, Mapping):
        raise UserError(
            f"{place}: a row must be an object, not {type(record).__name__}"
        )
    return record


def _part(parts: Mapping[str, Any], split: str, name: str) -> Any:
    if split not in parts or isinstance(parts[split], str | int | float | None):
        raise UserError(
            f"{name} has no split {split!r}; choose one of {', '.join(map(str, list(parts)[:12]))}"
        )
    return parts[split]


def unbroken(rows: PublicRows, name: str, then: str) -> Iterator[Mapping[str, Any]]:
    """Yield the rows; where a source breaks off, as a stream may, one line says what to do `then`."""
    import datasets
    import httpx
    import pyarrow as pa

    number = 0
    try:
        for row in rows:
            yield row
            number += 1
    except (
        OSError,
        httpx.HTTPError,
        pa.ArrowException,
        datasets.exceptions.DatasetsError,
    ) as error:
        message = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"{name}: reading broke off after row {number} ({message:.200}); {then}"
        ) from error
