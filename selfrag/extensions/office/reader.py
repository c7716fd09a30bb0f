"""Reads files of office programs by kreuzberg: sheets row by row, all other kinds as HTML, by the reader of web pages.

kreuzberg writes raised digits of some kinds as plain ones, `10⁶` as `106`. A file that has them is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import BadZipFile, ZipFile

from selfrag.interface import (
    MAX_BYTES,
    Document,
    Section,
    Skipped,
    UserError,
    check_size,
    count_of,
    read_html,
    require,
)

_SHEETS = (".xlsx", ".ods")
_RAISED = {
    ".rtf": ((), re.compile(rb"\\(?:super|sub|up|dn)\d*(?![a-z])")),
    ".odt": (("content.xml",), re.compile(rb'text-position="(?!0%)')),
    ".ods": (("content.xml",), re.compile(rb'text-position="(?!0%)')),
    ".xlsx": (
        ("xl/sharedStrings.xml", "xl/worksheets/sheet"),
        re.compile(rb'vertAlign val="s'),
    ),
}
"""Where a file tells of raised and lowered text: how the names of parts of a packed file begin; else in itself."""
_NO_VALUE = re.compile(rb"</f><v\s*(?:/>|></v>)|</f></c>")
"""A formula of a sheet whose value no program has computed."""
_UNREAD = {"ppt/notesSlides/": "speaker notes", "ppt/charts/": "charts"}
"""Parts of a presentation that kreuzberg does not read."""


def read_office(path: Path, name: str) -> Document:
    """Return the text of a file with its places: the column `slide`, or `sheet` and `row`.

    Raises:
        UserError: the file cannot be read, is too large, or has raised text that would become plain digits.
    """
    kreuzberg: Any = require("kreuzberg", extra="office")
    check_size(path)
    kind = path.suffix.lower()
    parts, skipped = _check_parts(path, kind)
    marker = token_hex(16)  # no file can hold it
    pages = kreuzberg.PageConfig(
        insert_page_markers=True, marker_format=f"\n\n{marker}{{page_num}}.\n\n"
    )
    config = kreuzberg.ExtractionConfig(
        output_format="html",
        pages=pages,
        use_cache=False,
        concurrency=kreuzberg.ConcurrencyConfig(max_threads=1),
    )
    try:
        result = kreuzberg.extract_file_sync(str(path), config=config)
    except kreuzberg.KreuzbergError as error:
        raise UserError(f"{path}: cannot be read ({error!s:.200})") from error
    for folder, what in _UNREAD.items():
        if any(part.startswith(folder) for part in parts):
            skipped.append(Skipped(what, "the library does not read them"))
    attached = result.metadata.get("attachments") or ()
    skipped += [Skipped(f"attachment {file!s:.80}", "save it") for file in attached]
    document = (
        _sheets(result) if kind in _SHEETS else _pages(result.content, marker, name)
    )
    return replace(document, skipped=[*document.skipped, *skipped])


def _check_parts(path: Path, kind: str) -> tuple[list[str], list[Skipped]]:
    """Return the names of the parts of a packed file, and what has no value; lost raised text is refused."""
    inside, raised = _RAISED.get(kind, ((), None))
    names: list[str] = []
    content = b""
    try:
        if kind in (".odt", ".ods", ".xlsx", ".pptx"):
            with ZipFile(path) as packed:
                names = packed.namelist()
                for name in names:
                    if inside and name.startswith(inside):
                        with packed.open(name) as part:
                            content += part.read(MAX_BYTES)
        elif raised is not None:
            content = path.read_bytes()
    except (OSError, BadZipFile, NotImplementedError, RuntimeError) as error:
        raise UserError(f"{path}: cannot be read ({error!s:.200})") from error
    if raised is not None and raised.search(content):
        raise UserError(
            f"{path}: it has raised or lowered text, which would be read as plain digits (106 for 10⁶); save it as docx"
        )
    empty = len(_NO_VALUE.findall(content)) if kind == ".xlsx" else 0
    if not empty:
        return names, []
    why = "no program has computed them; open and save the file in one"
    return names, [Skipped(f"values of {count_of(empty, 'formulas')}", why)]


def _sheets(result: Any) -> Document:
    """Return sheets row by row, each row a section of its own: `name: Ann, city: Oslo`."""
    names = result.metadata.get("sheet_names") or []
    parts: list[str] = []
    sections: list[Section] = []
    length = 0
    for table in result.tables or []:
        sheet = f"sheet {table.page_number}"
        if 0 < table.page_number <= len(names):
            sheet = str(names[table.page_number - 1])
        header, *rows = table.cells or [[]]
        for number, cells in enumerate(rows or [header], start=1 if rows else 0):
            text = _row_text(header if rows else [], cells)
            if text:
                place: dict[str, str | int] = {"sheet": sheet, "row": number}
                sections.append(Section(sheet, length, length + len(text), place))
                parts.append(f"{text}\n")
                length += len(text) + 1
    return Document("".join(parts), sections)


def _row_text(header: Sequence[str], cells: Sequence[str]) -> str:
    """Return the cells of a row with the names of their columns; blank cells are left out."""
    texts = []
    for column, cell in enumerate(cells):
        value = " ".join(cell.split())
        title = " ".join(header[column].split()) if column < len(header) else ""
        if value:
            texts.append(f"{title}: {value}" if title else value)
    return ", ".join(texts)


def _pages(markup: str, marker: str, name: str) -> Document:
    """Return what is written as HTML, each slide or page by itself where the markup has markers of them."""
    before, *pages = re.split(rf"<p>{marker}(\d+)\.</p>", markup)
    numbered = [("", before)] if before.strip() else []
    numbered += zip(pages[::2], pages[1::2], strict=True)
    text = ""
    document = Document("", [], pages=len(pages) // 2 or None)
    with TemporaryDirectory() as folder:
        for number, part in numbered:
            file = Path(folder) / "page.html"
            file.write_text(f'<meta charset="utf-8"><main>{part}</main>', "utf-8")
            page = read_html(file, name)
            place = {"slide": int(number)} if number else {}
            document.sections.extend(_moved_sections(page.sections, len(text), place))
            for table in page.tables:
                document.tables.append(table.moved(len(text)))
            document.skipped.extend(page.skipped)
            text += f"{page.text.rstrip()}\n\n" if page.text.strip() else ""
    return replace(document, text=text)


def _moved_sections(
    sections: Sequence[Section], by: int, place: dict[str, int]
) -> list[Section]:
    """Return sections at offsets that many characters later, with a place in the file."""
    moved = []
    for section in sections:
        metadata = {**section.metadata, **place}
        moved.append(
            Section(section.title, section.start + by, section.end + by, metadata)
        )
    return moved
