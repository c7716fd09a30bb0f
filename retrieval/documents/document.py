"""What a reader makes of a file: its text, the sections and tables in it, and what was left out.

Offsets are positions in the text of the document. A reader of a new format builds a `Document`, usually with a
`DocumentBuilder`, and is named by a `retrieval.documents.DocumentFormat`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from retrieval.corpus import Scalar
from retrieval.sentences import Span
from selfrag.common.errors import UserError
from selfrag.common.reading import regular_file

MAX_HEADING = 1000
"""Characters of a heading. A longer one is text, since every passage below repeats its headings."""
MAX_TITLES = 50_000_000
"""Characters of all titles of a document, which repeat the headings above. Further ones have one heading."""
MAX_BYTES = 1 << 28
"""Bytes of a file, and of what a Word file unpacks to."""
CELL_SEPARATOR = " | "
"""Stands between the cells of a row. A blank cell keeps its place."""


@dataclass(frozen=True, slots=True)
class ReadingOptions:
    """How documents are read."""

    # languages of tesseract, such as `eng+deu`, for pages without text; None recognises nothing
    ocr: str | None = None
    # pages with text that are wanted from the beginning of a PDF; None reads all
    pages: int | None = None


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a document under one title."""

    title: str  # path of headings, joined by ` > `, or the name of the document
    start: int  # offset of its first character in the document, after the heading
    end: int  # offset after its last
    # further columns of its passages, such as `page`
    metadata: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Table:
    """A table within the text of a document, which is cut between its rows only."""

    # offsets of the header row, which each passage of the table repeats; None without one
    header: Span | None
    rows: tuple[Span, ...]  # offsets of the other rows, rising

    @property
    def span(self) -> Span:
        """Offsets of the whole table."""
        rows = self.rows if self.header is None else (self.header, *self.rows)
        return rows[0][0], rows[-1][1]

    def moved(self, by: int) -> Table:
        """Return the table of a text that stands so many characters later in a longer one."""
        rows = tuple((start + by, end + by) for start, end in self.rows)
        if self.header is None:
            return Table(None, rows)
        return Table((self.header[0] + by, self.header[1] + by), rows)


@dataclass(frozen=True, slots=True)
class Sheet:
    """A sheet of a workbook, whose rows are read as those of a table."""

    name: str
    columns: list[str]  # names, each once
    rows: list[list[str]]  # cells by column; a blank row keeps its place


@dataclass(frozen=True, slots=True)
class Skipped:
    """Content of a file that a reader could not turn into text."""

    what: str  # for example `pages 2, 3`
    why: str  # for example `no text; scans need text recognition (OCR)`


@dataclass(frozen=True, slots=True)
class Document:
    """The text of a file and its structure."""

    text: str
    sections: list[Section]  # in reading order, not overlapping
    # in reading order, each inside one section
    tables: list[Table] = field(default_factory=list)
    pages: int | None = None  # of a format that has pages
    skipped: list[Skipped] = field(default_factory=list)
    sheets: list[Sheet] = field(default_factory=list)  # in place of a text


class Outline:
    """Collects the sections of a text, each under the path of the headings above it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._path: list[tuple[int, str]] = []  # level and title of each open heading
        self.begin = 0  # offset at which the text of the open section starts
        self._heading = 0  # offset of its heading
        self._titles_left = MAX_TITLES
        self.sections: list[Section] = []

    def close(self, end: int, filled: bool, level: int = 0) -> None:
        """End the open section. A heading with no text of its own or below it becomes a section of its own text."""
        title = self._title()
        if filled:
            self.sections.append(Section(title, self.begin, end))
        elif self._path and level <= self._path[-1][0]:
            self.sections.append(Section(title, self._heading, end))

    def _title(self) -> str:
        """Return the path of headings, without the outer ones where all titles together would be too long."""
        headings = [title for _, title in self._path if title]
        length = sum(len(title) for title in headings)
        while len(headings) > 1 and length > self._titles_left:
            length -= len(headings.pop(0))
        self._titles_left -= length
        return " > ".join(headings) or self._name

    def open(self, level: int, title: str, heading: int, begin: int) -> None:
        """Begin a section, given the level and title of its heading and the offsets of the heading and of its text."""
        while self._path and self._path[-1][0] >= level:
            self._path.pop()
        self._path.append((level, title))
        self._heading, self.begin = heading, begin


class DocumentBuilder:
    """Builds a document from headings, paragraphs and tables in reading order.

    Args:
        name: title of what stands above the first heading.
    """

    def __init__(self, name: str) -> None:
        self._outline = Outline(name)
        self._parts: list[str] = []
        self._length = 0
        self._tables: list[Table] = []
        self._skipped: list[Skipped] = []

    def add_paragraph(self, text: str) -> None:
        """Append a paragraph; a blank one is left out."""
        text = text.strip()
        if text:
            self._parts.append(text + "\n\n")
            self._length += len(self._parts[-1])

    def add_heading(self, level: int, text: str) -> None:
        """Begin a section. Level 0 is a title above all levels; a heading of over 1,000 characters is a paragraph."""
        text = " ".join(text.split())
        if len(text) > MAX_HEADING:
            self.add_paragraph(text)
        elif text:
            self._close(level)
            heading = self._length
            self.add_paragraph(text)
            self._outline.open(level, text, heading, self._length)

    def add_table(self, rows: Sequence[Sequence[str]], *, header: bool = True) -> None:
        """Append a table row by row; rows in which every cell is blank are left out.

        Args:
            rows: the texts of the cells of each row. White space inside a cell becomes one space.
            header: whether the first row names the columns.
        """
        text, table = lay_out_table(rows, self._length, header=header)
        if table is not None:
            self._parts.append(text + "\n")
            self._length += len(text) + 1
            self._tables.append(table)

    def skip(self, what: str, why: str) -> None:
        """Record content that could not be read."""
        self._skipped.append(Skipped(what, why))

    def build(self) -> Document:
        """Return the document."""
        self._close()
        return Document(
            "".join(self._parts),
            self._outline.sections,
            self._tables,
            skipped=self._skipped,
        )

    def _close(self, level: int = 0) -> None:
        self._outline.close(self._length, self._length > self._outline.begin, level)


def lay_out_table(
    rows: Sequence[Sequence[str]], start: int, *, header: bool
) -> tuple[str, Table | None]:
    """Return a table as text, a row a line, and where its rows stand; None where every cell is blank.

    Args:
        rows: the texts of the cells of each row. White space inside a cell becomes one space.
        start: offset in its document at which the text begins.
        header: whether the first row names the columns.
    """
    lines: list[str] = []
    spans: list[Span] = []
    for row in rows:
        cells = [" ".join(cell.split()) for cell in row]
        if not any(cells):
            continue
        line = CELL_SEPARATOR.join(cells).rstrip()
        lines.append(line + "\n")
        spans.append((start, start + len(line)))
        start += len(line) + 1
    if not spans:
        return "", None
    if header:
        return "".join(lines), Table(spans[0], tuple(spans[1:]))
    return "".join(lines), Table(None, tuple(spans))


def check_size(path: Path) -> None:
    """Raise UserError for a file that is too large to be read whole."""
    if regular_file(path).stat().st_size > MAX_BYTES:
        raise UserError(f"{path}: more than {MAX_BYTES:,} bytes; split it")
