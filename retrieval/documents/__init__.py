"""Formats of documents, by the suffix of a file. Other packages add theirs: entry points of `selfrag.documents`.

A new kind of document is a function that gives a `Document`, and a `DocumentFormat` that names it. Here are text,
Markdown and HTML; `selfrag.extensions.pdf` and `.word` are added as a stranger's would be.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeAlias

from retrieval.documents.document import (
    Document,
    ReadingOptions,
    Section,
    Sheet,
    Skipped,
    Table,
)
from retrieval.documents.html import read_html
from retrieval.documents.markdown import read_markdown, read_text
from selfrag.common.errors import UserError
from selfrag.common.plugins import load_present, names

__all__ = [
    "Document",
    "DocumentFormat",
    "ReadingOptions",
    "Section",
    "Sheet",
    "Skipped",
    "Table",
    "check_options",
    "document_format",
    "document_suffixes",
]

GROUP = "selfrag.documents"
"""Entry points by the suffix of files without its dot; each names a `DocumentFormat`."""
DocumentReader: TypeAlias = Callable[
    [Path, str, ReadingOptions, Callable[[], None]], Document
]
"""A file, a name for what stands above the first heading, options, and what is called after each step that takes
seconds."""


@dataclass(frozen=True, slots=True)
class DocumentFormat:
    """How files of a suffix are read.

    Attributes:
        read: reads a file.
        limits: what a child process that reads a file may take: seconds for a megabyte, bytes of memory and of text for
            a byte of the file. None reads in this process, which is for formats that have no parser to mislead.
        check: refuses options that this machine cannot serve.
        code: files and folders of the code that makes the text, by default the module of `read`. `index sync` reads the
            files of a format again when its code or one of its libraries has changed.
        libraries: distributions that it uses, such as `lxml`.
    """

    read: DocumentReader
    limits: tuple[int, int, int] | None = None
    check: Callable[[ReadingOptions], None] = lambda options: None
    code: tuple[Path, ...] = ()
    libraries: tuple[str, ...] = ()

    def version(self) -> str:
        """Return a digest of the code that makes the text of a file."""
        module = sys.modules[self.read.__module__].__file__
        return code_version(self.code or (Path(module or ""),), self.libraries)


def code_version(code: tuple[Path, ...], libraries: tuple[str, ...] = ()) -> str:
    """Return a digest of files of code, folders with all their modules, and the versions of libraries."""
    digest = hashlib.blake2b(digest_size=8)
    for path in code:
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        for file in files:
            digest.update(file.read_bytes())
    for name in libraries:
        with suppress(PackageNotFoundError):
            digest.update(f"{name} {version(name)} ".encode())
    return digest.hexdigest()


def _plain(
    read: Callable[[Path, str], Document],
    modules: str,
    *libraries: str,
    limits: tuple[int, int, int] | None = None,
) -> DocumentFormat:
    """Return the format of a reader that has no options, given a pattern of its modules in this folder."""
    return DocumentFormat(
        lambda path, name, options, report_progress: read(path, name),
        limits,
        code=tuple(sorted(Path(__file__).parent.glob(modules))),
        libraries=libraries,
    )


_TEXT = _plain(read_text, "markdown.py")
_MARKDOWN = _plain(read_markdown, "markdown.py", "markdown-it-py")
_HTML = _plain(read_html, "html*.py", "lxml", limits=(10, 16, 2))
_FORMATS = {
    ".txt": _TEXT,
    ".md": _MARKDOWN,
    ".markdown": _MARKDOWN,
    ".html": _HTML,
    ".htm": _HTML,
}


@cache
def document_format(suffix: str) -> DocumentFormat | None:
    """Return how files of a suffix such as `.md` are read; None where nothing reads them."""
    if suffix in _FORMATS:
        return _FORMATS[suffix]
    reading = (
        load_present(GROUP, suffix.removeprefix("."))
        if suffix in _registered()
        else None
    )
    if reading is not None and not isinstance(reading, DocumentFormat):
        raise UserError(
            f"the entry point {suffix[1:]!r} of {GROUP} is no DocumentFormat"
        )
    return reading


@cache
def _registered() -> tuple[str, ...]:
    return tuple(f".{name}" for name in names(GROUP))


def document_suffixes() -> list[str]:
    """Return the suffixes of all formats that are there."""
    return [
        *_FORMATS,
        *(suffix for suffix in _registered() if document_format(suffix) is not None),
    ]


def check_options(options: ReadingOptions) -> None:
    """Raise UserError where a format cannot serve the options on this machine."""
    for suffix in document_suffixes():
        reading = document_format(suffix)
        if reading is not None:
            reading.check(options)
