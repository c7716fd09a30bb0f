"""Rows from where they are: JSON Lines, JSON and Parquet files, Hugging Face data sets.

Everything is streamed but `.json` files, which are read whole.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias, cast

from critic.sources.rows import Raw
from retrieval.errors import UserError
from retrieval.reading import regular_file
from selfrag.jsonl import read_jsonl

Rows: TypeAlias = Iterable[Mapping[str, Any]]
Source: TypeAlias = str | Path | Rows
"""A file, or anything that gives rows: `datasets.Dataset`, `datasets.IterableDataset`, a list."""


def raw_rows(source: Source, split: str = "train") -> Iterator[Raw]:
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
            return (Raw(f"{path}:{number + 1}", str(number), record) for number, record in rows)
        case ".json", _:
            return _json(path, split)
        case _, ".parquet":
            return _parquet(path)
    raise UserError(f"{path}: no reader for it; known: .jsonl .json .parquet (the first two also with .gz)")


def _iterable(rows: Rows) -> Iterator[Raw]:
    name = getattr(getattr(rows, "info", None), "dataset_name", None) or "data set"
    return _numbered(unbroken(rows, name, "nothing was written, run the same again"), name)


def _json(path: Path, split: str) -> Iterator[Raw]:
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            value = json.loads(file.read().decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}: not JSON ({error.msg}); JSON lines are named .jsonl") from error
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
        yield Raw(place, str(key), _object(record, place))


def _parquet(path: Path) -> Iterator[Raw]:
    import pyarrow as pa
    from pyarrow import parquet

    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            batches = file.iter_batches(batch_size=256)
            rows = (cast(dict[str, Any], record) for batch in batches for record in batch.to_pylist())
            for raw in _numbered(rows, str(path)):
                yield raw
                number += 1
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"{path}: not a readable Parquet file after row {number} ({error})") from error


def _numbered(rows: Rows, name: str) -> Iterator[Raw]:
    for number, record in enumerate(rows):
        place = f"{name}: row {number + 1}"
        yield Raw(place, str(number), _object(record, place))


def _object(record: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(record, Mapping):
        raise UserError(f"{place}: a row must be an object, not {type(record).__name__}")
    return record


def _part(parts: Mapping[str, Any], split: str, name: str) -> Any:
    if split not in parts or isinstance(parts[split], str | int | float | None):
        raise UserError(f"{name} has no split {split!r}; choose one of {', '.join(map(str, list(parts)[:12]))}")
    return parts[split]


def open_dataset(
    name: str, configuration: str | None = None, split: str = "train", *, place: str = "", streaming: bool = True
) -> Rows:
    """Rows of one split of a data set.

    Args:
        name: `owner/name` on the hub, a directory of data files, or one that `save_to_disk` wrote.
        configuration: such as `nq` of `facebook/kilt_tasks`, where the data set has several.
        split: such as `train`.
        place: how an error begins; `hf:NAME` by default.
        streaming: fetch rows while they are read.

    Raises:
        UserError: no such data set, configuration or split, or the hub cannot be reached.
    """
    import datasets

    broken = (LookupError, OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError)  # Runtime: it has code
    try:
        if any((Path(name) / mark).exists() for mark in ("state.json", "dataset_dict.json")):
            saved = datasets.load_from_disk(name)
            return cast(Rows, saved[split] if isinstance(saved, dict) else saved)
        return cast(Rows, datasets.load_dataset(name, configuration, split=split, streaming=streaming))
    except broken as error:
        raise UserError(f"{place or f'hf:{name}'}: {error}") from error


def unbroken(rows: Rows, name: str, then: str) -> Iterator[Mapping[str, Any]]:
    """The rows; a source that breaks off, such as a stream whose server has gone, is one line.

    Args:
        rows: a data set, a stream, or a list.
        name: of the source, for messages.
        then: what to do about it.

    Raises:
        UserError: reading failed.
    """
    import datasets
    import httpx
    import pyarrow as pa

    number = 0
    try:
        for row in rows:
            yield row
            number += 1
    except (OSError, httpx.HTTPError, pa.ArrowException, datasets.exceptions.DatasetsError) as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{name}: reading broke off after row {number} ({said:.200}); {then}") from error
