"""A passage and where it was read, so that a bad row is named by file and line. Knows no file format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrieval.errors import UserError
from retrieval.passage import Passage


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row comes from.

    Attributes:
        source: the file.
        number: line or row, from 1.
        unit: `line` for text files, `row` for tables without lines.
    """

    source: str
    number: int
    unit: str = "line"

    def __str__(self) -> str:
        return f"{self.source}:{self.number}" if self.unit == "line" else f"{self.source}: {self.unit} {self.number}"


@dataclass(frozen=True, slots=True)
class Row:
    """One passage of a corpus to be, and its origin."""

    passage: Passage
    place: Place


def to_row(fields: Mapping[str, Any], path: Path, number: int, unit: str = "line") -> Row:
    """A row from named values: `id` (or BEIR's `_id`) and `text` are needed, `title` is optional, others are not read.

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
    return Row(Passage(id=str(identifier), text=fields["text"], title=title or ""), place)
