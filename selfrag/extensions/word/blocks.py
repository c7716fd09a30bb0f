"""Paragraphs and tables of a Word file between reading and writing, and how merged cells become rows of equal columns.

A merged value stands in each of its rows and columns, since a passage may begin at any row. A row that is one cell
stands once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from selfrag.interface import DocumentBuilder, merge_headers

MAX_SPAN = 63
"""Columns that one cell may span, as in Word."""
MAX_REPEATED = 200
"""Characters of a merged value that is repeated. A longer one stands once."""


@dataclass(frozen=True, slots=True)
class TextBlock:
    """A paragraph, or a heading where it has a level."""

    text: str
    level: int | None = None


@dataclass(frozen=True, slots=True)
class TableBlock:
    """A table."""

    rows: list[TableRow]


WordBlock: TypeAlias = TextBlock | TableBlock


@dataclass(frozen=True, slots=True)
class TableCell:
    """A cell."""

    blocks: Sequence[WordBlock] = ()
    span: int = 1  # columns
    continues_above: bool = False  # merged with the cell above
    continues_left: bool = False  # merged with the cell before


BLANK = TableCell()


@dataclass(slots=True)
class TableRow:
    """A row."""

    cells: list[TableCell] = field(default_factory=list)
    is_header: bool = False
    skipped_before: int = 0  # columns of the grid before the first cell


BLANK_ROW = TableRow()


class BlockWriter:
    """Adds blocks to a document.

    Args:
        builder: of the document.
    """

    # characters that merged cells of a file may add by repeating values
    max_repeats = 1_000_000

    def __init__(self, builder: DocumentBuilder) -> None:
        self._builder = builder
        self._repeats_left = self.max_repeats

    def add(self, block: WordBlock) -> None:
        """Append a block to the document."""
        blocks = [block]
        while blocks:
            current = blocks.pop()
            if isinstance(current, TextBlock):
                if current.level is None:
                    self._builder.add_paragraph(current.text)
                else:
                    self._builder.add_heading(current.level, current.text)
            elif _is_layout(current):
                inner = [
                    inner
                    for row in current.rows
                    for cell in row.cells
                    for inner in cell.blocks
                ]
                blocks.extend(reversed(inner))
            else:
                self._add_table(current)

    def _add_table(self, table: TableBlock) -> None:
        rows: list[TableRow] = []
        lines: list[list[str]] = []
        for row, line in zip(table.rows, self._lines(table.rows), strict=True):
            if any(cell.blocks for cell in row.cells):
                rows.append(row)
                lines.append(line)
        first = 0
        while first < len(rows) - 1 and _is_caption(rows[first], rows[first + 1]):
            self._builder.add_paragraph(cell_text(rows[first].cells[0]))
            first += 1
        heads = first
        while heads < len(rows) and rows[heads].is_header:
            heads += 1
        if heads > first + 1:
            lines[first:heads] = [merge_headers(lines[first:heads])]
        self._builder.add_table(lines[first:])

    def _lines(self, rows: Sequence[TableRow]) -> list[list[str]]:
        """Return the texts of the rows, column by column."""
        lines: list[list[str]] = []
        above: dict[int, str] = {}  # values that the next row may continue, by column
        for row in rows:
            line = [""] * self._take(row.skipped_before, 0)
            current: dict[int, str] = {}
            left = ""
            for cell in row.cells:
                text = cell_text(cell)
                column = len(line)
                repeated = False
                if cell.continues_above and not text:
                    text, repeated = above.get(column, ""), True
                elif cell.continues_left and not text:
                    text, repeated = left, True
                if repeated and self._take(1, len(text)) == 0:
                    text = ""
                if len(text) <= MAX_REPEATED:
                    current[column] = text
                left = current.get(column, "")
                line.append(text)
                if cell.span > 1 and len(row.cells) > 1:
                    line.extend([left] * self._take(cell.span - 1, len(left)))
            above = current
            lines.append(line)
        return lines

    def _take(self, cells: int, characters: int) -> int:
        """Return how many further cells may be written, and count them."""
        cost = characters + len(" | ")
        cells = min(cells, self._repeats_left // cost)
        self._repeats_left -= cells * cost
        return cells


def cell_text(cell: TableCell) -> str:
    """Return the text of a cell in one line; a table inside it in parentheses."""
    texts: list[str] = []
    for block in cell.blocks:
        if isinstance(block, TextBlock):
            texts.append(block.text)
            continue
        rows = [
            " | ".join(cell_text(inner) for inner in row.cells) for row in block.rows
        ]
        texts.append(f"({'; '.join(rows)})")
    return " ".join(" ".join(texts).split())


def _is_layout(table: TableBlock) -> bool:
    """Return whether a table only places text on the page: one column, or one row of more than single paragraphs."""
    if all(len(row.cells) <= 1 for row in table.rows):
        return True
    return len(table.rows) == 1 and any(
        len(cell.blocks) > 1 for cell in table.rows[0].cells
    )


def _is_caption(row: TableRow, below: TableRow) -> bool:
    return len(row.cells) == 1 and row.cells[0].span > 1 and len(below.cells) > 1
