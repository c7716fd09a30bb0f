"""Tables of reports: as Markdown, and for a terminal. What others wrote is made harmless on the way."""

from __future__ import annotations

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
    """Return a Markdown table for a page that is made again and again: cells as they are, one space around each."""
    return "".join(
        f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *rows)
    )


def aligned(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table that is read as text as well: columns are as wide as their longest cell."""
    table = [list(head), *map(list, rows)]
    widths = [0] * len(head)
    for row in table:
        widths = list(map(max, widths, map(len, row)))
    lines = []
    for row in table:
        cells = map(str.ljust, row, widths)
        lines.append(f"| {' | '.join(cells)} |")
    rule = "|".join("-" * (width + 2) for width in widths)
    return "\n".join((lines[0], f"|{rule}|", *lines[1:]))


def quoted(text: str, most: int = 600) -> str:
    """Return text as a Markdown quotation in which nothing of it is mark-up, cut to a length."""
    cut = text if len(text) <= most else f"{text[:most]} ..."
    lines = printable("\n".join(cut.splitlines())).split("\n")
    escaped = [escape(line).replace("#", "\\#") for line in lines]
    return "".join(f"> {line}\n" for line in escaped)


def terminal_table(title: str, head: Sequence[str] = ()) -> Table:
    """Return an empty table for a terminal, as every command prints it."""
    from rich import box
    from rich.table import Table

    table = Table(
        title=terminal_text(title),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for name in head:
        table.add_column(terminal_text(name))
    return table
