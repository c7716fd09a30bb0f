"""Counts and tables for reports, as Markdown and for a terminal. What others wrote is made harmless on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from selfrag.common.untrusted import printable

if TYPE_CHECKING:
    from rich.table import Table

Row = Sequence[object]


def counted(keys: Iterable[tuple[str, ...]]) -> list[tuple[object, ...]]:
    """Distinct keys in order, each followed by how often it came."""
    return [(*key, count) for key, count in sorted(Counter(keys).items())]


def markdown(header: Sequence[str], rows: Iterable[Row]) -> str:
    """A Markdown table; numbers are right-aligned."""
    body = [[_escaped(" ".join(printable(_text(value)).split())) for value in row] for row in rows]
    first = next(iter(rows), ()) if isinstance(rows, Sequence) else ()
    marks = ["---:" if isinstance(value, int | float) else "---" for value in first] or ["---"] * len(header)
    lines = [list(header), marks, *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def terminal(title: str, header: Sequence[str], rows: Iterable[Row]) -> Table:
    """The same for a terminal."""
    from rich import box
    from rich.table import Table

    from selfrag.cli.ask import plain

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in header:
        table.add_column(name)
    for row in rows:
        table.add_row(*(plain(_text(value)) for value in row))
    return table


def quoted(text: str, most: int = 600) -> str:
    """Text as a Markdown quotation in which nothing of it is mark-up, cut to a length."""
    cut = text if len(text) <= most else f"{text[:most]} ..."
    lines = printable("\n".join(cut.splitlines())).split("\n")
    return "\n".join(f"> {_escaped(line)}" for line in lines) + "\n"


def _escaped(text: str) -> str:
    for character in "\\`*_[]|#":
        text = text.replace(character, f"\\{character}")
    return escape(text, quote=False)


def _text(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else ("-" if value != value else f"{value:.3f}")
