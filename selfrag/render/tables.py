"""Tables of reports: as Markdown, and for a terminal. What others wrote is made harmless on the way."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from selfrag.common.untrusted import printable
from selfrag.render import terminal_text

if TYPE_CHECKING:
    from rich.table import Table


def escape(text: str) -> str:
    """Return text of others for a cell or a line: neither a new cell nor mark-up comes out of it."""
    shown = (
        printable(text).replace("&", "&amp;").replace("<", "&lt;").replace("\\", "\\\\")
    )
    return re.sub(r"([|`*\[\]])", r"\\\1", " ".join(shown.split()))


def compact(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table of cells as they are."""
    return "".join(
        f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *rows)
    )


_FIGURE = re.compile(
    r"(\**)[+-]?[\d.,]+%?(?: [\[(][\d.,+-]+(?:,| to) [\d.,+-]+[\])])?(?: n=\d+)?(?: \*)?\1"
)
"""A cell that is a figure of ours, with its interval, a mark of significance, or in bold."""


def text_of(value: object) -> str:
    """Return a value as a cell shows it: numbers with 3 decimals or with commas, and a dash for NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if math.isnan(value):
        return "-"
    return f"{value:.3f}"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table of values; texts of others are escaped, and figures with intervals are not."""
    return compact(list(map(escape, head)), [list(map(_cell, row)) for row in rows])


def _cell(value: object) -> str:
    text = text_of(value)
    return text if _FIGURE.fullmatch(text) else escape(text)


def markdown_section(
    title: str,
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    notes: Iterable[str] = (),
) -> str:
    """Return a heading, a table unless it has no columns, and notes, which get their full stop here."""
    parts = [f"### {escape(title)}\n"]
    if head:
        parts.append(markdown_table(head, rows))
    parts += [f"{note}.\n" for note in notes]
    return "\n".join(parts)


def quoted(text: str, most: int = 600) -> str:
    """Return text as a Markdown quotation in which nothing of it is mark-up, cut to a length."""
    cut = text if len(text) <= most else f"{text[:most]} ..."
    lines = printable("\n".join(cut.splitlines())).split("\n")
    escaped = [escape(line).replace("#", "\\#") for line in lines]
    return "".join(f"> {line}\n" for line in escaped)


def name_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table for a terminal whose first column is never broken, so that its names can be copied."""
    from rich.table import Table

    table = Table(box=None)
    for column in head:
        table.add_column(column, no_wrap=column == head[0], overflow="fold")
    for row in rows:
        table.add_row(*map(terminal_text, row))
    return table
