"""JSON Lines on disk: strict reading with file and line, and writing that is all or nothing.

A file ending in `.gz` is gzipped; everything is UTF-8.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

from selfrag.common.atomic import write_pieces
from selfrag.common.errors import UserError
from selfrag.common.reading import parse_json, read_lines

T = TypeVar("T")
JsonObject: TypeAlias = dict[str, Any]
"""An object of JSON, decoded, or what is to become one."""


class Identified(Protocol):
    """A row with an id."""

    @property
    def id(self) -> str:
        """Unique in its file."""


IdentifiedRow = TypeVar("IdentifiedRow", bound=Identified)


def read_jsonl(
    path: str | Path, parse: Callable[[JsonObject], T], *, mended: bool = False
) -> Iterator[T]:
    """Parse every line of a file.

    Args:
        path: the file.
        parse: makes a value of one object; raises `UserError` for a bad one.
        mended: make U+FFFD of lone surrogates; else they stay, for a parser that names their row.

    Raises:
        UserError: the file cannot be read, a line is not a JSON object, or `parse` refused it; names `file:line`.
    """
    for number, line in enumerate(read_lines(path), 1):
        where = f"{path}:{number}"
        record = parse_json(line, where, nan=True, mended=mended)
        try:
            if not isinstance(record, dict):
                raise UserError(f"a row must be an object, not {type(record).__name__}")
            value = parse(record)
        except (ValueError, RecursionError, UserError) as error:
            raise UserError(f"{where}: {error}; fix this line") from error
        yield value


def read_identified(
    path: str | Path, parse: Callable[[JsonObject], IdentifiedRow]
) -> Iterator[IdentifiedRow]:
    """Like `read_jsonl`, for rows whose ids are unique in the file."""
    seen: set[str] = set()

    def unique(record: JsonObject) -> IdentifiedRow:
        row = parse(record)
        if row.id in seen:
            raise UserError(f"id {row.id!r} occurs twice")
        seen.add(row.id)
        return row

    return read_jsonl(path, unique)


def json_line(record: Mapping[str, Any]) -> str:
    """Return one object as a line that UTF-8 can hold: escaped where text has lone surrogates, readable otherwise."""
    text = json.dumps(record, ensure_ascii=False)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        text = json.dumps(record)
    return text + "\n"


def write_jsonl(path: str | Path, records: Iterable[Mapping[str, Any]]) -> int:
    """Write one object a line; the file appears under its name only when complete. Returns the number of lines."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0

    def lines() -> Iterator[str]:
        nonlocal count
        for record in records:
            yield json_line(record)
            count += 1

    write_pieces(path, lines())
    return count
