"""Header rows of tables: which row names the columns, and several header rows as one."""

from __future__ import annotations

from collections.abc import Sequence


def merge_headers(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return one row with the texts of all header rows, column by column; a repeated text stands once."""
    width = max(len(row) for row in rows)
    merged: list[str] = []
    for column in range(width):
        texts: list[str] = []
        for row in rows:
            if column < len(row) and row[column] and row[column] not in texts:
                texts.append(row[column])
        merged.append(" ".join(texts))
    return merged


def names_columns(grid: Sequence[Sequence[str]]) -> bool:
    """Guess whether the first row of a table names its columns: no digits above some digits."""
    first, below = grid[0], grid[1:]
    if not all(first) or any(has_digit(text) for text in first):
        return False
    return any(has_digit(text) for row in below for text in row[1:])


def has_digit(text: str) -> bool:
    """Return whether a text holds a digit."""
    return any(character.isdigit() for character in text)
