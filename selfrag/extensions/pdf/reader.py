"""Reads PDF files: one section a page, titled by the bookmarks.

PDFium reads the file. The order of the text is that of `layout`. Values of filled forms and notes written on a page
stand where they are shown.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from selfrag.extensions.pdf.layout import (
    Fragment,
    Line,
    build_lines,
    insert_fragment,
    reading_order,
)
from selfrag.extensions.pdf.line_ends import LineJoiner
from selfrag.extensions.pdf.ocr import recognise_page
from selfrag.extensions.pdf.page_tables import (
    PageBlock,
    PageTable,
    find_tables,
    repeat_headers,
    take_grid_tables,
)
from selfrag.extensions.pdf.raised import Box
from selfrag.extensions.pdf.rules import find_grids
from selfrag.extensions.pdf.text import FragmentReader, take_notes, turn_box
from selfrag.interface import (
    MAX_HEADING,
    Document,
    ReadingOptions,
    Section,
    Skipped,
    Table,
    UserError,
    check_size,
    count_of,
    lay_out_table,
    require,
)

_MAX_DEPTH = 100  # levels of bookmarks
_MAX_BOOKMARKS = 100_000
_PAGES = 2_000
_PAGE_BYTES = 16  # a file may have so many pages, and one more for so many bytes: none repeats a page
# pages in a row that are not there; the file only says that it has them
_MAX_MISSING = 1000
_MAX_OBJECTS = 1000  # of a page that are looked at for images
_MAX_NAMED = 20  # ranges of pages that are named
_FEW_LETTERS = 40  # letters of a scanned page that may be a stamp or a page number
_SCAN = 0.5  # of the area of a page that an image covers
_TAIL = 2048  # bytes in which the mark of the end of a file stands
_NO_TEXT = "no text; scans need text recognition (--ocr eng)"
_OUTSIDE = "text beside the page, which no reader sees"
_HARDLY_TEXT = (
    "hardly any text beside a large image; scans need text recognition (--ocr eng)"
)


@dataclass(slots=True)
class _Page:
    """What a page gave."""

    number: int
    blocks: list[PageBlock] = field(default_factory=list)
    is_scan: bool = False
    unmapped: int = 0  # characters that the font does not name
    outside: int = 0  # characters beside the page
    is_damaged: bool = False
    failure: str | None = None  # why the text of a scan was not recognised

    @property
    def lines(self) -> list[str]:
        """Return the texts of its lines, those of tables included."""
        lines: list[str] = []
        for block in self.blocks:
            lines += block.lines if isinstance(block, PageTable) else [block.text]
        return lines


def read_pdf(
    path: Path,
    name: str,
    options: ReadingOptions | None = None,
    report_progress: Callable[[], None] | None = None,
) -> Document:
    """Read the text of the pages, each a section with its number.

    Args:
        path: the file.
        name: title of pages without bookmarks.
        options: which pages are read, and whether scans are.
        report_progress: is called after each page whose text was recognised, which takes seconds.
    """
    require("pypdfium2", extra="documents")
    check_size(path)
    with closing(_open(path)) as document:
        try:
            titles = _read_titles(document)
            reader = _PageReader(
                document, path, options or ReadingOptions(), report_progress
            )
            pages = reader.read()
            skipped = _skipped_parts(document, path)
        except RuntimeError as error:  # of PDFium
            raise _unreadable(path, error) from error
    repeat_headers([page.blocks for page in pages])
    joiner = LineJoiner(line for page in pages for line in page.lines)
    parts = list[str]()
    sections = list[Section]()
    tables = list[Table]()
    title = ""
    length = 0
    for page in pages:
        title = titles.get(page.number, title)
        text, page_tables = _page_text(page, joiner, length)
        sections.append(
            Section(title or name, length, length + len(text), {"page": page.number})
        )
        parts.append(text)
        tables += page_tables
        length += len(text)
    text = "".join(parts)
    skipped = _skipped_pages(pages) + skipped
    if pages and not text.strip():
        reasons = "; ".join(f"{part.what}: {part.why}" for part in skipped)
        raise UserError(
            f"{path}: no text in the PDF's {count_of(len(pages), 'pages')} ({reasons or 'they are blank'})"
        )
    return Document(text, sections, tables, pages=len(pages), skipped=skipped)


def _unreadable(path: Path, error: Exception) -> UserError:
    return UserError(f"{path}: cannot be read as PDF: {str(error)[:200]}")


def _open(path: Path) -> Any:
    """Open a PDF without a password."""
    import pypdfium2
    from pypdfium2 import raw

    try:
        document = pypdfium2.PdfDocument(path)
    except pypdfium2.PdfiumError as error:
        if error.err_code not in (raw.FPDF_ERR_PASSWORD, raw.FPDF_ERR_SECURITY):
            raise _unreadable(path, error) from error
        document = pypdfium2.PdfDocument(_decrypt(path))
    if document.get_formtype() != raw.FORMTYPE_NONE:
        document.init_forms()
    return document


def _decrypt(path: Path) -> bytes:
    """Return a PDF without its encryption, if its owner password is empty, which PDFium does not try."""
    import pypdf

    try:
        reader = pypdf.PdfReader(path)
        is_open = reader.decrypt("") != pypdf.PasswordType.NOT_DECRYPTED
        decrypted = io.BytesIO()
        if is_open:
            pypdf.PdfWriter(clone_from=reader).write(decrypted)
    except Exception as error:  # pypdf raises many kinds on damaged files
        raise _unreadable(path, error) from error
    if not is_open:
        raise UserError(f"{path}: the PDF is encrypted; save it without a password")
    return decrypted.getvalue()


def _read_titles(document: Any) -> dict[int, str]:
    """Return the path of bookmarks by the page, from 1, on which it begins; the first of each page."""
    titles: dict[int, str] = {}
    path: list[str] = []
    for count, bookmark in enumerate(document.get_toc(max_depth=_MAX_DEPTH)):
        if count == _MAX_BOOKMARKS:
            break
        title = " ".join(bookmark.get_title().split())[:MAX_HEADING]
        path[bookmark.level :] = [title]
        destination = bookmark.get_dest()
        page = destination.get_index() if destination is not None else None
        if page is not None and page >= 0:
            titles.setdefault(page + 1, " > ".join(filter(None, path))[:MAX_HEADING])
    return titles


class _PageReader:
    """Reads the pages of a document one by one."""

    def __init__(
        self,
        document: Any,
        path: Path,
        options: ReadingOptions,
        report_progress: Callable[[], None] | None,
    ) -> None:
        self._document, self._path, self._options = document, path, options
        self._report_progress = report_progress

    def read(self) -> list[_Page]:
        """Return the pages that are wanted. A damaged one is told as such."""
        import pypdfium2

        pages: list[_Page] = []
        missing = with_text = 0
        count = len(self._document)
        if (
            self._options.pages is None
            and count > _PAGES + self._path.stat().st_size // _PAGE_BYTES
        ):
            raise UserError(
                f"{self._path}: cannot be read as PDF: it names"
                f" {count_of(count, 'pages', form=',')}, too many for its size"
            )
        for number in range(1, count + 1):
            try:
                page = self._read_page(number)
                missing = 0
            except pypdfium2.PdfiumError:
                page = _Page(number, is_damaged=True)
                missing += 1
            if missing > _MAX_MISSING:
                raise UserError(
                    f"{self._path}: cannot be read as PDF: it names pages that are not there"
                )
            pages.append(page)
            with_text += bool(page.blocks)
            if with_text == self._options.pages:
                break
        return pages

    def _read_page(self, number: int) -> _Page:
        """Read the text of a page and what is written into its fields and notes."""
        with closing(self._document[number - 1]) as page:
            notes, is_changed = take_notes(page)
            if not is_changed:
                return self._read_text(page, number, notes)
        with closing(self._document[number - 1]) as page:
            return self._read_text(page, number, notes)

    def _read_text(
        self, page: Any, number: int, notes: Sequence[tuple[str, Box]]
    ) -> _Page:
        with closing(page.get_textpage()) as textpage:
            reader = FragmentReader(textpage)
            fragments = reader.read()
        page_box = turn_box(page.get_bbox(), reader.turns)
        outside = [item for item in fragments if not _is_on(item, page_box)]
        if outside:
            fragments = [item for item in fragments if _is_on(item, page_box)]
        grids = find_grids(page, reader.turns)
        shown = [Fragment(text, *turn_box(box, reader.turns)) for text, box in notes]
        if grids:  # a field may stand in a cell
            for fragment in shown:
                insert_fragment(fragments, fragment)
        fragments, grid_tables = take_grid_tables(fragments, grids)
        ordered = reading_order(fragments)
        if not grids:
            for fragment in shown:
                insert_fragment(ordered, fragment)
        blocks = find_tables(build_lines(ordered), grid_tables)
        made = _Page(number, blocks, unmapped=reader.unmapped)
        made.outside = sum(len(fragment.text) for fragment in outside)
        letters = sum(map(len, made.lines))
        made.is_scan = letters < _FEW_LETTERS and _is_scan(page, letters)
        if made.is_scan and self._options.ocr is not None:
            recognised: list[Line] = []
            try:
                recognised = recognise_page(page, self._options.ocr)
            except UserError as error:
                made.failure = str(error)
            if self._report_progress is not None:
                self._report_progress()
            if sum(len(line.text) for line in recognised) > letters:
                return _Page(number, list(recognised))
        return made


def _is_on(fragment: Fragment, page_box: Box) -> bool:
    """Return whether some of a text stands on the page, where a reader sees it; text in other directions does."""
    if not fragment.upright:  # its box is turned with it
        return True
    left, bottom, right, top = page_box
    across = fragment.right > left and fragment.left < right
    return across and fragment.top > bottom and fragment.bottom < top


def _is_scan(page: Any, letters: int) -> bool:
    """Return whether a page shows what is not text: a large image or, on a page without letters, anything."""
    from pypdfium2 import raw

    width, height = page.get_size()
    for place, item in enumerate(page.get_objects(max_depth=3)):
        if place == _MAX_OBJECTS:
            break
        if item.type == raw.FPDF_PAGEOBJ_TEXT:
            continue
        if not letters:
            return True
        left, bottom, right, top = item.get_bounds()
        if (
            item.type == raw.FPDF_PAGEOBJ_IMAGE
            and (right - left) * (top - bottom) > _SCAN * width * height
        ):
            return True
    return False


def _page_text(page: _Page, joiner: LineJoiner, start: int) -> tuple[str, list[Table]]:
    """Return the paragraphs and tables of a page with a blank line after each, and where the tables stand.

    Args:
        page: the page.
        joiner: joins the lines of a paragraph or a cell.
        start: offset of the page in its document.
    """
    parts, tables, length = list[str](), list[Table](), start
    paragraph: list[str] = []
    for block in [*page.blocks, None]:
        if paragraph and (not isinstance(block, Line) or block.starts_paragraph):
            parts.append(joiner.join(paragraph) + "\n\n")
            length += len(parts[-1])
            paragraph = []
        if isinstance(block, Line):
            paragraph.append(block.text)
        elif block is not None:
            rows = block.rows if block.header is None else [block.header, *block.rows]
            texts = [[joiner.join(cell) for cell in row] for row in rows]
            text, table = lay_out_table(texts, length, header=block.header is not None)
            if table is not None:
                parts.append(text + "\n")
                length += len(parts[-1])
                tables.append(table)
    return "".join(parts) or "\n\n", tables


def _skipped_pages(pages: Sequence[_Page]) -> list[Skipped]:
    """Return which pages could not be turned into text, by reason."""
    reasons: dict[str, list[int]] = {}
    for page in pages:
        if page.is_damaged:
            reasons.setdefault("damaged", []).append(page.number)
        elif page.failure is not None:
            reasons.setdefault(page.failure, []).append(page.number)
        elif page.is_scan and not page.blocks:
            reasons.setdefault(_NO_TEXT, []).append(page.number)
        elif page.is_scan:
            reasons.setdefault(_HARDLY_TEXT, []).append(page.number)
        if page.outside:
            reasons.setdefault(_OUTSIDE, []).append(page.number)
        if page.unmapped:
            reasons.setdefault(
                "characters of a font that does not say which letters they are", []
            ).append(page.number)
    return [
        Skipped(_name_pages(numbers), reason) for reason, numbers in reasons.items()
    ]


def _name_pages(numbers: Sequence[int]) -> str:
    """Return `page 2` or `pages 2, 3, 7-9`."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1] = [ranges[-1][0], number]
        else:
            ranges.append([number])
    separators = [
        "-" if len(bounds) == 2 and bounds[1] - bounds[0] > 1 else ", "
        for bounds in ranges
    ]
    names = [
        separator.join(map(str, bounds))
        for separator, bounds in zip(separators, ranges, strict=True)
    ]
    listed = ", ".join(names[:_MAX_NAMED])
    if len(names) > _MAX_NAMED:
        listed += f" and others, {len(numbers):,} in all"
    return f"{'pages' if len(numbers) > 1 else 'page'} {listed}"


def _skipped_parts(document: Any, path: Path) -> list[Skipped]:
    """Return what a PDF holds beside its pages, and whether its end is missing."""
    from pypdfium2 import raw

    skipped: list[Skipped] = []
    attachments = document.count_attachments()
    if attachments:
        skipped.append(
            Skipped(
                f"{count_of(attachments, 'attached files', form=',')}",
                "not read; save them as files and name those",
            )
        )
    if document.get_formtype() in (raw.FORMTYPE_XFA_FULL, raw.FORMTYPE_XFA_FOREGROUND):
        skipped.append(
            Skipped(
                "XFA form", "only what its pages show is read; print it to a new PDF"
            )
        )
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL))
        if b"%%EOF" not in file.read():
            skipped.append(
                Skipped(
                    "end of the file",
                    "missing; pages may be lost, fetch the file again",
                )
            )
    return skipped
