"""Reads documents in child processes with limits on time and memory.

A file can be made so that a parser crashes, runs for hours or takes all memory. Here that ends with one line that names
the file, and the next file is read by a new child. A child reads one file after the other, so that a build pays for its
start once. Where there is no `resource` module (Windows), only the time is limited.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, cast

from retrieval.documents import READERS
from retrieval.documents.document import Document, ReadingOptions, Section, Skipped, Table
from retrieval.documents.ocr import check_languages
from retrieval.errors import MissingExtraError, UserError

LENGTH = struct.Struct(">Q")
"""Stands before each reply of a child: the bytes of the reply."""
_MAX_IDLE = 2  # children that wait for further files
_MEBIBYTE = 1 << 20
_LARGE = 4 * _MEBIBYTE
_GZIP_RATIO = 8  # usual size of a packed file, unpacked
_WALL_TIME = 10  # seconds that may pass for one of computing, on a machine that does other work
_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from retrieval.documents.worker import main; main()"


@dataclass(frozen=True, slots=True)
class ReadingLimits:
    """What the reading of one file may take."""

    seconds: int  # of computing
    memory: int  # bytes beyond those of the idle child
    reply: int  # bytes of the text and its structure


_LIMITS = {
    ".pdf": (20, 4, 10),
    ".docx": (30, 32, 10),
    ".html": (10, 16, 2),
    ".htm": (10, 16, 2),
}
"""Formats that a child reads: seconds for a megabyte, bytes of memory and of text for a byte of the file. Text and
Markdown have no parser that a file could mislead."""


def is_isolated(kind: str) -> bool:
    """Return whether files of a kind are read by a child process."""
    return kind in _LIMITS


def limits_of(path: Path, kind: str) -> ReadingLimits:
    """Return the limits for a file by its size."""
    size = path.stat().st_size
    if path.suffix == ".gz":
        size *= _GZIP_RATIO
    seconds, memory, reply = _LIMITS[kind]
    return ReadingLimits(
        seconds=10 + seconds * size // _MEBIBYTE,
        memory=400 * _MEBIBYTE + memory * size,
        reply=32 * _MEBIBYTE + reply * size,
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
        if self._options.ocr is not None:
            check_languages(self._options.ocr)
        self._idle: list[_Child] = []
        self._lock = threading.Lock()
        self._finalizer = weakref.finalize(self, _close_all, self._idle)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the children. Further files can be read all the same."""
        with self._lock:
            _close_all(self._idle)

    def start(self) -> None:
        """Start a child, so that it is ready when the first file is read."""
        self._release(_Child())

    def read(self, path: Path, kind: str, name: str) -> Document:
        """Return what is in a file.

        Args:
            path: the file.
            kind: its suffix, one of `READERS`.
            name: the title of what stands above the first heading.

        Raises:
            UserError: the file cannot be read, or not within its limits.
        """
        if not is_isolated(kind):
            return READERS[kind](path, name)
        with self._lock:
            child = self._idle.pop() if self._idle else None
        if child is None or not child.is_alive():
            child = _Child()
        try:
            return child.read(path, kind, name, self._options)
        finally:
            if path.stat().st_size > _LARGE:
                child.close()  # what it took for a large file is not given back to the system
            else:
                self._release(child)

    def _release(self, child: _Child) -> None:
        with self._lock:
            if child.is_alive() and len(self._idle) < _MAX_IDLE:
                self._idle.append(child)
                return
        child.close()


class _Child:
    """A process that reads files, one at a time."""

    def __init__(self) -> None:
        try:
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter
                [sys.executable, "-c", _START, json.dumps(sys.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            raise UserError(f"no process for reading documents can be started: {error.strerror or error}") from error
        self._requests = cast(IO[bytes], self._process.stdin)
        self._replies = cast(IO[bytes], self._process.stdout)
        self._is_late = False

    def is_alive(self) -> bool:
        """Return whether the process runs."""
        return self._process.poll() is None

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        with suppress(BrokenPipeError):
            self._requests.close()
        self._replies.close()

    def read(self, path: Path, kind: str, name: str, options: ReadingOptions) -> Document:
        """Return what is in a file; a process that goes beyond its limits is ended."""
        limits = limits_of(path, kind)
        request = {
            "path": str(path),
            "folder": _current_folder(),
            "kind": kind,
            "name": name,
            "options": asdict(options),
            "limits": asdict(limits),
        }
        reply = None
        try:
            self._requests.write(json.dumps(request).encode() + b"\n")
            self._requests.flush()
            reply = self._receive(limits)
            while reply is not None and "progress" in reply:
                reply = self._receive(limits)
        except BrokenPipeError:
            pass
        except BaseException:  # such as Ctrl-C: a reply is under way that nobody takes
            self._process.kill()
            raise
        if reply is None:
            raise UserError(f"{path}: cannot be read: {self._cause(limits)}; save it anew, split it, or leave it out")
        if "error" in reply:
            raise (MissingExtraError if reply["is_missing_extra"] else UserError)(reply["error"])
        return _document_of(reply)

    def _receive(self, limits: ReadingLimits) -> dict[str, Any] | None:
        """Return the next reply, or None where the process ends without one."""
        timer = threading.Timer(_WALL_TIME * limits.seconds, self._end_late)
        timer.daemon = True
        timer.start()
        try:
            head = self._replies.read(LENGTH.size)
            if len(head) < LENGTH.size:
                return None
            (length,) = LENGTH.unpack(head)
            content = self._replies.read(min(length, limits.reply))
        finally:
            timer.cancel()
        if len(content) < length:
            self._process.kill()
            return None
        reply: dict[str, Any] = json.loads(content.decode("utf-8", "surrogatepass"))
        return reply

    def _end_late(self) -> None:
        self._is_late = True
        self._process.kill()

    def _cause(self, limits: ReadingLimits) -> str:
        """Return why the process ended."""
        code = self._process.wait()
        if self._is_late or code == -getattr(signal, "SIGXCPU", 0):
            return f"its reader takes more than {limits.seconds} seconds"
        return f"its reader crashed or needs more than {limits.memory // _MEBIBYTE} MiB of memory"


def _close_all(children: list[_Child]) -> None:
    while children:
        children.pop().close()


def _current_folder() -> str | None:
    with suppress(FileNotFoundError):
        return os.getcwd()  # noqa: PTH109 - as text
    return None


def plain_document(document: Document) -> dict[str, Any]:
    """Return a document as values for JSON."""
    sections = [[part.title, part.start, part.end, dict(part.metadata)] for part in document.sections]
    return {
        "text": document.text,
        "sections": sections,
        "tables": [[table.header, table.rows] for table in document.tables],
        "pages": document.pages,
        "skipped": [[part.what, part.why] for part in document.skipped],
    }


def _document_of(values: Mapping[str, Any]) -> Document:
    tables: list[Table] = []
    for header, rows in values["tables"]:
        spans = tuple((start, end) for start, end in rows)
        tables.append(Table(None if header is None else (header[0], header[1]), spans))
    return Document(
        values["text"],
        [Section(title, start, end, metadata) for title, start, end, metadata in values["sections"]],
        tables,
        pages=values["pages"],
        skipped=[Skipped(what, why) for what, why in values["skipped"]],
    )
