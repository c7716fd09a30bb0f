"""The child process of `retrieval.documents.isolation`: reads the files that it is asked for, under their limits."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from retrieval.documents import READERS
from retrieval.documents.document import Document, ReadingOptions
from retrieval.documents.isolation import LENGTH, plain_document
from retrieval.documents.pdf import read_pdf
from retrieval.errors import MissingExtraError, UserError

try:
    import resource
except ModuleNotFoundError:  # Windows
    resource = None  # type: ignore[assignment]


def main() -> None:
    """Answer requests, one a line, until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process
    with os.fdopen(os.dup(1), "wb") as replies:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # a library may print
        idle_size = _address_space()
        for line in sys.stdin.buffer:
            _answer(json.loads(line), replies, idle_size)


def _answer(request: Mapping[str, Any], replies: IO[bytes], idle_size: int) -> None:
    limits = request["limits"]
    shown = request["path"]
    _limit_time(limits["seconds"])
    _limit_memory(idle_size + limits["memory"])
    try:
        document = _read(request, replies)
        reply = _encode(plain_document(document))
        if len(reply) > limits["reply"]:
            reply = _error(UserError(f"{shown}: gives more than {limits['reply'] >> 20} MiB of text; split it"))
    except UserError as error:
        reply = _error(error)
    except MemoryError:
        reply = _error(UserError(f"{shown}: cannot be read within {limits['memory'] >> 20} MiB of memory; split it"))
    except Exception as error:  # whatever a damaged file makes of a parser
        reply = _error(UserError(f"{shown}: cannot be read: {type(error).__name__}: {str(error)[:200]}"))
    _send(reply, replies)


def _read(request: Mapping[str, Any], replies: IO[bytes]) -> Document:
    path, kind, name = Path(request["path"]), request["kind"], request["name"]
    if request["folder"] is not None:
        os.chdir(request["folder"])
    if kind != ".pdf":
        return READERS[kind](path, name)

    def report_progress() -> None:
        _limit_time(request["limits"]["seconds"])
        _send(_encode({"progress": True}), replies)

    return read_pdf(path, name, ReadingOptions(**request["options"]), report_progress)


def _address_space() -> int:
    """Return the bytes of address space that this process has, or 0 where the system does not say."""
    statistics = Path("/proc/self/statm")
    if resource is None or not statistics.exists():
        return 0
    return int(statistics.read_text().split()[0]) * resource.getpagesize()


def _limit_time(seconds: int) -> None:
    """Limit the computing from now on."""
    if resource is not None:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        _lower(resource.RLIMIT_CPU, int(usage.ru_utime + usage.ru_stime) + 1 + seconds)


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
    return _encode({"error": str(error), "is_missing_extra": isinstance(error, MissingExtraError)})


def _encode(reply: Mapping[str, Any]) -> bytes:
    return json.dumps(reply, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _send(reply: bytes, replies: IO[bytes]) -> None:
    replies.write(LENGTH.pack(len(reply)) + reply)
    replies.flush()
