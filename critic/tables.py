"""Counts for reports, and tables for a terminal. What others wrote is made harmless on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from selfrag.render import terminal_text
from selfrag.render.tables import terminal_table, text_of

if TYPE_CHECKING:
    from rich.table import Table


def counted(keys: Iterable[tuple[str, ...]]) -> list[tuple[object, ...]]:
    """Distinct keys in order, each followed by how often it came."""
    return [(*key, count) for key, count in sorted(Counter(keys).items())]


def terminal(
    title: str, header: Sequence[str], rows: Iterable[Sequence[object]]
) -> Table:
    """Return a table for a terminal."""
    table = terminal_table(title, header)
    for row in rows:
        table.add_row(*(terminal_text(text_of(value)) for value in row))
    return table
