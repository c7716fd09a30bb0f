"""The side of a child of `selfrag.common.child_process`: takes requests and answers them under their limits."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, TypeAlias

from selfrag.common.child_process import LENGTH
from selfrag.common.errors import MissingExtraError, UserError

try:
    import resource
except ModuleNotFoundError:  # Windows
    resource = None  # type: ignore[assignment]


class Replies:
    """Sends replies that are not the last one."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def send(self, values: Mapping[str, Any], data: bytes | memoryview = b"") -> None:
        """Send values, and bytes that belong to them."""
        self.send_text(_encode({**values, "is_last": False}), data)

    def send_text(self, text: bytes, data: bytes | memoryview = b"") -> None:
        """Send values that are JSON already."""
        self._stream.write(LENGTH.pack(len(text)) + text + LENGTH.pack(len(data)))
        self._stream.write(data)
        self._stream.flush()


ChildAnswer: TypeAlias = Callable[[Mapping[str, Any], Replies], Mapping[str, Any]]
"""Answers a request: sends any number of replies and returns the values of the last one."""


def answer_requests(answer: ChildAnswer) -> None:
    """Answer requests, one a line, until there are no more.

    A request has the `name` of what is read, which begins the line of an error, and its limits.
    """
    # Ctrl-C is for the parent, which ends this process
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with os.fdopen(os.dup(1), "wb") as stream:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # a library may print
        replies, idle_size = Replies(stream), _address_space()
        for line in sys.stdin.buffer:
            request = json.loads(line)
            limit_time(request)
            _limit_memory(idle_size + request["limits"]["memory"])
            replies.send_text(_last_reply(answer, request, replies))


def _last_reply(
    answer: ChildAnswer, request: Mapping[str, Any], replies: Replies
) -> bytes:
    limits, name = request["limits"], request["name"]
    try:
        if request["folder"] is not None:
            os.chdir(request["folder"])
        reply = _encode({**answer(request, replies), "is_last": True})
        if len(reply) > limits["reply"]:
            return _error(
                UserError(
                    f"{name}: gives more than {limits['reply'] >> 20} MiB of text; split it"
                )
            )
        return reply
    except UserError as error:
        return _error(error)
    except MemoryError:
        return _error(
            UserError(
                f"{name}: cannot be read within {limits['memory'] >> 20} MiB of memory; split it"
            )
        )
    except Exception as error:  # whatever a damaged file makes of a parser
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return _error(UserError(f"{name}: cannot be read: {reason:.200}"))


def limit_time(request: Mapping[str, Any]) -> None:
    """Limit the computing for a request, from now on."""
    if resource is not None:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        spent = int(usage.ru_utime + usage.ru_stime)
        _lower(resource.RLIMIT_CPU, spent + 1 + request["limits"]["seconds"])


def _address_space() -> int:
    """Return the bytes of address space that this process has, or 0 where the system does not say."""
    statistics = Path("/proc/self/statm")
    if resource is None or not statistics.exists():
        return 0
    return int(statistics.read_text().split()[0]) * resource.getpagesize()


def _limit_memory(size: int) -> None:
    """Limit the address space of this process, where the system says how much it has."""
    if resource is not None and _address_space():
        _lower(resource.RLIMIT_AS, size)


def _lower(kind: int, limit: int) -> None:
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(kind, (limit, hard))


def _error(error: UserError) -> bytes:
    return _encode(
        {"error": str(error), "is_missing_extra": isinstance(error, MissingExtraError)}
    )


def _encode(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, ensure_ascii=False).encode("utf-8", "surrogatepass")
