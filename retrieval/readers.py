"""User files in, rows out: one reader a format, chosen by the file's suffix."""

from __future__ import annotations

import csv
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from retrieval.corpus import Place, Row, scalars
from retrieval.documents import DOCUMENTS, document_names, read_document
from retrieval.errors import UserError
from retrieval.passage import Passage
from retrieval.reading import parse_json, read_lines, regular_file, user_path
from retrieval.splitting import Splitting, sentence_finder

_TEXTS = ("id", "_id", "title", "text")


def to_row(fields: Mapping[str, Any], path: Path, number: int, unit: str = "line") -> Row:
    """A row from named values: `id` (or BEIR's `_id`), `text`, perhaps `title`; other texts and numbers are metadata.

    Raises:
        UserError: a value is missing or of the wrong kind; the line names the place.
    """
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
    """One row a line; blank lines are no rows.

    Raises:
        UserError: a line is not a JSON object, or its values are wrong.
    """
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
        wanted = [field.name for field in file.schema_arrow if field.name in _TEXTS or _is_column(field.type)]
        number = 0
        try:
            for batch in file.iter_batches(batch_size=1024, columns=wanted):
                for fields in batch.to_pylist():
                    number += 1
                    yield to_row(fields, path, number, unit="row")
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise UserError(f"{path}: damaged after row {number} ({error})") from error


def _is_column(kind: Any) -> bool:
    from pyarrow import types

    tests = types.is_integer, types.is_floating, types.is_boolean, types.is_string, types.is_large_string
    return any(test(kind) for test in tests)


_TABLES: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": read_jsonl,
    ".csv": partial(read_separated, delimiter=","),
    ".tsv": partial(read_separated, delimiter="\t"),
    ".parquet": read_parquet,
}
_PACKED = (".parquet", ".pdf", ".docx")
"""Formats that compress by themselves."""


def _kind(path: Path) -> str:
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    if suffix in _TABLES or suffix in DOCUMENTS:
        if suffix in _PACKED and path.suffix == ".gz":
            raise UserError(f"{path}: unpack it first; {suffix[1:].capitalize()} compresses by itself")
        return suffix
    known = " ".join((*_TABLES, *DOCUMENTS))
    raise UserError(f"{path}: no reader for {suffix or 'a name without suffix'!r}; known: {known} (also with .gz)")


def read_files(files: Sequence[str | Path], splitting: Splitting | None = None) -> Iterator[Row]:
    """Rows of all files in order. Tables give their rows as they are, documents are split into passages.

    Args:
        files: `.jsonl`, `.csv`, `.tsv`, `.parquet` (columns id, title, text), `.txt`, `.md`, `.html`, `.pdf`, `.docx`;
            texts also with `.gz`.
        splitting: how documents are cut; tables are never cut.

    Raises:
        UserError: no files, an unknown suffix or a missing file (all checked before the first row), or a bad row.
    """
    if isinstance(files, str | Path):
        files = [files]
    paths = [user_path(file) for file in files]
    if not paths:
        raise UserError("no files to read; name at least one")
    kinds = [_kind(path) for path in paths]
    for path in paths:
        regular_file(path)
    return _rows(paths, kinds, splitting or Splitting())


def _rows(paths: Sequence[Path], kinds: Sequence[str], splitting: Splitting) -> Iterator[Row]:
    names = document_names(paths)
    find = sentence_finder(splitting.sentences) if any(kind in DOCUMENTS for kind in kinds) else None
    for path, name, kind in zip(paths, names, kinds, strict=True):
        before = None
        for before in (
            read_document(path, kind, name, splitting, find) if find and kind in DOCUMENTS else _TABLES[kind](path)
        ):
            yield before
        if before is None:
            raise UserError(f"{path}: no rows in it")


_SETTLED = 2.0  # seconds; a file that changed later than this ago may change again without its times telling


def files_fingerprint(files: Sequence[str | Path], splitting: Splitting | None = None) -> str:
    """Fingerprint of files by name, size and times of change, without reading them; empty where that is not certain."""
    stated = []
    for file in [files] if isinstance(files, str | Path) else files:
        path = user_path(file).resolve()
        try:
            found = path.stat()
        except OSError:
            return ""
        if time.time() - max(found.st_mtime, found.st_ctime) < _SETTLED:
            return ""
        stated.append((str(path), found.st_size, found.st_mtime_ns, found.st_ctime_ns))
    return hashlib.blake2b(repr((stated, splitting or Splitting())).encode(), digest_size=16).hexdigest()
