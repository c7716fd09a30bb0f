"""One builder a directory. Knows no index."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from retrieval.atomic import writing
from retrieval.errors import UserError


@contextmanager
def locked_directory(directory: Path) -> Iterator[Path]:
    """Make `directory` and hold it for this process; the system frees it however the process ends.

    Raises:
        UserError: another process holds it.
    """
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
    if sys.platform == "win32":  # no flock on directories; two builders of one index are not told apart there
        yield directory
        return
    import fcntl

    handle = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"another process is writing {directory}; wait for it to end") from error
        yield directory
    finally:
        os.close(handle)
