"""Run logs: append-only files of JSON lines that one run writes, locked, and resumable after a kill at any moment.

Every line is written in one piece; one that a crash or a full disk cut short is dropped when the file is opened again.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrieval.atomic import held, writing
from retrieval.errors import UserError
from selfrag.jsonl import json_line, write_jsonl


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
                except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
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
