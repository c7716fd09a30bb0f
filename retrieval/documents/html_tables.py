"""Tables of HTML pages: tells data from layout, and lays the cells of a data table out in rows and columns.

Pages use tables for layout, too. A layout table is read as the text of its cells in order. A merged cell of a data
table stands in each row that it spans, and leaves blank cells in the further columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from retrieval.documents.headers import merge_headers, names_columns

ROW_GROUPS = ("thead", "tbody", "tfoot")
MAX_SPAN = 65534  # rows or columns of a cell, as in browsers
_MAX_CELL = 1000  # characters of a cell of a table without header cells; longer texts are layout
_MAX_HEADED_CELL = 4000  # characters of a cell of a table with header cells
_MAX_CELL_BLOCKS = 3  # paragraphs of a cell of a table without header cells
_MAX_GROWTH = 10  # times that repeated and blank cells may enlarge a table


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading of a page."""

    level: int
    text: str


@dataclass(frozen=True, slots=True)
class Preformatted:
    """Text of which the lines and spaces are kept."""

    text: str


@dataclass(frozen=True, slots=True)
class DataTable:
    """A table as rows of the texts of its cells."""

    rows: list[list[str]]
    header: bool  # whether the first row names the columns


HtmlBlock: TypeAlias = "str | Preformatted | Heading | DataTable | list[HtmlBlock]"
"""A paragraph, preformatted text, a heading, a table, or the blocks of a layout table."""


@dataclass(slots=True)
class Cell:
    """A cell that is being read."""

    is_header: bool
    columns: int = 1
    rows: int = 1
    group: int = 0  # number of its row group, which no span leaves
    blocks: list[HtmlBlock] = field(default_factory=list)

    def text(self) -> str:
        """Return the text of the cell in one line."""
        return " ".join(" ".join(_block_texts(self.blocks)).split())


@dataclass(slots=True)
class TableFrame:
    """A table that is being read."""

    is_layout: bool  # whether the page says that it is layout
    # the caption, and text outside the cells
    before: list[HtmlBlock] = field(default_factory=list)
    # rows by row group. The head is shown first and the foot last, wherever the page has them
    groups: dict[str, list[list[Cell]]] = field(
        default_factory=lambda: {name: [] for name in ROW_GROUPS}
    )
    group: str = "tbody"  # the open one
    group_number: int = 0
    cell: Cell | None = None  # the open one

    def open_group(self, name: str) -> None:
        """Begin a row group. A second head or foot is shown where it stands."""
        self.group = "tbody" if self.groups[name] else name
        self.group_number += 1

    def add_row(self) -> None:
        """Begin a row."""
        self.groups[self.group].append([])

    def add_cell(self, cell: Cell) -> None:
        """Add a cell to the last row, and open it."""
        if not self.groups[self.group]:
            self.add_row()
        cell.group = self.group_number
        self.groups[self.group][-1].append(cell)
        self.cell = cell

    def finish(self) -> list[HtmlBlock]:
        """Return the blocks of the table: one data table, or the text of the cells of a layout table."""
        rows: list[list[Cell]] = []
        for name in ROW_GROUPS:
            rows += filter(None, self.groups[name])
        data = None if self.is_layout else self._data_table(rows)
        if data is not None:
            return [*self.before, data]
        blocks: list[HtmlBlock] = self.before
        for row in rows:
            blocks.extend(cell.blocks for cell in row if cell.blocks)
        return blocks

    def _data_table(self, rows: Sequence[Sequence[Cell]]) -> DataTable | None:
        """Return the table as rows of texts, or None for a layout table."""
        if len(rows) < 1 or max(len(row) for row in rows) < 2:
            return None
        has_headers = any(cell.is_header for row in rows for cell in row)
        texts: list[list[str]] = []
        for row in rows:
            for cell in row:
                if not _is_plain(cell, has_headers):
                    return None
            texts.append([cell.text() for cell in row])
        longest = max(len(text) for row in texts for text in row)
        if longest > (_MAX_HEADED_CELL if has_headers else _MAX_CELL):
            return None
        grid = lay_out(rows, texts)
        head = self._header_rows(rows)
        if head:
            return DataTable([merge_headers(grid[:head]), *grid[head:]], header=True)
        return DataTable(grid, header=not has_headers and names_columns(grid))

    def _header_rows(self, rows: Sequence[Sequence[Cell]]) -> int:
        """Return how many leading rows name the columns."""
        head = sum(map(bool, self.groups["thead"]))
        while head < len(rows) and all(cell.is_header for cell in rows[head]):
            head += 1
        return head if head < len(rows) else min(head, 1)


def lay_out(
    rows: Sequence[Sequence[Cell]], texts: Sequence[Sequence[str]]
) -> list[list[str]]:
    """Return the rows of a table with a place for each column.

    Spans are left out where they would enlarge the table more than tenfold.
    """
    budget = _MAX_GROWTH * sum(1 + len(text) for row in texts for text in row)
    grid: list[list[str]] = []
    spanning: dict[
        int, tuple[int, str]
    ] = {}  # column -> rows that a cell above still spans, and its text
    group = 0
    for row, row_texts in zip(rows, texts, strict=True):
        if row[0].group != group:
            spanning = {}
        group = row[0].group
        line: list[str] = []
        spanning_next: dict[int, tuple[int, str]] = {}
        for cell, text in zip(row, row_texts, strict=True):
            _add_spanning(line, spanning, spanning_next)
            budget -= cell.columns
            if budget < 0:
                break
            for offset in range(cell.columns):
                repeated = text if offset == 0 or cell.is_header else ""
                if cell.rows > 1:
                    spanning_next[len(line)] = (cell.rows - 1, repeated)
                line.append(repeated)
        _add_spanning(line, spanning, spanning_next)
        budget -= sum(1 + len(text) for text in line)
        if budget < 0:
            return [list(row_texts) for row_texts in texts]
        spanning = spanning_next
        grid.append(line)
    return grid


def _add_spanning(
    line: list[str],
    spanning: dict[int, tuple[int, str]],
    spanning_next: dict[int, tuple[int, str]],
) -> None:
    """Append the texts of cells above that span the next columns of a row."""
    while len(line) in spanning:
        column = len(line)
        rows_left, text = spanning[column]
        if rows_left > 1:
            spanning_next[column] = (rows_left - 1, text)
        line.append(text)


def _is_plain(cell: Cell, has_headers: bool) -> bool:
    """Tell whether the blocks of a cell fit into a cell of a data table."""
    if not has_headers and len(cell.blocks) > _MAX_CELL_BLOCKS:
        return False
    for block in cell.blocks:
        if isinstance(block, list | Heading):
            return False
        if isinstance(block, DataTable | Preformatted) and not has_headers:
            return False
    return True


def _block_texts(blocks: Sequence[HtmlBlock]) -> list[str]:
    texts: list[str] = []
    for block in blocks:
        if isinstance(block, str):
            texts.append(block)
        elif isinstance(block, Preformatted):
            texts.append(block.text)
        elif isinstance(block, DataTable):
            texts.append("; ".join(", ".join(filter(None, row)) for row in block.rows))
    return texts
