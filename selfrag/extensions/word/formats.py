"""Word files as a format of documents. What reads them is imported in the child process that reads a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from selfrag.interface import Document, DocumentFormat, ReadingOptions


def _read(
    path: Path, name: str, options: ReadingOptions, report_progress: Callable[[], None]
) -> Document:
    from selfrag.extensions.word.reader import read_word

    return read_word(path, name)


WORD = DocumentFormat(_read, limits=(30, 32, 10), code=(Path(__file__).parent,))
