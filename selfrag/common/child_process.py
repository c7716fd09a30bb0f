"""Child processes that work under limits of time and memory, for files and templates of strangers.

A file can be made so that a library crashes, runs for hours or takes all memory. Here only the child ends then, and the
caller is told why. Where there is no `resource` module (Windows), only the time is limited.
`selfrag.common.child_work` is the other side.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import IO, Any, cast

from selfrag.common.errors import MissingExtraError, UserError, count_of

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None  # type: ignore[assignment]

LENGTH = struct.Struct(">Q")
"""Stands before each reply, and before the bytes that belong to it: their length."""
MEBIBYTE = 1 << 20
# seconds that may pass for one of computing, on a machine that does other work
_WALL_TIME = 10
# other pools, and an arena for each thread, reserve more address space than a child may have
_ENVIRONMENT = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
}
_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {module} import main; main()"


@dataclass(frozen=True, slots=True)
class ChildLimits:
    """What one request to a child may take."""

    seconds: int  # of computing
    memory: int  # bytes beyond those of the idle child
    reply: int  # bytes of one reply


class ChildEndedError(Exception):
    """A child ended before its last reply; the message says why."""


@dataclass(frozen=True, slots=True)
class ChildReply:
    """One reply of a child."""

    values: Mapping[str, Any]
    data: bytes = b""


class ChildProcess:
    """A process that answers requests, one at a time.

    Args:
        module: holds `main`, which calls `selfrag.common.child_work.answer_requests`.
        purpose: what the process is for, for the line of an error.
    """

    def __init__(self, module: str, purpose: str) -> None:
        try:
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter
                [
                    sys.executable,
                    "-c",
                    _START.format(module=module),
                    json.dumps(sys.path),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=os.environ | _ENVIRONMENT,
            )
        except OSError as error:
            raise UserError(
                f"no process for {purpose} can be started: {error.strerror or error}"
            ) from error
        self._requests = cast(IO[bytes], self._process.stdin)
        self._replies = cast(IO[bytes], self._process.stdout)
        self._is_late = False
        if hasattr(fcntl, "F_SETPIPE_SZ"):  # of Linux
            with suppress(OSError):  # such as where the user has too many large pipes
                fcntl.fcntl(self._replies, fcntl.F_SETPIPE_SZ, MEBIBYTE)

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

    def ask(
        self, request: Mapping[str, Any], limits: ChildLimits
    ) -> Iterator[ChildReply]:
        """Send a request and yield the replies to it, the last one included.

        A process that goes beyond its limits is ended, and so is one whose replies are not taken to the end.

        Raises:
            UserError: what the child says is wrong.
            ChildEndedError: the process ended before its last reply.
        """
        values = {**request, "folder": _current_folder(), "limits": asdict(limits)}
        try:
            with suppress(BrokenPipeError):
                self._requests.write(json.dumps(values).encode() + b"\n")
                self._requests.flush()
            is_last = False
            while not is_last:
                reply = self._receive(limits)
                if reply is None:
                    raise ChildEndedError(self._cause(limits))
                if "error" in reply.values:
                    kind = UserError
                    if reply.values["is_missing_extra"]:
                        kind = MissingExtraError
                    raise kind(reply.values["error"])
                is_last = reply.values["is_last"]
                yield reply
        except UserError:
            raise
        except BaseException:  # such as Ctrl-C: a reply is under way that nobody takes
            self._process.kill()
            raise

    def _receive(self, limits: ChildLimits) -> ChildReply | None:
        """Return the next reply, or None where the process ends without one."""
        timer = threading.Timer(_WALL_TIME * limits.seconds, self._end_late)
        timer.daemon = True
        timer.start()
        try:
            text, data = self._receive_bytes(limits), self._receive_bytes(limits)
        finally:
            timer.cancel()
        if text is None or data is None:
            self._process.kill()
            return None
        return ChildReply(json.loads(text.decode("utf-8", "surrogatepass")), data)

    def _receive_bytes(self, limits: ChildLimits) -> bytes | None:
        head = self._replies.read(LENGTH.size)
        if len(head) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack(head)
        if length > limits.reply:
            return None
        content = self._replies.read(length)
        if len(content) == length:
            return content
        return None

    def _end_late(self) -> None:
        self._is_late = True
        self._process.kill()

    def _cause(self, limits: ChildLimits) -> str:
        """Return why the process ended."""
        code = self._process.wait()
        if self._is_late or code == -getattr(signal, "SIGXCPU", 0):
            return f"it takes more than {count_of(limits.seconds, 'seconds')}"
        return f"it crashes what reads it, or needs more than {limits.memory // MEBIBYTE} MiB of memory"


def _current_folder() -> str | None:
    with suppress(FileNotFoundError):
        return os.getcwd()  # noqa: PTH109 - as text
    return None
