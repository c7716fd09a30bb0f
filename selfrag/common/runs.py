"""Long jobs on disk: whether a directory holds the same run, and its log, which is whole after a kill at any moment.

A job writes down what decides its result (its identity), adds to its log, and writes its results at the end.
Started again with the same identity, it continues where it was. Every line of a log is written in one piece; one that a
crash or a full disk cut short is dropped when the log is opened again.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from selfrag.common.atomic import hold, writing
from selfrag.common.errors import UserError
from selfrag.common.jsonl import json_line, write_jsonl


class OtherRunError(UserError):
    """What is on disk belongs to a run with other settings."""


def check_same_run(
    path: Path,
    recorded: object,
    identity: Mapping[str, Any],
    otherwise: str = "choose another directory",
) -> None:
    """Check that what is on disk belongs to the run that is to continue it.

    Args:
        path: the directory or file.
        recorded: the identity that it holds.
        identity: what decides the result of this run, as plain values.
        otherwise: what to do to begin another run.

    Raises:
        OtherRunError: they differ; names every setting that does.
    """
    before, now = (
        json.loads(json.dumps(settings)) for settings in (recorded, identity)
    )
    differing = ", ".join(_differences(before, now))
    if differing:
        raise OtherRunError(
            f"{path} holds a run with other {differing}: give the same settings to resume it, or {otherwise}"
        )


def _differences(
    recorded: object, identity: object, name: str = "settings"
) -> Iterator[str]:
    """Yield the dotted names of values that differ."""
    if not isinstance(recorded, Mapping) or not isinstance(identity, Mapping):
        if recorded != identity:
            yield name
        return
    for key in {**recorded, **identity}:
        place = str(key) if name == "settings" else f"{name}.{key}"
        yield from _differences(recorded.get(key), identity.get(key), place)


class RunLog:
    """One file; use it as a context manager. It is locked while it is open, from its first line on.

    Args:
        path: made with its header, or with its first line where it has no header.
        identity: what decides the records, written into the first line and compared with that of an older log; None
            for a file of records alone.
        take: called with each record that is there already; raises ValueError, KeyError, TypeError or AttributeError
            for one that cannot be right.
        remedy: what a user should do about a damaged line.
        otherwise: what a user should do about a log of another run.

    Raises:
        UserError: the file is of another run, damaged, written by another process, or cannot be written.
    """

    def __init__(
        self,
        path: Path,
        identity: Mapping[str, Any] | None,
        take: Callable[[dict[str, Any]], object],
        *,
        remedy: str = "remove this line",
        otherwise: str = "choose another directory",
    ) -> None:
        self.path = path
        self._take, self._remedy, self._otherwise = take, remedy, otherwise
        self._starts: list[int] = []
        self._handle = -1
        self._open = ExitStack()
        try:
            if identity is not None or path.exists():
                self._lock()
                self._read(identity)
            if identity is not None and not path.stat().st_size:
                self._write({"identity": identity})
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        """Return the number of records."""
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
            record: dict[str, Any] = json.loads(file.readline())
        return record

    def cut(self, records: int) -> None:
        """Leave the first records only."""
        if records < len(self):
            self._lock()
            with writing(self.path):
                os.ftruncate(self._handle, self._starts[records])
            del self._starts[records:]

    def keep(self, is_kept: Callable[[dict[str, Any]], bool]) -> None:
        """Leave the wanted records of a log without a header, and `take` these again."""
        with writing(self.path), self.path.open("rb") as lines:
            write_jsonl(
                self.path, (line for line in map(json.loads, lines) if is_kept(line))
            )
        self.close()
        self._lock()  # the file that took its place
        self._starts = []
        self._read(None)

    def _lock(self) -> None:
        if self._handle >= 0:
            return
        with writing(self.path):
            self._handle = os.open(
                self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644
            )
        self._open.callback(os.close, self._handle)
        self._open.enter_context(hold(self.path, self._busy))

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

    def _read(self, identity: Mapping[str, Any] | None) -> None:
        """Take what is there, and cut off a torn last line."""
        intact = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    break
                try:
                    record = json.loads(line)
                    if identity is not None and number == 1:
                        check_same_run(
                            self.path, record["identity"], identity, self._otherwise
                        )
                    else:
                        self._take(record)
                        self._starts.append(intact)
                except OtherRunError:
                    raise
                except (
                    ValueError,
                    KeyError,
                    TypeError,
                    AttributeError,
                    RecursionError,
                    UserError,
                ) as error:
                    raise UserError(
                        f"{self.path}:{number}: damaged ({error}); {self._remedy}"
                    ) from error
                intact += len(line)
        # not before: a file of something else stays as it is
        if intact != self.path.stat().st_size:
            with writing(self.path):
                os.truncate(self.path, intact)
