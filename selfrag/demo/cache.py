"""Where downloaded and built things are kept, and how a finished one gets there: in one step or not at all.

What is found in the cache is whole and can be used without looking; it is made by one process, for which others wait.
Knows nothing of what is kept.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from retrieval.atomic import new_directory, recover
from retrieval.lock import held
from retrieval.reading import user_path
from selfrag.errors import UserError

_ABANDONED_SECONDS = 24 * 3600
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def cache_home() -> Path:
    """`$SELFRAG_CACHE`, else `selfrag` in `$XDG_CACHE_HOME`, else `~/.cache/selfrag`. Need not exist.

    A relative `$XDG_CACHE_HOME` is ignored, as its specification asks.
    """
    if own := os.environ.get("SELFRAG_CACHE"):
        return user_path(own).absolute()
    xdg = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (xdg if xdg.is_absolute() else Path.home() / ".cache") / "selfrag"


def publish(target: Path, build: Callable[[Path], None], *, needs: int = 0) -> Path:
    """The folder `target`, built first if it does not exist.

    Args:
        target: folder to end up with.
        build: fills the empty folder it is given.
        needs: bytes of free disk without which there is no point in starting.

    Returns:
        `target`.

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
        with new_directory(target) as draft, _explained(target.parent):
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
    with _explained(folder):
        folder.mkdir(parents=True, exist_ok=True)

    def wait() -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"waiting for another process that prepares something in {folder}\n")

    with held(folder, wait):
        yield


def make_room(folder: Path, needs: int) -> None:
    """Make `folder`, and clear it of what killed processes left there.

    Raises:
        UserError: less than `needs` bytes are free, or the folder cannot be written.
    """
    with _explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        free = shutil.disk_usage(folder).free
    if free < needs:
        raise _full(folder, f"{free // 2**20} MB free, {needs // 2**20} MB needed")


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Turn what a disk can do to a writer into one line that says how to use another disk."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        number = getattr(error, "errno", None)
        # Writers in C++ and Rust (safetensors, arrow, faiss) report a full disk as exceptions of their own.
        if number in _FULL or "no space left on device" in str(error).casefold():
            raise _full(folder, os.strerror(number or errno.ENOSPC)) from error
        if number in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            reason = os.strerror(number)
            raise UserError(f"cannot write to {folder} ({reason}); set SELFRAG_CACHE to another folder") from error
        raise


def _full(folder: Path, what: str) -> UserError:
    return UserError(f"{folder}: {what}; free some, or set SELFRAG_CACHE to a folder on another disk")


def _sweep(folder: Path) -> None:
    """Remove what killed processes left: drafts that nobody has touched for a day."""
    for draft in folder.glob(".*.partial"):
        if time.time() - draft.stat().st_mtime > _ABANDONED_SECONDS:
            shutil.rmtree(draft, ignore_errors=True)
