"""One process at a time in a directory. Knows no index.

The system frees a lock however its process ends. A forked child shares the locks of its parent until it closes them:
it does so at once, or it would hold them for as long as it lives.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from retrieval.atomic import writing
from retrieval.errors import UserError

_held: set[int] = set()


def _let_go() -> None:
    for handle in _held:
        os.close(handle)
    _held.clear()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_let_go)


@contextmanager
def locked_directory(directory: Path) -> Iterator[Path]:
    """Make `directory` and hold it for this process.

    Raises:
        UserError: another process holds it.
    """

    def refuse() -> None:
        raise UserError(f"another process is writing {directory}; wait for it to end")

    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
    with held(directory, refuse):
        yield directory


@contextmanager
def held(directory: Path, busy: Callable[[], None]) -> Iterator[None]:
    """Hold a directory; where another process holds it, call `busy`, and wait if that returns.

    Where the system cannot tell (Windows, some network disks) nobody is held up.
    """
    if sys.platform == "win32":
        yield
        return
    import fcntl

    handle = os.open(directory, os.O_RDONLY)
    _held.add(handle)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            busy()
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:
            pass
        yield
    finally:
        if handle in _held:  # not in a forked child that leaves this block
            _held.remove(handle)
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)
