"""Reads tables of passages: JSONL, CSV, TSV and Parquet files, a row a passage."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from retrieval.corpus import Place, Row, scalars
from retrieval.parquet import read_table_rows
from retrieval.passage import Passage
from selfrag.common.errors import EmptyFileError, UserError, count_of
from selfrag.common.reading import parse_json, read_lines

_NAMES = {"text": ("text",), "title": ("title",), "id": ("id", "_id")}
"""Names of the columns that a table without other ones has."""


@dataclass(frozen=True, slots=True)
class TableColumns:
    """Which columns of a table are the text, the title and the id of its passages.

    Attributes:
        text: None takes `text`; without it, a passage has all columns of its row, as `name: Ann, city: Oslo`.
        title: None takes `title`.
        id: None takes `id` or `_id`; without them a row is numbered.
        numbered: stands before the numbers.
    """

    text: str | None = None
    title: str | None = None
    id: str | None = None
    numbered: str = ""

    def resolve(self, path: Path, names: Sequence[str]) -> TableColumns:
        """Return the columns of a table that has these names; those that it lacks stay None.

        Raises:
            UserError: a column that was asked for is not there, or there is a text without an id.
        """
        if not names:
            raise EmptyFileError(f"{path}: the file is empty")
        shown = ", ".join(column[:40] for column in names[:20])
        values: dict[str, str | None] = {}  # column by role
        for role, usual in _NAMES.items():
            value = getattr(self, role)
            if value is not None and value not in names:
                raise UserError(
                    f"{path}: no column {value!r:.80} for the {role}; its columns are {shown}"
                )
            present = [name for name in usual if name in names]
            values[role] = next(iter(present), None) if value is None else value
        if self.text is None and values["text"] and values["id"] is None:
            raise UserError(
                f"{path}: a table with a column text also needs id (or name one by --id-column); found: {shown}"
            )
        values["title"] = values["title"] or "title"  # later rows may have one
        return TableColumns(**values, numbered=self.numbered)

    def row(
        self, fields: Mapping[str, Any], path: Path, number: int, place: Place
    ) -> Row:
        """Return the row of the resolved columns, with `number` where it has no id; other columns are metadata."""
        values = {role: fields.get(str(getattr(self, role))) for role in _NAMES}
        taken = {self.text, self.title, self.id}
        further, dropped = scalars(
            {name: value for name, value in fields.items() if name not in taken}
        )
        if self.text is None:
            values["text"] = ", ".join(f"{name}: {further[name]}" for name in further)
            further = {"row": number, **further}
        if self.id is None:
            values["id"] = f"{self.numbered}-{number}"
        elif isinstance(values["id"], int) and not isinstance(values["id"], bool):
            values["id"] = str(values["id"])
        if values["title"] is None:
            values["title"] = ""
        for name, value in values.items():
            if value is None:
                raise UserError(
                    f"{place}: no {name}; a row needs id and text (found: {', '.join(map(str, fields)) or 'nothing'})"
                )
            if not isinstance(value, str):
                raise UserError(
                    f"{place}: {name} must be text, not {type(value).__name__}"
                )
            if not value.strip() and name != "title":
                raise UserError(f"{place}: {name} is empty")
        passage = Passage(str(values["id"]), str(values["text"]), str(values["title"]))
        return Row(passage, place, further, dropped)


def read_jsonl(path: Path, columns: TableColumns) -> Iterator[Row]:
    """Yield one row a line; blank lines are no rows. The first row tells the columns."""
    resolved: TableColumns | None = None
    row_number = 0
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        value = parse_json(line, f"{path}:{number}")
        if not isinstance(value, dict):
            raise UserError(
                f'{path}:{number}: {type(value).__name__} where an object {{"id", "title", "text"}} is needed'
            )
        row_number += 1
        resolved = resolved or columns.resolve(path, list(value))
        yield resolved.row(value, path, row_number, Place(str(path), number))


def _check_header(path: Path, columns: Sequence[str]) -> None:
    if len(columns) == 1 and ";" in columns[0]:
        raise UserError(
            f"{path}: its fields are separated by semicolons; save it with commas, or with tabs as .tsv"
        )
    if len(columns) == 1 and "\t" in columns[0]:
        raise UserError(
            f"{path}: its fields are separated by tabs; name it .tsv, or save it with commas"
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


def read_separated(path: Path, columns: TableColumns, delimiter: str) -> Iterator[Row]:
    """Yield the rows of a file that is separated by `,` or tabs."""
    resolved: TableColumns | None = None

    def check(path: Path, names: Sequence[str]) -> None:
        nonlocal resolved
        _check_header(path, names)
        resolved = columns.resolve(path, names)

    rows = separated_fields(path, delimiter, check)
    for row_number, (number, fields) in enumerate(rows, start=1):
        assert resolved is not None  # noqa: S101 - the header comes first
        yield resolved.row(fields, path, row_number, Place(str(path), number))


def read_parquet(path: Path, columns: TableColumns) -> Iterator[Row]:
    """Yield the rows of a Parquet file, a part in memory at a time."""
    resolved: TableColumns | None = None

    def check(names: Sequence[str]) -> None:
        nonlocal resolved
        _check_header(path, names)
        resolved = columns.resolve(path, names)

    for number, fields in enumerate(read_table_rows(path, check), start=1):
        assert resolved is not None  # noqa: S101 - the names of the columns come first
        yield resolved.row(fields, path, number, Place(str(path), number, "row"))


TABLES: dict[str, Callable[[Path, TableColumns], Iterator[Row]]] = {
    ".jsonl": read_jsonl,
    ".csv": partial(read_separated, delimiter=","),
    ".tsv": partial(read_separated, delimiter="\t"),
    ".parquet": read_parquet,
}
"""Reader of each suffix."""
