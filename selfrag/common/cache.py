"""Folders of the user's cache: made once, by one process and as a whole; and their names."""

from __future__ import annotations

import hashlib
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from selfrag.common.atomic import check_room, hold, new_directory, writing
from selfrag.common.finished import recover

_ABANDONED_SECONDS = 24 * 3600
_ELSEWHERE = "set SELFRAG_CACHE to a folder on another disk"


def fingerprint(paths: Iterable[Path], *settings: object) -> str:
    """Return a name for what is made of files with some settings; a file that changes gives another name."""
    digest = hashlib.sha256(repr(settings).encode())
    for path in paths:
        state = path.resolve().stat()
        digest.update(
            f"{path.resolve()} {state.st_size} {state.st_mtime_ns}\n".encode()
        )
    return digest.hexdigest()[:12]


def publish(target: Path, build: Callable[[Path], None], *, needs: int = 0) -> Path:
    """Return the folder `target`; `build` fills it first where it is missing, if `needs` bytes of disk are free.

    Raises:
        UserError: the disk is full, or the place cannot be written; nothing is left behind.
    """
    if target.exists():
        return target
    with alone(target.parent):
        recover(target)
        if target.exists():  # another process was at it
            return target
        make_room(target.parent, needs)
        with new_directory(target) as draft, writing(target.parent, _ELSEWHERE):
            build(draft)
    return target


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Make `folder` and let one process at a time in; the others wait here. Not to be nested.

    The system frees it however the process ends. Where it cannot be told (Windows, some network disks) nobody waits:
    work is done twice there, and the last to finish stays.

    Raises:
        UserError: the folder cannot be written.
    """
    with writing(folder, _ELSEWHERE):
        folder.mkdir(parents=True, exist_ok=True)

    def wait() -> None:
        if sys.stderr.isatty():
            sys.stderr.write(
                f"waiting for another process that prepares something in {folder}\n"
            )

    with hold(folder, wait):
        yield


def make_room(folder: Path, needs: int) -> None:
    """Make `folder`, and clear it of what killed processes left there.

    Raises:
        UserError: less than `needs` bytes are free, or the folder cannot be written.
    """
    with writing(folder, _ELSEWHERE):
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
    check_room(folder, needs, f"free some, or {_ELSEWHERE}")


def _sweep(folder: Path) -> None:
    """Remove what killed processes left: drafts that nobody has touched for a day."""
    for draft in folder.glob(".*.partial"):
        if time.time() - draft.stat().st_mtime > _ABANDONED_SECONDS:
            shutil.rmtree(draft, ignore_errors=True)
