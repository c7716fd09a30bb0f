"""Reads files of office programs by kreuzberg: sheets row by row, all other kinds as HTML, by the reader of web pages.

kreuzberg writes raised digits of some kinds as plain ones, `10⁶` as `106`. A file that has them is refused, except
slides and reStructuredText: kreuzberg reads a copy in which they are written as such.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from string import ascii_uppercase
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZIP_DEFLATED, BadZipFile, ZipFile

from selfrag.interface import (
    MAX_BYTES,
    Document,
    Section,
    Sheet,
    Skipped,
    UserError,
    check_size,
    count_of,
    read_html,
    require,
    write_script,
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
_ROLE = re.compile(r"(?:\\ )?:(sup|sub):`([^`<>]{1,100})`(?:\\ )?")
_SHIFTED = re.compile(rb'baseline="-?[1-9]')
_DRAWING = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_UNREAD = {"ppt/notesSlides/": "speaker notes", "ppt/charts/": "charts"}
"""Parts of a presentation that kreuzberg does not read."""


def read_office(path: Path, name: str) -> Document:
    """Return the sheets of a file, or its text with the column `slide`.

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
        with TemporaryDirectory() as folder:
            file = _write_raised(path, kind, Path(folder) / path.name)
            result = kreuzberg.extract_file_sync(str(file), config=config)
    except (kreuzberg.KreuzbergError, SyntaxError, OSError) as error:
        raise UserError(f"{path}: cannot be read ({error!s:.200})") from error
    for folder, what in _UNREAD.items():
        if any(part.startswith(folder) for part in parts):
            skipped.append(Skipped(what, "the library does not read them"))
    attached = result.metadata.get("attachments") or ()
    skipped += [Skipped(f"attachment {file!s:.80}", "save it") for file in attached]
    if kind in _SHEETS:
        return Document("", [], skipped=skipped, sheets=_sheets(result))
    document = _pages(result.content, marker, name)
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
    # zipfile raises the latter two for an unknown compression and for a password
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


def _write_raised(path: Path, kind: str, copy: Path) -> Path:
    """Write a copy of slides or reStructuredText with raised digits as such; return it, or the file that has none."""
    if kind == ".rst":
        text = path.read_text("utf-8", errors="replace")
        copy.write_text(_ROLE.sub(_write_role, text), "utf-8")
        return copy
    if kind != ".pptx":
        return path
    with ZipFile(path) as packed, ZipFile(copy, "w", ZIP_DEFLATED) as written:
        for part in packed.infolist():
            with packed.open(part) as file:
                content = file.read(MAX_BYTES)
            if part.filename.startswith("ppt/slides/") and _SHIFTED.search(content):
                content = _write_slide(content)
            written.writestr(part, content)
    return copy


def _write_role(match: re.Match[str]) -> str:
    return write_script(match[2], raised=match[1] == "sup")


def _write_slide(content: bytes) -> bytes:
    """Return a slide with the text of raised and lowered runs in the runs beside them, which kreuzberg parts."""
    from lxml import etree

    root = etree.fromstring(content, etree.XMLParser(resolve_entities=False))
    for paragraph in root.iter(f"{_DRAWING}p"):
        base, was_shifted = None, False
        for run in list(paragraph):
            text = run.find(f"{_DRAWING}t")
            if run.tag != f"{_DRAWING}r" or text is None:
                base = None
                continue
            properties = run.find(f"{_DRAWING}rPr")
            shift = "0" if properties is None else properties.get("baseline", "0")
            is_shifted = shift.strip("-0%") != ""
            if is_shifted:
                text.text = write_script(text.text or "", raised=shift[0] != "-")
            if base is not None and (is_shifted or was_shifted):
                base.text = (base.text or "") + (text.text or "")
                paragraph.remove(run)
            else:
                base = text
            was_shifted = is_shifted
    written: bytes = etree.tostring(root)
    return written


def _sheets(result: Any) -> list[Sheet]:
    """Return the sheets; their first row names the columns."""
    names = result.metadata.get("sheet_names") or []
    sheets = []
    for table in result.tables or []:
        name = f"sheet {table.page_number}"
        if 0 < table.page_number <= len(names):
            name = str(names[table.page_number - 1])
        rows = [[" ".join(cell.split()) for cell in row] for row in table.cells]
        if rows:
            header = rows.pop(0) if len(rows) > 1 else []
            width = max(len(row) for row in (header, *rows))
            sheets.append(Sheet(name, _column_names(header, width), rows))
    return sheets


def _column_names(header: Sequence[str], width: int) -> list[str]:
    """Return the names of columns; one without a name has its letters, also beside a name that is used twice."""
    names: dict[str, None] = {}
    for number in range(width):
        letters, position = "", number + 1
        while position:
            position, place = divmod(position - 1, 26)
            letters = f"{ascii_uppercase[place]}{letters}"
        name = header[number] if number < len(header) else ""
        if name in names:
            name = f"{name} ({letters})"
        names[name or letters] = None
    return list(names)


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
