"""JSON Lines on disk: strict reading with file and line, writing that is all or nothing, and logs of long runs.

A file ending in `.gz` is gzipped; everything is UTF-8. A run log grows by one line at a time: it is locked, and can be
continued after a kill at any moment. Every line is written in one piece; one that a crash or a full disk cut short is
dropped when the file is opened again.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from selfrag.common.atomic import held, write_pieces, writing
from selfrag.common.errors import UserError
from selfrag.common.reading import parse_json, read_lines

T = TypeVar("T")


class Identified(Protocol):
    """A row with an id."""

    @property
    def id(self) -> str:
        """Unique in its file."""


Row = TypeVar("Row", bound=Identified)


def read_jsonl(path: str | Path, parse: Callable[[dict[str, Any]], T], *, mended: bool = False) -> Iterator[T]:
    """Parse every line of a file.

    Args:
        path: the file.
        parse: makes a value of one object; raises `UserError` for a bad one.
        mended: make U+FFFD of lone surrogates; else they stay, for a parser that names their row.

    Raises:
        UserError: the file cannot be read, a line is not a JSON object, or `parse` refused it; names `file:line`.
    """
    for number, line in enumerate(read_lines(path), 1):
        where = f"{path}:{number}"
        record = parse_json(line, where, nan=True, mended=mended)
        try:
            if not isinstance(record, dict):
                raise UserError(f"a row must be an object, not {type(record).__name__}")
            value = parse(record)
        except (ValueError, RecursionError, UserError) as error:
            raise UserError(f"{where}: {error}; fix this line") from error
        yield value


def read_identified(path: str | Path, parse: Callable[[dict[str, Any]], Row]) -> Iterator[Row]:
    """Like `read_jsonl`, for rows whose ids are unique in the file."""
    seen: set[str] = set()

    def unique(record: dict[str, Any]) -> Row:
        row = parse(record)
        if row.id in seen:
            raise UserError(f"id {row.id!r} occurs twice")
        seen.add(row.id)
        return row

    return read_jsonl(path, unique)


def json_line(record: Mapping[str, Any]) -> str:
    """One object as a line that UTF-8 can hold: escaped where text has lone surrogates, readable otherwise."""
    text = json.dumps(record, ensure_ascii=False)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        text = json.dumps(record)
    return text + "\n"


def write_jsonl(path: str | Path, records: Iterable[Mapping[str, Any]]) -> int:
    """Write one object a line; the file appears under its name only when complete. Returns the number of lines."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0

    def lines() -> Iterator[str]:
        nonlocal count
        for record in records:
            yield json_line(record)
            count += 1

    write_pieces(path, lines())
    return count


@dataclass(frozen=True, slots=True)
class Header:
    """What the first line of a log says, with the words for messages."""

    format: str  # name and version of the format
    lines: str  # what its lines are, such as `replies`
    run: str  # what made them, such as `a teacher`
    otherwise: str  # what to do about a file of another run


class RunLog:
    """One file; use it as a context manager. It is locked from the first line that is written until it is closed.

    Args:
        path: made with its header, or with its first line where it has no header.
        header: of the file; None for a file of records alone.
        identity: of the run, written into the header; must be that of the file.
        take: called with each record that is there already; raises ValueError, KeyError, TypeError or AttributeError
            for one that cannot be right.
        remedy: what a user should do about a damaged line.

    Raises:
        UserError: the file is of another run, damaged, written by another process, or cannot be written.
    """

    def __init__(
        self,
        path: Path,
        header: Header | None,
        identity: Mapping[str, Any],
        take: Callable[[dict[str, Any]], object],
        *,
        remedy: str = "remove this line",
    ) -> None:
        self.path = path
        self._take, self._remedy = take, remedy
        self._starts: list[int] = []
        self._handle = -1
        self._open = ExitStack()
        try:
            if header is not None:
                self._lock()
            if path.exists():
                self._read(header, json.loads(json.dumps(identity)))
            if header is not None and not path.stat().st_size:
                self._write({"format": header.format, "identity": identity})
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        """Number of records."""
        return len(self._starts)

    def close(self) -> None:
        """Bring everything to the disk and free the lock; the next `append` opens the file again."""
        if self._handle >= 0:
            os.fsync(self._handle)
        self._open.close()
        self._handle = -1

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one record; it survives the death of the process from here on.

        Raises:
            UserError: the disk is full, or the file cannot be written; the file ends with the last whole line.
        """
        self._starts.append(self._write(record))

    def record(self, number: int) -> dict[str, Any]:
        """Read one record again, counted from 0."""
        with self.path.open("rb") as file:
            file.seek(self._starts[number])
            found: dict[str, Any] = json.loads(file.readline())
        return found

    def cut(self, records: int) -> None:
        """Leave the first records only."""
        if records < len(self):
            self._lock()
            with writing(self.path):
                os.ftruncate(self._handle, self._starts[records])
            del self._starts[records:]

    def keep(self, wanted: Callable[[dict[str, Any]], bool]) -> None:
        """Leave the wanted records of a log without a header, and `take` these again."""
        self.close()
        with writing(self.path), self.path.open("rb") as lines:
            write_jsonl(self.path, (line for line in map(json.loads, lines) if wanted(line)))
        self._starts = []
        self._read(None, None)

    def _lock(self) -> None:
        if self._handle >= 0:
            return
        with writing(self.path):
            self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._open.callback(os.close, self._handle)
        self._open.enter_context(held(self.path, self._busy))

    def _busy(self) -> None:
        raise UserError(f"another process is writing {self.path}; wait for it to end")

    def _write(self, record: Mapping[str, Any]) -> int:
        """Write one line in one piece; where it starts."""
        line = json_line(record).encode()
        self._lock()
        size = os.fstat(self._handle).st_size
        with writing(self.path):
            try:
                if os.write(self._handle, line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                os.ftruncate(self._handle, size)
                raise
        return size

    def _read(self, header: Header | None, identity: Any) -> None:
        """Take what is there, and cut off a torn last line."""
        whole = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    break
                try:
                    record = json.loads(line)
                    if header is not None and number == 1:
                        self._same_run(header, record, identity)
                    else:
                        self._take(record)
                        self._starts.append(whole)
                except (ValueError, KeyError, TypeError, AttributeError, RecursionError, UserError) as error:
                    raise UserError(f"{self.path}:{number}: damaged ({error}); {self._remedy}") from error
                whole += len(line)
        if whole != self.path.stat().st_size:  # not before: a file of something else stays as it is
            with writing(self.path):
                os.truncate(self.path, whole)

    def _same_run(self, header: Header, record: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
        if record.get("format") != header.format:
            raise UserError(f"{self.path} is no journal of {header.lines}; {header.otherwise}")
        found = record["identity"]
        if differing := [key for key in sorted({*found, *identity}) if found.get(key) != identity.get(key)]:
            raise UserError(
                f"{self.path} holds {header.lines} of {header.run} with other {', '.join(differing)}:"
                f" give the same settings to resume it, or {header.otherwise}"
            )
