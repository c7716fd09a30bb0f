"""Reads tables of passages: JSONL, CSV, TSV and Parquet files with the columns id, title and text."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from retrieval.corpus import Place, Row, scalars
from retrieval.parquet import read_table_rows
from retrieval.passage import Passage
from selfrag.common.errors import EmptyFileError, UserError, count_of
from selfrag.common.reading import parse_json, read_lines

_TEXTS = ("id", "_id", "title", "text")


def to_row(
    fields: Mapping[str, Any], path: Path, number: int, unit: str = "line"
) -> Row:
    """Return a row from named values: `id` (or BEIR's `_id`), `text`, perhaps `title`; others are metadata."""
    place = Place(str(path), number, unit)
    identifier = fields.get("id", fields.get("_id"))
    if isinstance(identifier, int) and not isinstance(identifier, bool):
        identifier = str(identifier)
    title = fields.get("title")
    for name, value in (
        ("id", identifier),
        ("text", fields.get("text")),
        ("title", "" if title is None else title),
    ):
        if value is None:
            raise UserError(
                f"{place}: no {name}; a row needs id and text (found: {', '.join(map(str, fields)) or 'nothing'})"
            )
        if not isinstance(value, str):
            raise UserError(f"{place}: {name} must be text, not {type(value).__name__}")
        if not value.strip() and name != "title":
            raise UserError(f"{place}: {name} is empty")
    further, dropped = scalars(
        {name: value for name, value in fields.items() if name not in _TEXTS}
    )
    return Row(
        Passage(id=str(identifier), text=fields["text"], title=title or ""),
        place,
        further,
        dropped,
    )


def read_jsonl(path: Path) -> Iterator[Row]:
    """Yield one row a line; blank lines are no rows."""
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        value = parse_json(line, f"{path}:{number}")
        if not isinstance(value, dict):
            raise UserError(
                f'{path}:{number}: {type(value).__name__} where an object {{"id", "title", "text"}} is needed'
            )
        yield to_row(value, path, number)


def _check_columns(path: Path, columns: Sequence[str]) -> None:
    if not columns:
        raise EmptyFileError(f"{path}: the file is empty")
    if "text" not in columns or not {"id", "_id"} & set(columns):
        if len(columns) == 1 and ";" in columns[0]:
            raise UserError(
                f"{path}: its fields are separated by semicolons; save it with commas, or with tabs as .tsv"
            )
        if len(columns) == 1 and "\t" in columns[0]:
            raise UserError(
                f"{path}: its fields are separated by tabs; name it .tsv, or save it with commas"
            )
        shown = ", ".join(column[:40] for column in columns[:20]) or "none"
        raise UserError(
            f"{path}: the header must name the columns id and text (title is optional); found: {shown}"
        )
    repeated = sorted(column for column, count in Counter(columns).items() if count > 1)
    if repeated:
        raise UserError(
            f"{path}: the header names {', '.join(repeated)} more than once"
        )


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


ColumnCheck: TypeAlias = Callable[[Path, Sequence[str]], None]
"""Refuses a file by the names of its columns."""


def separated_fields(
    path: Path, delimiter: str, check: ColumnCheck
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the line and the fields of each row of a separated file; fields may be quoted as spreadsheets do."""
    reader = csv.reader(read_lines(path), delimiter=delimiter, strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        check(path, header)
        while True:
            # a quoted field may span lines: the row is named by its first
            number = reader.line_num + 1
            fields = next(reader, None)
            if fields is None:
                return
            if not fields:
                continue
            if len(fields) != len(header):
                raise UserError(
                    f"{path}:{number}: {count_of(len(fields), 'fields')} where the header has {len(header)}"
                )
            yield number, dict(zip(header, fields, strict=True))
    except csv.Error as error:
        raise UserError(
            f"{path}:{reader.line_num}: {error}{_hint(str(error))}"
        ) from error


def read_separated(path: Path, delimiter: str) -> Iterator[Row]:
    """Yield the rows of a file that is separated by `,` or tabs."""
    for number, fields in separated_fields(path, delimiter, _check_columns):
        yield to_row(fields, path, number)


def read_parquet(path: Path) -> Iterator[Row]:
    """Yield the rows of a Parquet file, a part in memory at a time."""
    rows = read_table_rows(path, partial(_check_columns, path))
    for number, fields in enumerate(rows, start=1):
        yield to_row(fields, path, number, unit="row")


TABLES: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": read_jsonl,
    ".csv": partial(read_separated, delimiter=","),
    ".tsv": partial(read_separated, delimiter="\t"),
    ".parquet": read_parquet,
}
"""Reader of each suffix."""
