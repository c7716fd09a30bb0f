"""An append-only file of JSON objects, all of one run. Killed at any moment, nothing in it is lost or doubled.

The first line says of which run; every further line is written in one piece. A line that a crash or a full disk cut
short is dropped when the file is opened again. Does not know what the lines hold.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrieval.atomic import writing
from retrieval.errors import UserError


@dataclass(frozen=True, slots=True)
class Kind:
    """What a file is, for its first line and for messages.

    Attributes:
        format: name and version of the format.
        lines: what its lines are, such as `replies`.
        run: what made them, such as `a teacher`.
        otherwise: what to do about a file of another run.
    """

    format: str
    lines: str
    run: str
    otherwise: str


class WholeLines:
    """The file; use it as a context manager, by one process at a time.

    Args:
        path: made if missing.
        kind: what it is.
        identity: of the run; must be that of the file.
        take: called with each object that is there already; raises ValueError, KeyError, TypeError or AttributeError
            for one that cannot be right.

    Raises:
        UserError: the file is of another run, damaged, or cannot be written.
    """

    def __init__(
        self, path: Path, kind: Kind, identity: Mapping[str, Any], take: Callable[[dict[str, Any]], object]
    ) -> None:
        self.path = path
        with writing(path):
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            if self._read(kind, json.loads(json.dumps(identity)), take) == 0:
                self.append({"format": kind.format, "identity": identity})
        except BaseException:
            os.close(self._handle)
            raise

    def __enter__(self) -> WholeLines:
        return self

    def __exit__(self, *_: object) -> None:
        os.fsync(self._handle)
        os.close(self._handle)

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one object.

        Raises:
            UserError: the disk is full, or the file cannot be written; the file ends with the last whole line.
        """
        line = json.dumps(record).encode("ascii") + b"\n"
        size = os.fstat(self._handle).st_size
        with writing(self.path):
            try:
                if os.write(self._handle, line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                os.ftruncate(self._handle, size)
                raise

    def _read(self, kind: Kind, identity: Any, take: Callable[[dict[str, Any]], object]) -> int:
        """Give away what is there and cut a torn last line; the number of whole lines."""
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        lines = content[:whole].splitlines()
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
                if number == 1:
                    self._same_run(kind, record, identity)
                else:
                    take(record)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise UserError(f"{self.path}:{number}: damaged ({error}); remove this line") from error
        os.ftruncate(self._handle, whole)  # not before: what is no journal of ours stays as it is
        return len(lines)

    def _same_run(self, kind: Kind, record: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
        if record.get("format") != kind.format:
            raise UserError(f"{self.path} is no journal of {kind.lines}; {kind.otherwise}")
        found = record["identity"]
        if differing := [key for key in sorted({*found, *identity}) if found.get(key) != identity.get(key)]:
            raise UserError(
                f"{self.path} holds {kind.lines} of {kind.run} with other {', '.join(differing)}:"
                f" give the same settings to resume it, or {kind.otherwise}"
            )
