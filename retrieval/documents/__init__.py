"""Readers of documents, one module a format, each a function from a file and a name to a `Document`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from retrieval.documents.document import Document, ReadingOptions, Section, Skipped, Table
from retrieval.documents.html import read_html
from retrieval.documents.markdown import read_markdown, read_text
from retrieval.documents.pdf import read_pdf
from retrieval.documents.word import read_word

__all__ = ["READERS", "Document", "DocumentReader", "ReadingOptions", "Section", "Skipped", "Table"]

DocumentReader: TypeAlias = Callable[[Path, str], Document]

READERS: dict[str, DocumentReader] = {
    ".txt": read_text,
    ".md": read_markdown,
    ".markdown": read_markdown,
    ".html": read_html,
    ".htm": read_html,
    ".pdf": read_pdf,
    ".docx": read_word,
    ".docm": read_word,
    ".dotx": read_word,
    ".dotm": read_word,
}
"""Reader of each suffix."""
