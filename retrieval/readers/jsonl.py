"""JSON lines with `id`, `title`, `text`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from retrieval.errors import UserError
from retrieval.readers.row import Row, to_row
from retrieval.reading import parse_json, read_lines


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
