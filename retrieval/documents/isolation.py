"""Reads documents in child processes with limits on time and memory.

A file can be made so that a parser crashes, runs for hours or takes all memory. Here that ends with one line that names
the file, and the next file is read by a new child. A child reads one file after the other, so that a build pays for its
start once. Where there is no `resource` module (Windows), only the time is limited.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from retrieval.documents import check_options, document_format
from retrieval.documents.document import (
    Document,
    ReadingOptions,
    Section,
    Sheet,
    Skipped,
    Table,
)
from selfrag.common.child_process import (
    MEBIBYTE,
    ChildEndedError,
    ChildLimits,
    ChildProcess,
)
from selfrag.common.errors import UserError

_PARTS = {"sections": Section, "skipped": Skipped, "sheets": Sheet}
_MAX_IDLE = 2  # children that wait for further files
_LARGE = 4 * MEBIBYTE
_GZIP_RATIO = 8  # usual size of a packed file, unpacked


def is_isolated(kind: str) -> bool:
    """Return whether files of a kind are read by a child process."""
    reading = document_format(kind)
    return reading is not None and reading.limits is not None


def limits_of(path: Path, kind: str) -> ChildLimits:
    """Return the limits for a file of an isolated format by its size."""
    reading = document_format(kind)
    if reading is None or reading.limits is None:
        raise ValueError(f"files of kind {kind} are not read by a child process")
    size = path.stat().st_size
    if path.suffix == ".gz":
        size *= _GZIP_RATIO
    seconds, memory, reply = reading.limits
    return ChildLimits(
        seconds=10 + seconds * size // MEBIBYTE,
        memory=400 * MEBIBYTE + memory * size,
        reply=32 * MEBIBYTE + reply * size,
    )


class IsolatedReader:
    """Reads documents of all formats, those with a complex parser in child processes. Safe to call from many threads.

    Args:
        options: how documents are read.

    Raises:
        UserError: text shall be recognised, and tesseract or a language of it is not installed.

    Example:
        with IsolatedReader() as reader:
            document = reader.read(Path("report.pdf"), ".pdf", "report")
    """

    def __init__(self, options: ReadingOptions | None = None) -> None:
        self._options = options or ReadingOptions()
        check_options(self._options)
        self._idle: list[ChildProcess] = []
        self._lock = threading.Lock()
        self._finalizer = weakref.finalize(self, _close_all, self._idle)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the children. Further files can be read all the same."""
        with self._lock:
            _close_all(self._idle)

    def start(self) -> None:
        """Start a child, so that it is ready when the first file is read."""
        self._release(_start_child())

    def read(self, path: Path, kind: str, name: str) -> Document:
        """Return what is in a file.

        Args:
            path: the file.
            kind: its suffix, one of `document_suffixes()`.
            name: the title of what stands above the first heading.

        Raises:
            UserError: the file cannot be read, or not within its limits.
        """
        reading = document_format(kind)
        if reading is None:
            raise UserError(f"{path}: nothing reads files of kind {kind}")
        if reading.limits is None:
            return reading.read(path, name, self._options, lambda: None)
        with self._lock:
            child = self._idle.pop() if self._idle else None
        if child is None or not child.is_alive():
            child = _start_child()
        try:
            return _read(child, path, kind, name, self._options)
        finally:
            if path.stat().st_size > _LARGE:
                child.close()  # what it took for a large file is not given back to the system
            else:
                self._release(child)

    def _release(self, child: ChildProcess) -> None:
        with self._lock:
            if child.is_alive() and len(self._idle) < _MAX_IDLE:
                self._idle.append(child)
                return
        child.close()


def _start_child() -> ChildProcess:
    return ChildProcess("retrieval.documents.worker", "reading documents")


def _read(
    child: ChildProcess, path: Path, kind: str, name: str, options: ReadingOptions
) -> Document:
    """Return what is in a file, read by a child."""
    request = {
        "name": str(path),
        "kind": kind,
        "title": name,
        "options": asdict(options),
    }
    try:
        *_, reply = child.ask(request, limits_of(path, kind))
    except ChildEndedError as error:
        raise UserError(
            f"{path}: cannot be read: {error}; save it anew, split it, or leave it out"
        ) from error
    return _document_of(reply.values)


def _close_all(children: list[ChildProcess]) -> None:
    while children:
        children.pop().close()


def _document_of(values: Mapping[str, Any]) -> Document:
    """Return a document of its values in JSON."""
    fields = {name: values[name] for name in Document.__dataclass_fields__}
    for name, kind in _PARTS.items():
        fields[name] = [kind(**part) for part in values[name]]
    fields["tables"] = []
    for table in values["tables"]:
        header = None if table["header"] is None else tuple(table["header"])
        fields["tables"].append(Table(header, tuple(map(tuple, table["rows"]))))
    return Document(**fields)
