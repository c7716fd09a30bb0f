"""Markdown tables: rows of text as a table, close or aligned, and how a text of others becomes a cell. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from selfrag.untrusted import printable


def compact(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table for a page that is made again and again: cells as they are, one space around each."""
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *rows))


def aligned(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table that is read as text as well: cells as they are, columns as wide as their longest."""
    lines = [list(head), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    padded = ["| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |" for line in lines]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join((padded[0], rule, *padded[1:]))


def escape(text: str) -> str:
    """Text of others for a cell: neither a new cell nor mark-up comes out of it."""
    shown = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace("\\", "\\\\")
    return re.sub(r"([|`*\[\]])", r"\\\1", " ".join(shown.split()))
