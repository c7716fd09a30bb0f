"""The tables of a Word file that are open while it is read."""

from __future__ import annotations

from dataclasses import dataclass, field

from selfrag.extensions.word.blocks import (
    BLANK,
    BLANK_ROW,
    MAX_SPAN,
    TableCell,
    TableRow,
    WordBlock,
)
from selfrag.extensions.word.package import Attributes, is_on, number

TABLE_PROPERTIES = frozenset(
    (
        "w:tr",
        "w:gridSpan",
        "w:vMerge",
        "w:hMerge",
        "w:cellDel",
        "w:gridBefore",
        "w:tblHeader",
        "w:hidden",
    )
)
"""Elements that begin a row, or tell something about a row or a cell."""


@dataclass(slots=True)
class OpenCell:
    """A cell that has not ended."""

    blocks: list[WordBlock] = field(default_factory=list)
    span: int = 1
    continues_above: bool = False
    continues_left: bool = False
    deleted: bool = False
    field_depth: int = 0  # fields that were open when it began


@dataclass(slots=True)
class OpenTable:
    """A table that has not ended."""

    rows: list[TableRow] = field(default_factory=list)
    row: TableRow | None = None
    row_deleted: bool = False


class TableStack:
    """Collects the rows of tables within tables.

    Args:
        max_nesting: tables within tables that are kept. Deeper ones have no rows and cells of their own.
    """

    def __init__(self, max_nesting: int) -> None:
        self._max_nesting = max_nesting
        self._tables: list[OpenTable | None] = []  # None is one without rows of its own
        self._cells: list[OpenCell | None] = []

    @property
    def open_cell(self) -> OpenCell | None:
        """Return the innermost cell; None outside of cells."""
        return self._cells[-1] if self._cells else None

    def start_table(self) -> None:
        """Begin a table."""
        kept = len(self._tables) < self._max_nesting
        self._tables.append(OpenTable() if kept else None)

    def end_table(self) -> list[TableRow]:
        """End a table and return its rows."""
        table = self._tables.pop() if self._tables else None
        return table.rows if table is not None else []

    def end_row(self) -> None:
        """End a row."""
        table = self._open_table()
        if table is None or table.row is None:
            return
        row, table.row = table.row, None
        if table.row_deleted:
            return
        is_blank = all(cell is BLANK for cell in row.cells) and not row.is_header
        table.rows.append(BLANK_ROW if is_blank else row)

    def delete_row(self) -> None:
        """Leave out the row that is open."""
        table = self._open_table()
        if table is not None:
            table.row_deleted = True

    def start_cell(self, field_depth: int) -> list[WordBlock] | None:
        """Begin a cell and return the list of its blocks; None where it has none of its own."""
        table = self._open_table()
        cell = None
        if table is not None and table.row is not None:
            cell = OpenCell(field_depth=field_depth)
        self._cells.append(cell)
        return cell.blocks if cell is not None else None

    def end_cell(self) -> None:
        """End a cell."""
        cell = self._cells.pop() if self._cells else None
        table = self._open_table()
        if cell is None or table is None or table.row is None:
            return
        if cell.deleted:
            cell.blocks.clear()
        if cell.blocks or cell.continues_above or cell.continues_left or cell.span > 1:
            merged = (cell.continues_above, cell.continues_left)
            table.row.cells.append(TableCell(cell.blocks, cell.span, *merged))
        else:
            table.row.cells.append(BLANK)

    def set_property(self, name: str, parent: str, attributes: Attributes) -> None:
        """Begin a row, or set a property of the row or the cell that is open."""
        table, cell = self._open_table(), self.open_cell
        if name == "w:tr":
            if table is not None:
                table.row, table.row_deleted = TableRow(), False
        elif parent == "w:trPr" and table is not None and table.row is not None:
            self._set_row(table, table.row, name, attributes)
        elif parent == "w:tcPr" and cell is not None:
            self._set_cell(cell, name, attributes)

    @staticmethod
    def _set_row(
        table: OpenTable, row: TableRow, name: str, attributes: Attributes
    ) -> None:
        match name:
            case "w:gridBefore":
                row.skipped_before = max(
                    0, number(attributes.get("w:val"), 0, MAX_SPAN)
                )
            case "w:tblHeader":
                row.is_header = is_on(attributes)
            case "w:hidden":
                table.row_deleted = table.row_deleted or is_on(attributes)

    @staticmethod
    def _set_cell(cell: OpenCell, name: str, attributes: Attributes) -> None:
        continues = attributes.get("w:val", "continue") == "continue"
        match name:
            case "w:gridSpan":
                cell.span = max(1, number(attributes.get("w:val"), 1, MAX_SPAN))
            case "w:vMerge":
                cell.continues_above = continues
            case "w:hMerge":
                cell.continues_left = continues
            case "w:cellDel":
                cell.deleted = True

    def _open_table(self) -> OpenTable | None:
        return self._tables[-1] if self._tables else None
