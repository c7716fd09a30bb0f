"""Counts and tables for reports, as Markdown and for a terminal. What others wrote is made harmless on the way."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from selfrag.render import terminal_text
from selfrag.render.tables import compact, escape, terminal_table

if TYPE_CHECKING:
    from rich.table import Table

ReportRow = Sequence[object]


def counted(keys: Iterable[tuple[str, ...]]) -> list[tuple[object, ...]]:
    """Distinct keys in order, each followed by how often it came."""
    return [(*key, count) for key, count in sorted(Counter(keys).items())]


def markdown(header: Sequence[str], rows: Iterable[ReportRow]) -> str:
    """Return a Markdown table of texts and numbers."""
    return compact(header, [list(map(_cell, row)) for row in rows])


def _cell(value: object) -> str:
    return escape(_text(value))


def terminal(title: str, header: Sequence[str], rows: Iterable[ReportRow]) -> Table:
    """Return the same for a terminal."""
    table = terminal_table(title, header)
    for row in rows:
        table.add_row(*(terminal_text(_text(value)) for value in row))
    return table


def _text(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if math.isnan(value):
        return "-"
    return f"{value:.3f}"
