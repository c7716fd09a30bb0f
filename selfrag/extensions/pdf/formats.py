"""PDF as a format of documents. What reads it is imported in the child process that reads a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from selfrag.interface import Document, DocumentFormat, ReadingOptions


def _read(
    path: Path, name: str, options: ReadingOptions, report_progress: Callable[[], None]
) -> Document:
    from selfrag.extensions.pdf.reader import read_pdf

    return read_pdf(path, name, options, report_progress)


def _check(options: ReadingOptions) -> None:
    if options.ocr is not None:
        from selfrag.extensions.pdf.ocr import check_languages

        check_languages(options.ocr)


PDF = DocumentFormat(
    _read,
    limits=(20, 4, 10),
    check=_check,
    code=(Path(__file__).parent,),
    libraries=("pypdfium2", "pypdf"),
)
