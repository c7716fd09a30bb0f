"""Grids of a PDF page: the straight strokes that are drawn around the cells of tables.

A grid is a group of horizontal and vertical strokes that cross each other. Frames and filled boxes count as the strokes
of their sides. Curves, and pages with more strokes than tables have, are left alone.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import neg
from typing import Any, TypeAlias

from selfrag.extensions.pdf.raised import Box
from selfrag.extensions.pdf.text import turn_box

_MAX_OBJECTS = 5000  # of a page that are looked at
_MAX_SEGMENTS = 20_000  # of the paths of a page
_MAX_RULES = 400  # strokes of a page in one direction; a drawing has more
_THIN = 3.0  # width of a stroke, in points
_SHORTEST_STROKE = 8.0  # points; shorter ones are ignored
_SAME_EDGE = 4.0  # points up to which two edges are one
_NEAR = 2.5  # distance at which two strokes touch, or are one
_FRAME_SEGMENTS = 5  # of a rectangle


@dataclass(slots=True)
class Rule:
    """A straight stroke, horizontal or vertical."""

    position: float  # y of a horizontal one, x of a vertical one
    start: float
    end: float


@dataclass(slots=True)
class Grid:
    """Strokes that bound rows and columns."""

    columns: list[float]  # edges of the columns from the left
    rows: list[float]  # edges of the rows from the top, falling
    # row and column of cells without a stroke above
    open_above: set[tuple[int, int]] = field(default_factory=set)
    # and of those without a stroke on their left
    open_left: set[tuple[int, int]] = field(default_factory=set)

    @property
    def box(self) -> Box:
        """Return the place of the whole grid."""
        return self.columns[0], self.rows[-1], self.columns[-1], self.rows[0]

    def row_at(self, y: float) -> int:
        """Return the number of the row at a height inside the grid."""
        return bisect_right(self.rows, -y, 1, len(self.rows) - 1, key=neg) - 1

    def column_at(self, x: float) -> int:
        """Return the number of the column at a place inside the grid."""
        return bisect_right(self.columns, x, 1, len(self.columns) - 1) - 1


_Points: TypeAlias = list[tuple[float, float]]


def find_grids(page: Any, turns: int) -> list[Grid]:
    """Return the grids of a page with two rows and two columns or more.

    Args:
        page: of PDFium.
        turns: quarter turns of the text, which the strokes are turned by.
    """
    horizontal, vertical = list[Rule](), list[Rule]()
    for left, bottom, right, top in _stroke_boxes(page):
        left, bottom, right, top = turn_box((left, bottom, right, top), turns)
        if top - bottom <= _THIN and right - left >= _SHORTEST_STROKE:
            horizontal.append(Rule((bottom + top) / 2, left, right))
        elif right - left <= _THIN and top - bottom >= _SHORTEST_STROKE:
            vertical.append(Rule((left + right) / 2, bottom, top))
    horizontal, vertical = _join_rules(horizontal), _join_rules(vertical)
    if (
        len(horizontal) < 2
        or not vertical
        or max(len(horizontal), len(vertical)) > _MAX_RULES
    ):
        return []
    grids: list[Grid] = []
    for rows, columns in _groups(horizontal, vertical):
        grid = _build_grid(rows, columns)
        if len(grid.rows) > 2 and len(grid.columns) > 2:
            grids.append(grid)
    return grids


def _stroke_boxes(page: Any) -> list[Box]:
    """Return the boxes of the straight strokes of a page; a wide or high box gives its four sides."""
    from pypdfium2 import raw

    boxes: list[Box] = []
    segments_left = _MAX_SEGMENTS
    sides = [ctypes.c_float() for _ in range(4)]
    for number in range(min(raw.FPDFPage_CountObjects(page), _MAX_OBJECTS)):
        item = raw.FPDFPage_GetObject(page, number)
        if raw.FPDFPageObj_GetType(item) != raw.FPDF_PAGEOBJ_PATH:
            continue
        count = raw.FPDFPath_CountSegments(item)
        segments_left -= count
        if count < 2 or segments_left < 0:
            continue
        if count > _FRAME_SEGMENTS:
            boxes += _segment_boxes(item, count)
        elif raw.FPDFPageObj_GetBounds(item, *sides):
            left, bottom, right, top = (side.value for side in sides)
            boxes += _box_sides(left, bottom, right, top)
    return boxes


def _box_sides(left: float, bottom: float, right: float, top: float) -> list[Box]:
    if min(right - left, top - bottom) <= _THIN:
        return [(left, bottom, right, top)]
    across = [(left, bottom, right, bottom), (left, top, right, top)]
    return [*across, (left, bottom, left, top), (right, bottom, right, top)]


def _segment_boxes(item: Any, count: int) -> list[Box]:
    """Return the boxes of the segments of a path; none where it has a curve."""
    from pypdfium2 import raw

    matrix = raw.FS_MATRIX()
    raw.FPDFPageObj_GetMatrix(item, matrix)
    x, y = ctypes.c_float(), ctypes.c_float()
    boxes: list[Box] = []
    points: _Points = []
    for number in range(count):
        segment = raw.FPDFPath_GetPathSegment(item, number)
        kind = raw.FPDFPathSegment_GetType(segment)
        if kind not in (raw.FPDF_SEGMENT_LINETO, raw.FPDF_SEGMENT_MOVETO):
            return []
        raw.FPDFPathSegment_GetPoint(segment, x, y)
        point = (
            matrix.a * x.value + matrix.c * y.value + matrix.e,
            matrix.b * x.value + matrix.d * y.value + matrix.f,
        )
        if kind == raw.FPDF_SEGMENT_MOVETO:
            points = []
        points.append(point)
        if len(points) > 1:
            boxes.append(_box_of(*points[-2:]))
        if raw.FPDFPathSegment_GetClose(segment) and len(points) > 2:
            boxes.append(_box_of(points[-1], points[0]))
    return boxes


def _box_of(first: tuple[float, float], second: tuple[float, float]) -> Box:
    (x, y), (other_x, other_y) = first, second
    return min(x, other_x), min(y, other_y), max(x, other_x), max(y, other_y)


def _join_rules(rules: Sequence[Rule]) -> list[Rule]:
    """Return the strokes with those made one that continue each other."""
    joined: list[Rule] = []
    line: list[Rule] = []  # those at one position
    for rule in sorted(rules, key=lambda rule: rule.position):
        if line and rule.position - line[0].position > _NEAR:
            joined += _join_line(line)
            line = []
        line.append(rule)
    return joined + _join_line(line)


def _join_line(line: Sequence[Rule]) -> list[Rule]:
    joined: list[Rule] = []
    for rule in sorted(line, key=lambda rule: rule.start):
        if joined and rule.start - joined[-1].end <= _NEAR:
            joined[-1].end = max(joined[-1].end, rule.end)
        else:
            joined.append(Rule(line[0].position, rule.start, rule.end))
    return joined


def _groups(
    horizontal: Sequence[Rule], vertical: Sequence[Rule]
) -> list[tuple[list[Rule], list[Rule]]]:
    """Return the groups of strokes that are connected by crossings."""
    groups: list[tuple[list[Rule], list[Rule]]] = []
    waiting_rows, waiting_columns = list(horizontal), list(vertical)
    while waiting_rows:
        rows, columns = [waiting_rows.pop()], list[Rule]()
        new_rows = list(rows)
        while new_rows:
            new_columns, waiting_columns = _crossing(waiting_columns, new_rows)
            new_rows, waiting_rows = _crossing(waiting_rows, new_columns)
            columns += new_columns
            rows += new_rows
        groups.append((rows, columns))
    return groups


def _crossing(
    rules: Sequence[Rule], others: Sequence[Rule]
) -> tuple[list[Rule], list[Rule]]:
    """Return the strokes that cross one of some strokes in the other direction, and the rest."""
    crossing, apart = list[Rule](), list[Rule]()
    for rule in rules:
        crosses = any(_cross(rule, stroke) for stroke in others)
        (crossing if crosses else apart).append(rule)
    return crossing, apart


def _cross(first: Rule, second: Rule) -> bool:
    crosses_first = first.start - _NEAR <= second.position <= first.end + _NEAR
    starts_before = second.start - _NEAR <= first.position
    return crosses_first and starts_before and first.position <= second.end + _NEAR


def _build_grid(rows: Sequence[Rule], columns: Sequence[Rule]) -> Grid:
    """Return the grid of connected strokes. Where the outer strokes are missing, the others end at its edges."""
    column_edges = [column.position for column in columns]
    row_edges = [row.position for row in rows]
    for rules, edges in ((rows, column_edges), (columns, row_edges)):
        if rules:
            edges.append(min(rule.start for rule in rules))
            edges.append(max(rule.end for rule in rules))
    grid = Grid(_distinct(column_edges), _distinct(row_edges)[::-1])
    grid.open_above = set(_open_sides(rows, grid.rows, grid.columns))
    for column, row in _open_sides(columns, grid.columns, grid.rows):
        grid.open_left.add((row, column))
    return grid


def _open_sides(
    rules: Sequence[Rule], edges: Sequence[float], crossed: Sequence[float]
) -> Iterator[tuple[int, int]]:
    """Yield edge and cell along it, of cells without a stroke there; the outer edges are closed."""
    for number, edge in enumerate(edges[1:-1], 1):
        strokes = [rule for rule in rules if abs(rule.position - edge) <= _THIN]
        for cell, (begin, end) in enumerate(pairwise(crossed)):
            middle = (begin + end) / 2
            if not any(rule.start <= middle <= rule.end for rule in strokes):
                yield number, cell


def _distinct(edges: Sequence[float]) -> list[float]:
    """Return the edges from the smallest, without those that are near the one before."""
    distinct: list[float] = []
    for edge in sorted(edges):
        if not distinct or edge - distinct[-1] > _SAME_EDGE:
            distinct.append(edge)
    return distinct
