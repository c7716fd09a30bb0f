"""Formats of office programs as documents. What reads them is imported in the child process that reads a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from selfrag.interface import Document, DocumentFormat, ReadingOptions


def _read(
    path: Path, name: str, options: ReadingOptions, report_progress: Callable[[], None]
) -> Document:
    from selfrag.extensions.office.reader import read_office

    return read_office(path, name)


OFFICE = DocumentFormat(
    _read,
    limits=(20, 32, 20),
    code=(Path(__file__).parent,),
    libraries=("kreuzberg", "lxml"),
)
