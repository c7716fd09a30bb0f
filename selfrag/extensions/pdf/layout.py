"""Reading order of a page: pieces of text with their places become lines, column by column.

A file draws text in any order. Most draw it in reading order, so the order of drawing is kept, with one exception:
text columns that are drawn line by line, across the gap between them. Such a gap holds over several lines, the text on
both sides of it fills its column, and the drawing alternates between the sides. Cells of a table are short or are
drawn in another way, so tables are not torn apart.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from statistics import median

from selfrag.extensions.pdf.line_ends import UNSPACED

MAX_FRAGMENTS = 3000
"""Pieces of text of a page that are looked at for columns; a page with more keeps the order in which it is drawn."""
_MAX_DEPTH = 8  # divisions of a region of a page
_MAX_GAPS = 12  # gaps of one row that are followed
_MIN_GUTTER = 0.6  # width of the gap between columns, in heights of a line
_MIN_LINES = 3  # on each side of a gap
_MIN_WORDS = 3  # in the middle fragment on each side; cells of tables have fewer
_MIN_FILL = 0.55  # width of the middle line of a column, as a share of the column
# changes of side while drawing, as a share of the most there could be
_MIN_ALTERNATION = 0.6
# distance of two lines that begins a paragraph, in usual distances
_PARAGRAPH_PITCH = 1.4
_MAX_PITCH = 1.6  # usual distance of lines at most, in heights of a line
_FONT_CHANGE = 1.2  # ratio of heights that begins a paragraph
_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")
_SENTENCE_END = re.compile(
    r"[.!?:;\u2026\u3002\uff01\uff1f\uff1a\uff1b\u061f][\"'\u201d\u2019\u00bb)\]]*$"
)


@dataclass(slots=True)
class Fragment:
    """A piece of one line without wide gaps. The y axis points upwards, as in PDF.

    One without text keeps the place of a table.
    """

    text: str
    left: float
    bottom: float
    right: float
    top: float
    upright: bool = True  # whether it runs in the main direction of the page
    bold: bool = False

    @property
    def height(self) -> float:
        """Return the height of the line."""
        return self.top - self.bottom

    def copy(self) -> Fragment:
        """Return a fragment with the same values."""
        sides = self.left, self.bottom, self.right, self.top
        return Fragment(self.text, *sides, self.upright, self.bold)


@dataclass(slots=True)
class Line:
    """The fragments of one line."""

    text: str
    box: Fragment  # text of its first fragment, and the place of all
    starts_paragraph: bool = False
    # its fragments in the order of reading
    cells: list[Fragment] = field(default_factory=list)


@dataclass(slots=True)
class _Gutter:
    """A vertical gap that no fragment of some rows crosses, and the fragments on its sides, in the order of drawing."""

    left: float
    right: float
    last_row: int
    before: list[int]  # positions of the fragments left of it
    after: list[int]


def share_row(first: Fragment, second: Fragment, share: float = 0.5) -> bool:
    """Return whether two boxes overlap vertically by a share of the lower one."""
    overlap = min(first.top, second.top) - max(first.bottom, second.bottom)
    return overlap >= share * min(first.height, second.height)


def reading_order(fragments: Sequence[Fragment], depth: int = 0) -> list[Fragment]:
    """Return the fragments of a page in reading order; nothing is dropped."""
    if depth == _MAX_DEPTH or not 2 * _MIN_LINES <= len(fragments) <= MAX_FRAGMENTS:
        return list(fragments)
    gutter = _find_gutter(fragments)
    if gutter is None:
        return list(fragments)
    left = [fragments[position] for position in gutter.before]
    right = [fragments[position] for position in gutter.after]
    both = left + right
    middle = max(item.top for item in both) + min(item.bottom for item in both)
    inside = {*gutter.before, *gutter.after}
    above, below, turned = list[Fragment](), list[Fragment](), list[Fragment]()
    for position, fragment in enumerate(fragments):
        if position in inside:
            continue
        if not fragment.upright:
            turned.append(fragment)
        elif fragment.bottom + fragment.top > middle:
            above.append(fragment)
        else:
            below.append(fragment)
    columns = [left, right]
    if is_right_to_left(both):
        columns.reverse()
    ordered = list[Fragment]()
    for region in (above, *columns, below):
        ordered += reading_order(region, depth + 1)
    return ordered + turned


def insert_fragment(fragments: list[Fragment], fragment: Fragment) -> None:
    """Insert what is shown on a page, but drawn elsewhere: after its left neighbour, or after the text above it."""
    place, distance = len(fragments), 0.0
    is_beside = False
    for position, neighbour in enumerate(fragments[:MAX_FRAGMENTS]):
        if not neighbour.upright:
            continue
        if share_row(neighbour, fragment) and neighbour.left <= fragment.left:
            gap = fragment.left - neighbour.right
            if not is_beside or gap < distance:
                place, distance, is_beside = position + 1, gap, True
        elif not is_beside and neighbour.bottom >= fragment.bottom:
            gap = neighbour.bottom - fragment.bottom
            if place == len(fragments) or gap <= distance:
                place, distance = position + 1, gap
    fragments.insert(place, fragment)


def _find_gutter(fragments: Sequence[Fragment]) -> _Gutter | None:
    """Return the gap with the most text among those between two columns that are drawn line by line, or None."""
    rows = _rows(fragments)
    gutters, followed = list[_Gutter](), list[_Gutter]()
    for row in range(len(rows)):
        for left, right in _gaps(fragments, rows, row):
            if any(
                row <= old.last_row and left < old.right and right > old.left
                for old in followed
            ):
                continue
            gutter = _follow(fragments, rows, row, left, right)
            followed.append(gutter)
            if _separates_columns(fragments, gutter):
                gutters.append(gutter)
        followed = [old for old in followed if old.last_row > row]
    return max(gutters, key=lambda side: len(side.before + side.after), default=None)


def _rows(fragments: Sequence[Fragment]) -> list[list[int]]:
    """Return the positions of the upright fragments row by row, from the top."""
    order = [
        position for position, fragment in enumerate(fragments) if fragment.upright
    ]
    order.sort(key=lambda position: -fragments[position].top)
    rows: list[list[int]] = []
    for position in order:
        if rows and share_row(fragments[rows[-1][0]], fragments[position]):
            rows[-1].append(position)
        else:
            rows.append([position])
    return rows


def _gaps(
    fragments: Sequence[Fragment], rows: Sequence[Sequence[int]], row: int
) -> list[tuple[float, float]]:
    """Return the gaps in a row; lines of two columns may also stand a little apart, so the next row is looked at."""
    members = (fragments[position] for position in chain(*rows[row : row + 2]))
    boxes = sorted(members, key=lambda box: box.left)
    gaps: list[tuple[float, float]] = []
    end = boxes[0].right
    for box in boxes[1:]:
        if box.left - end >= _MIN_GUTTER * box.height:
            gaps.append((end, box.left))
        end = max(end, box.right)
    return gaps[:_MAX_GAPS]


def _follow(
    fragments: Sequence[Fragment],
    rows: Sequence[Sequence[int]],
    row: int,
    left: float,
    right: float,
) -> _Gutter:
    """Follow a gap downwards until a fragment crosses it."""
    gutter = _Gutter(left, right, row, [], [])
    for number, members in enumerate(rows[row:], row):
        left, right = gutter.left, gutter.right
        before, after = list[int](), list[int]()
        for position in members:
            box = fragments[position]
            if box.left + box.right < left + right:
                left = max(left, box.right)
                before.append(position)
            else:
                right = min(right, box.left)
                after.append(position)
        if right - left < _MIN_GUTTER * fragments[members[0]].height:
            break
        gutter.left, gutter.right, gutter.last_row = left, right, number
        gutter.before += before
        gutter.after += after
    _drop_tail(fragments, gutter)
    gutter.before.sort()
    gutter.after.sort()
    return gutter


def _drop_tail(fragments: Sequence[Fragment], gutter: _Gutter) -> None:
    """Leave out what stands below both columns after a gap, such as a heading of the text below or a page number."""
    for side, opposite in (
        (gutter.before, gutter.after),
        (gutter.after, gutter.before),
    ):
        if len(side) < _MIN_LINES or not opposite:
            continue
        end = min(fragments[position].bottom for position in opposite)
        for count in (1, 2):
            first, previous = fragments[side[-count]], fragments[side[-count - 1]]
            if first.top < end and previous.bottom - first.top > 0.5 * first.height:
                del side[-count:]
                break


def _separates_columns(fragments: Sequence[Fragment], gutter: _Gutter) -> bool:
    """Return whether there is running text on both sides of a gap, drawn line by line."""
    sides = []
    for positions in (gutter.before, gutter.after):
        members = [fragments[position] for position in positions]
        lines = _line_widths(members)
        if (
            len(lines) < _MIN_LINES
            or median(_count_words(member.text) for member in members) < _MIN_WORDS
        ):
            return False
        width = max(member.right for member in members) - min(
            member.left for member in members
        )
        if median(lines) < _MIN_FILL * width:
            return False
        sides.append(len(lines))
    is_before = set(gutter.before)
    drawn = [item in is_before for item in sorted(gutter.before + gutter.after)]
    changes = sum(side != following for side, following in pairwise(drawn))
    return changes >= _MIN_ALTERNATION * (2 * min(sides) - 1)


def _count_words(text: str) -> int:
    """Return the words of a text; three characters of a script without spaces count as one."""
    return len(text.split()) + len(UNSPACED.findall(text)) // 3


def _line_widths(fragments: Sequence[Fragment]) -> list[float]:
    """Return the width of each line of a column, given its fragments in the order of drawing."""
    lines: list[list[Fragment]] = []
    for fragment in fragments:
        if not lines or not share_row(lines[-1][-1], fragment):
            lines.append([])
        lines[-1].append(fragment)
    return [line[-1].right - line[0].left for line in lines]


def is_right_to_left(fragments: Sequence[Fragment]) -> bool:
    """Return whether most letters are of a script that runs to the left."""
    text = "".join(fragment.text for fragment in fragments)
    letters = sum(character.isalpha() for character in text)
    return 2 * len(_RIGHT_TO_LEFT.findall(text)) > letters


def build_lines(fragments: Sequence[Fragment]) -> list[Line]:
    """Return the lines of fragments in reading order, and where paragraphs start."""
    lines: list[Line] = []
    for fragment in fragments:
        if lines and _continues_line(lines[-1].box, fragment):
            box = lines[-1].box
            lines[-1].text += f" {fragment.text}"
            lines[-1].cells.append(fragment)
            box.left = min(box.left, fragment.left)
            box.right = max(box.right, fragment.right)
            box.bottom = min(box.bottom, fragment.bottom)
            box.top = max(box.top, fragment.top)
        else:
            lines.append(Line(fragment.text, fragment.copy(), cells=[fragment]))
    pitches = [above.box.bottom - line.box.bottom for above, line in pairwise(lines)]
    falling = [pitch for pitch in pitches if pitch > 0]
    usual_pitch = median(falling) if falling else 0.0
    for (above, line), pitch in zip(pairwise(lines), pitches, strict=True):
        line.starts_paragraph = _starts_paragraph(above, line, pitch, usual_pitch)
    return lines


def _continues_line(line: Fragment, fragment: Fragment) -> bool:
    """Return whether a fragment stands in the row of a line, beside it."""
    if not (line.text and fragment.text):  # a table
        return False
    beside = fragment.left >= line.right or fragment.right <= line.left
    return beside and share_row(line, fragment)


def _starts_paragraph(
    above: Line, line: Line, pitch: float, usual_pitch: float
) -> bool:
    if not (line.box.upright and above.box.upright):
        return line.box.upright != above.box.upright
    height, height_above = line.box.height, above.box.height
    if max(height, height_above) > _FONT_CHANGE * min(height, height_above):
        return True
    if pitch < 0:  # the next column: a sentence may go on there
        return _SENTENCE_END.search(above.text) is not None
    return pitch > _PARAGRAPH_PITCH * min(usual_pitch, _MAX_PITCH * height)
