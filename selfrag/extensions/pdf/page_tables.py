"""Tables of a PDF page, by the strokes around their cells or by columns that stay aligned over several rows.

A PDF has no tables, only text and strokes at places. So only what is clearly a table becomes one, and the rest stays
text. No text is dropped.

- With strokes: a grid of two rows and two columns or more, with text in several cells of several rows. What stands in a
  cell is read together, also where the file draws it in another order.
- Without: neighbouring lines of pieces of text that keep apart in the same columns, with a common left edge, right edge
  or middle in each. Prose in columns, lists and tables of contents have long pieces, marks or dots, and stay text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from statistics import median
from typing import TypeAlias

from selfrag.extensions.pdf.layout import (
    MAX_FRAGMENTS,
    Fragment,
    Line,
    build_lines,
    is_right_to_left,
)
from selfrag.extensions.pdf.rules import Grid
from selfrag.interface import has_digit, merge_headers, names_columns

_MAX_CELLS = 5000  # of a table with strokes; a drawing has more
_MAX_CELL = 1000  # characters of a cell; a longer one is layout
_MAX_REPEATED = 200  # characters of a cell that is repeated in each row that it spans
_MAX_HEADERS = 3  # rows of bold text that may be header rows
_MIN_GAP = 0.6  # between two columns, in heights of a line
_MAX_PITCH = 3.0  # from one row to the next, in heights of a line
_MIN_ROWS = 3  # of a table without strokes
_MIN_ROWS_OF_PAIRS = 4  # the same with two columns
_MIN_FILLED = 0.6  # cells with text, as a share
_MIN_ALIGNED = 0.8  # cells of a column with a common edge or middle, as a share
_ALIGNED = 0.5  # how far such edges may be apart, in heights of a line
_MIN_NUMBERS = 0.6  # cells of one of two columns that hold digits
_MAX_WORDS = 6  # in most cells of all columns but one
_MAX_WORK = 20_000  # lines of a page that are tried as rows
_FURNITURE = 2  # lines at the head or the foot of a page between two parts of a table
_SAME_COLUMN = 12.0  # points between the left edges of a column on two pages; numbers are set to the right
_FULL_LINE = 0.6  # width of a line of a cell that may go on in the next line, as a share of its column
_MARK = re.compile(r"[\W_]+|\(?\w{1,3}[.)\]:]|\[\w{1,5}\]")
_LEADER = re.compile(r"(?:\.\s?){4}|\u2026\s?\u2026|(?:\u00b7\s?){4}")
_YEAR = re.compile(
    r"\(?(?:(?:FY|Q|H)\s?\d{1,4}|(?:19|20)\d\d)(?:[-/\u2013]\d{2,4})?[EFPA]?\)?"
)

CellText: TypeAlias = list[str]
"""The lines of a cell."""


@dataclass(slots=True)
class PageTable:
    """A table on a page."""

    rows: list[list[CellText]]
    edges: list[float]  # left edges of the columns
    # what names the columns; the other rows are in `rows`
    header: list[CellText] | None = None

    @property
    def lines(self) -> list[str]:
        """Return all lines of its cells."""
        rows = self.rows if self.header is None else [self.header, *self.rows]
        return [line for row in rows for cell in row for line in cell]


PageBlock: TypeAlias = Line | PageTable


@dataclass(slots=True)
class GridTable:
    """A table with strokes, and the fragment that holds its place on the page."""

    place: Fragment
    table: PageTable


def take_grid_tables(
    fragments: Sequence[Fragment], grids: Sequence[Grid]
) -> tuple[list[Fragment], list[GridTable]]:
    """Return the fragments of a page with one fragment in the place of each table with strokes, and these tables."""
    if len(fragments) > MAX_FRAGMENTS:
        return list(fragments), []
    tables: list[GridTable] = []
    remaining = list(fragments)
    for grid in grids:
        inside = [item for item in remaining if item.upright and _is_inside(item, grid)]
        table = _grid_table(inside, grid)
        if table is None:
            continue
        place = Fragment("", *grid.box)
        first, *others = map(id, inside)
        taken = set(others)
        kept = (item for item in remaining if id(item) not in taken)
        remaining = [place if id(item) == first else item for item in kept]
        tables.append(GridTable(place, table))
    return remaining, tables


def _is_inside(fragment: Fragment, grid: Grid) -> bool:
    left, bottom, right, top = grid.box
    x, y = (fragment.left + fragment.right) / 2, (fragment.bottom + fragment.top) / 2
    return left <= x <= right and bottom <= y <= top


def _grid_table(fragments: Sequence[Fragment], grid: Grid) -> PageTable | None:
    """Return the table in a grid, or None where it is a frame, a chart or a layout of the page."""
    width = len(grid.columns) - 1
    if width * len(grid.rows) > _MAX_CELLS:
        return None
    cells = _fill_cells(fragments, grid)
    columns = sorted({column for _, column in cells if column < width})
    rows: list[list[CellText]] = []
    bold: list[bool] = []
    rows_of_cells = 0  # rows with more than one text
    for row in range(len(grid.rows) - 1):
        texts: list[CellText] = []
        sources: set[int] = set()
        for column in columns:
            lines = [line.text for line in build_lines(cells.get((row, column), ()))]
            if sum(map(len, lines)) > _MAX_CELL:
                return None
            if lines:
                sources.add(id(cells[row, column][0]))
            elif (row, column) in grid.open_above and rows:
                lines = _repeated(rows[-1][len(texts)])
                if lines:
                    sources.add(column)
            texts.append(lines)
        rows_of_cells += len(sources) > 1
        if any(texts):
            rows.append(texts)
            of_row = [cells.get((row, column), ()) for column in columns]
            bold.append(all(item.bold for item in chain.from_iterable(of_row)))
    if rows_of_cells < 2:
        return None
    # strokes around the header and around all other rows
    last_row = [cells.get((1, column), ()) for column in columns]
    if len(grid.rows) == 3 and _has_aligned_lines(last_row):
        return None
    if is_right_to_left(fragments):
        rows = [texts[::-1] for texts in rows]
    return _with_header(rows, bold, [grid.columns[column] for column in columns])


def _fill_cells(
    fragments: Sequence[Fragment], grid: Grid
) -> dict[tuple[int, int], list[Fragment]]:
    """Return the fragments in each cell that holds some, by row and column."""
    cells: dict[tuple[int, int], list[Fragment]] = {}
    for fragment in fragments:
        row = grid.row_at((fragment.bottom + fragment.top) / 2)
        middle = (fragment.left + fragment.right) / 2
        column = grid.column_at(min(fragment.left + fragment.height / 2, middle))
        while (row, column) in grid.open_above:
            row -= 1
        cells.setdefault((row, column), []).append(fragment)
    for row in range(len(grid.rows) - 1):
        _merge_across(cells, grid, row)
    return cells


def _merge_across(
    cells: dict[tuple[int, int], list[Fragment]], grid: Grid, row: int
) -> None:
    """Put the text of a cell over several columns into each of them; where it is the whole row, into the first."""
    width, first = len(grid.columns) - 1, 0
    while first < width:
        end = first + 1
        while end < width and (row, end) in grid.open_left:
            end += 1
        members: list[Fragment] = []
        for column in range(first, end):
            members += cells.get((row, column), ())
        lines = build_lines(members)
        is_one_cell = bool(lines) and not any(_has_gap(line.cells) for line in lines)
        if end - first > 1 and is_one_cell:
            is_short = sum(len(line.text) for line in lines) <= _MAX_REPEATED
            last = end if is_short and end - first < width else first + 1
            for column in range(first, end):
                cells.pop((row, column), None)
                if column < last:
                    cells[row, column] = list(members)
        first = end


def _has_gap(cells: Sequence[Fragment]) -> bool:
    """Return whether the texts of a line stand apart as those of two columns do."""
    pairs = pairwise(sorted(cells, key=lambda cell: cell.left))
    return any(
        cell.left - before.right > _MIN_GAP * cell.height for before, cell in pairs
    )


def _repeated(lines: CellText) -> CellText:
    return list(lines) if sum(map(len, lines)) <= _MAX_REPEATED else []


def _has_aligned_lines(row: Sequence[Sequence[Fragment]]) -> bool:
    """Return whether cells hold lines that may be rows: each stands below the one before, unlike in a fraction."""
    stacks = set[int]()
    for cell in row:
        lines = build_lines(cell)
        falls = [above.box.bottom > line.box.bottom for above, line in pairwise(lines)]
        if len(lines) >= _MIN_ROWS and all(falls):
            stacks.add(id(cell[0]))
    return len(stacks) > 1


def _with_header(
    rows: list[list[CellText]], bold: Sequence[bool], edges: list[float]
) -> PageTable:
    """Return the table of rows, with those at its head apart that name the columns."""
    heads = 0
    while heads < len(rows) and bold[heads]:
        heads += 1
    grid = [[" ".join(lines) for lines in row] for row in rows]
    if 0 < heads < len(rows) and heads <= _MAX_HEADERS:
        if heads == 1:
            return PageTable(rows[1:], edges, rows[0])
        names = merge_headers(grid[:heads])
        header = [[name] if name else [] for name in names]
        return PageTable(rows[heads:], edges, header)
    first, *below = grid
    # the first column may have no name
    with_corner = [[first[0] or "-", *first[1:]], *below]
    if below and (names_columns(with_corner) or _has_years(grid)):
        return PageTable(rows[1:], edges, rows[0])
    return PageTable(rows, edges)


def _has_years(grid: Sequence[Sequence[str]]) -> bool:
    """Return whether the columns have names or years above numbers, beside a first column without digits."""
    first, *below = grid
    if any(has_digit(row[0]) for row in grid) or not all(first[1:]):
        return False
    for text in first[1:]:
        if has_digit(text) and not _YEAR.fullmatch(text):
            return False
    texts = chain.from_iterable(row[1:] for row in below)
    return any(has_digit(text) and not _YEAR.fullmatch(text) for text in texts)


def find_tables(
    lines: Sequence[Line], grid_tables: Sequence[GridTable] = ()
) -> list[PageBlock]:
    """Return the lines of a page in order, with its tables.

    Args:
        lines: of the page, and one without text in the place of each table with strokes.
        grid_tables: the tables with strokes.
    """
    tables = {id(item.place): item.table for item in grid_tables}
    blocks: list[PageBlock] = []
    first = work = 0
    while first < len(lines):
        line = lines[first]
        rows = None
        if not line.text:
            blocks.append(tables[id(line.cells[0])])
            first += 1
            continue
        if len(line.cells) > 1 and work < _MAX_WORK:
            rows = _follow_rows(lines, first)
            work += rows.count
        if rows is not None and rows.is_table():
            blocks.append(rows.table())
            first += rows.count
        else:
            blocks.append(line)
            first += 1
    return blocks


def repeat_headers(pages: Sequence[Sequence[PageBlock]]) -> None:
    """Give each table that goes on from the page before the header of that page."""
    above: PageTable | None = None
    for blocks in pages:
        tables = []
        for number, block in enumerate(blocks):
            if isinstance(block, PageTable):
                tables.append((number, block))
        if not tables:
            above = None
            continue
        (before, first), (number, last) = tables[0], tables[-1]
        goes_on = above is not None and first.header is None and before <= _FURNITURE
        if goes_on and above is not None and _has_same_columns(above, first):
            first.header = above.header
        above = last if len(blocks) - 1 - number <= _FURNITURE else None


def _has_same_columns(first: PageTable, second: PageTable) -> bool:
    if len(first.edges) != len(second.edges):
        return False
    pairs = zip(first.edges, second.edges, strict=True)
    return all(abs(edge - next_edge) <= _SAME_COLUMN for edge, next_edge in pairs)


@dataclass(slots=True)
class _Column:
    left: float
    right: float


@dataclass(slots=True)
class _Row:
    # by the number of the column in the order in which they were met
    cells: dict[int, CellText]
    boxes: dict[int, Fragment]  # first lines of the cells, likewise
    bold: bool
    end: int  # lines of the table up to its end


class _Rows:
    """Lines that may be the rows of a table."""

    def __init__(self) -> None:
        self._columns: list[_Column] = []
        self._rows: list[_Row] = []
        self.count = 0  # lines of the table

    def add(self, line: Line) -> bool:
        """Add a line, unless it does not keep the columns apart."""
        if not line.text or any(_LEADER.search(cell.text) for cell in line.cells):
            return False
        places: list[int] = []
        for cell in line.cells:
            numbered = enumerate(self._columns)
            near = [number for number, column in numbered if _is_near(cell, column)]
            if len(near) > 1 or (near and near[0] in places):
                return False
            places.append(near[0] if near else -1)
        if not self._rows and -1 not in places:
            return False
        if len(line.cells) == 1 and (places == [-1] or not self._rows):
            return False
        self.count += 1
        if self._continues_cell(line, places[0]):
            self._rows[-1].cells[places[0]].append(line.cells[0].text)
            self._widen(places[0], line.cells[0])
            self._rows[-1].end = self.count
            return True
        cells, boxes = dict[int, CellText](), dict[int, Fragment]()
        for cell, place in zip(line.cells, places, strict=True):
            if place < 0:
                self._columns.append(_Column(cell.left, cell.right))
                place = len(self._columns) - 1
            self._widen(place, cell)
            cells[place] = [cell.text]
            boxes[place] = cell
        bold = all(cell.bold for cell in line.cells)
        self._rows.append(_Row(cells, boxes, bold, self.count))
        return True

    def _widen(self, place: int, cell: Fragment) -> None:
        column = self._columns[place]
        column.left = min(column.left, cell.left)
        column.right = max(column.right, cell.right)

    def _continues_cell(self, line: Line, place: int) -> bool:
        """Return whether a line is one more line of a cell that is not the first of its row."""
        if len(line.cells) > 1 or place < 0 or place not in self._rows[-1].cells:
            return False
        column = self._columns[place]
        if column.left <= min(column.left for column in self._columns):
            return False
        above = self._rows[-1].boxes[place]
        return above.right - above.left >= _FULL_LINE * (column.right - column.left)

    def end(self) -> None:
        """Leave out single cells at the end, which may be the text below the table."""
        while self._rows and len(self._rows[-1].cells) < 2:
            self._rows.pop()
        self.count = self._rows[-1].end if self._rows else 0

    def is_table(self) -> bool:
        """Return whether the lines are clearly a table."""
        columns = self._column_cells()
        full_rows = [row for row in self._rows if len(row.cells) > 1]
        least = _MIN_ROWS if len(columns) > 2 else _MIN_ROWS_OF_PAIRS
        if len(columns) < 2 or len(full_rows) < least:
            return False
        if sum(map(len, columns)) < _MIN_FILLED * len(columns) * len(self._rows):
            return False
        wordy = 0
        for cells in columns:
            words = median(len(cell.text.split()) for cell in cells)
            wordy += words > _MAX_WORDS
        if wordy > 1 or not all(_is_aligned(cells) for cells in columns):
            return False
        if len(columns) > 2:
            return True
        return wordy == 0 and _are_pairs(columns)

    def _column_cells(self) -> list[list[Fragment]]:
        """Return the first lines of the cells of each column, from the left."""
        columns: dict[int, list[Fragment]] = {number: [] for number in self._order()}
        for row in self._rows:
            for number, cell in row.boxes.items():
                columns[number].append(cell)
        return list(columns.values())

    def _order(self) -> list[int]:
        """Return the numbers of the columns that hold cells, from the left."""
        used = {number for row in self._rows for number in row.boxes}
        return sorted(used, key=lambda number: self._columns[number].left)

    def table(self) -> PageTable:
        """Return the table."""
        order = self._order()
        if is_right_to_left(list(chain(*self._column_cells()))):
            order.reverse()
        rows = [[row.cells.get(number, []) for number in order] for row in self._rows]
        edges = [self._columns[number].left for number in order]
        return _with_header(rows, [row.bold for row in self._rows], edges)


def _is_near(cell: Fragment, column: _Column) -> bool:
    gap = _MIN_GAP * cell.height
    return cell.left < column.right + gap and cell.right > column.left - gap


def _is_aligned(cells: Sequence[Fragment]) -> bool:
    """Return whether most cells of a column have a common left edge, right edge or middle."""
    sides = [(cell.left, cell.right, (cell.left + cell.right) / 2) for cell in cells]
    near = _ALIGNED * median(cell.height for cell in cells)
    for places in zip(*sides, strict=True):
        middle = median(places)
        aligned = sum(abs(place - middle) <= near for place in places)
        if aligned >= _MIN_ALIGNED * len(places):
            return True
    return False


def _are_pairs(columns: Sequence[Sequence[Fragment]]) -> bool:
    """Return whether two columns are names and numbers, and not the marks and texts of a list."""
    has_numbers = False
    for cells in columns:
        if all(_MARK.fullmatch(cell.text) for cell in cells):
            return False
        numbers = sum(has_digit(cell.text) for cell in cells)
        has_numbers |= numbers >= _MIN_NUMBERS * len(cells)
    return has_numbers


def _follow_rows(lines: Sequence[Line], first: int) -> _Rows:
    """Return the lines from one on that keep the same columns apart."""
    rows = _Rows()
    for number in range(first, len(lines)):
        line = lines[number]
        if number > first and not _follows(lines[number - 1], line):
            break
        if not line.box.upright or not rows.add(line):
            break
    rows.end()
    return rows


def _follows(above: Line, line: Line) -> bool:
    pitch = above.box.bottom - line.box.bottom
    height = max(line.box.height, above.box.height)
    return 0.5 * line.box.height < pitch <= _MAX_PITCH * height
