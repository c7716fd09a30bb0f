"""Reads PDF files: one section a page, titled by the bookmarks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from retrieval.documents.document import MAX_HEADING, Document, Section, check_size
from retrieval.errors import UserError, require

_MAX_DEPTH = 100  # levels of bookmarks


def read_pdf(path: Path, name: str) -> Document:
    """Text of the pages, each a section with its number."""
    pypdf = require("pypdf", extra="documents")
    check_size(path)
    try:
        reader = pypdf.PdfReader(path)
        if reader.is_encrypted and not reader.decrypt(""):
            raise UserError(f"{path}: the PDF is encrypted; save it without a password")
        titles = _titles(reader)
        pages = [page.extract_text() for page in reader.pages]
    except UserError:
        raise
    except Exception as error:  # whatever a damaged file makes of the parser
        raise UserError(f"{path}: cannot be read as PDF: {type(error).__name__}: {str(error)[:200]}") from error
    text, sections, title = "", list[Section](), ""
    for number, page in enumerate(pages, 1):
        title = titles.get(number, title)
        start = len(text)
        text += re.sub(r"(?<!\n)\n(?!\n)", " ", re.sub(r"(?<=[a-z])-\n(?=[a-z])", "", page.replace("\0", ""))) + "\n\n"
        sections.append(Section(title or name, start, len(text), {"page": number}))
    if pages and not text.strip():
        raise UserError(f"{path}: no text in the PDF's {len(pages)} pages; scans need text recognition (OCR) first")
    return Document(text, sections, pages=len(pages))


def _titles(reader: Any) -> dict[int, str]:
    """Path of bookmarks by the page, from 1, on which it begins; the first of each page."""
    found: dict[int, str] = {}

    def walk(entries: Sequence[Any], above: tuple[str, ...]) -> None:
        last = above
        for entry in entries:
            if isinstance(entry, list):
                if len(last) < _MAX_DEPTH:
                    walk(entry, last)
                continue
            page = reader.get_destination_page_number(entry)
            last = (*above, " ".join(str(entry.title).split())[:MAX_HEADING])
            if page is not None and page >= 0:
                found.setdefault(page + 1, " > ".join(filter(None, last)))

    walk(reader.outline, ())
    return found
