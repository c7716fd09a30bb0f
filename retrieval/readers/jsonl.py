"""JSON lines with `id`, `title`, `text`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from retrieval.errors import UserError
from retrieval.readers.lines import read_lines
from retrieval.readers.row import Row, to_row


def read_jsonl(path: Path) -> Iterator[Row]:
    """One row a line; blank lines are no rows.

    Raises:
        UserError: a line is not a JSON object, or its values are wrong.
    """
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}:{number}: not JSON ({error.msg} at column {error.colno})") from error
        except (RecursionError, ValueError) as error:
            raise UserError(f"{path}:{number}: JSON that cannot be read ({error})") from error
        if not isinstance(value, dict):
            raise UserError(
                f'{path}:{number}: {type(value).__name__} where an object {{"id", "title", "text"}} is needed'
            )
        yield to_row(value, path, number)
