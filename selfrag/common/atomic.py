"""Atomic writing and locks: a crash, a full disk or Ctrl-C never leaves something that looks finished."""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from selfrag.common.errors import UserError, count_of
from selfrag.common.finished import recover, set_aside

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EEXIST,
    errno.ENAMETOOLONG,
    errno.EISDIR,
    errno.ELOOP,
}
# a reader found nothing there, and put back what was set aside
_RECOVERED = {errno.ENOTEMPTY, errno.EEXIST}


_AGAIN = "free some and run the same again"


@contextmanager
def writing(path: Path, elsewhere: str = "") -> Iterator[None]:
    """Turn what a machine refuses while `path` is written into one line; `elsewhere` says how to use another place."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        number = getattr(error, "errno", None)
        # Writers in C++ and Rust (safetensors, arrow, faiss) report a full disk as exceptions of their own.
        if number in _FULL or "no space left on device" in str(error).casefold():
            why = os.strerror(number or errno.ENOSPC)
            hint = f"free some, or {elsewhere}" if elsewhere else _AGAIN
            raise UserError(
                f"no space left while writing {path} ({why}); {hint}"
            ) from error
        if isinstance(error, OSError) and number in _REFUSED:
            hint = f"; {elsewhere}" if elsewhere else ""
            raise UserError(f"cannot write {path}: {error.strerror}{hint}") from error
        raise


def check_free(paths: Iterable[Path], replace: bool) -> list[Path]:
    """Return the files that would be written over; refuse them unless they may be replaced. Empty ones are free."""
    taken = [path for path in paths if path.is_file() and path.stat().st_size]
    if taken and not replace:
        raise UserError(
            f"{taken[0]} is there already; give --replace to write over it, or name another place"
        )
    return taken


def check_room(target: Path, needs: int = 1, then: str = _AGAIN) -> None:
    """Refuse to begin what cannot fit: `needs` bytes where `target` will be, whose folder need not exist yet."""
    folder = next(
        place
        for place in (target.absolute(), *target.absolute().parents)
        if place.exists()
    )
    free = shutil.disk_usage(folder).free
    if free < needs:
        needed = f"{count_of(free, 'bytes', form=',')} free, at least {needs:,} needed"
        raise UserError(f"no space left for {target} ({needed}); {then}")


def check_writable(path: Path) -> None:
    """Refuse a place at which nothing can be made; nothing is left there."""
    try:
        places = (path.absolute(), *path.absolute().parents)
        folder = next(place for place in places if place.exists())
        if path.is_file():
            folder = folder.parent
        elif not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(
            f"cannot write {str(path)[:120]!r}: {error.strerror}"
        ) from error
    check_room(path)


def _sibling(target: Path, suffix: str) -> Path:
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}{suffix}")


def write_json(path: Path, value: Any) -> None:
    """Replace the JSON file `path` in one step."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """Replace the UTF-8 file `path` in one step."""
    write_pieces(path, (text,))


def write_bytes(path: Path, content: bytes | memoryview) -> None:
    """Replace the file `path` in one step."""
    _write(path, (content,))


def write_pieces(path: Path, pieces: Iterable[str]) -> None:
    """Replace a file as `write_text`, by a text that is too long to be in memory at once."""
    _write(path, (piece.encode() for piece in pieces))


def _write(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    # a renamed file would take the place of /dev/null
    if path.exists() and not path.is_file():
        raise UserError(f"cannot write {path}: it is no ordinary file")
    partial = _sibling(path, ".partial")
    with writing(path):
        try:
            with partial.open("wb") as file:
                file.writelines(pieces)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


@contextmanager
def new_directory(target: Path) -> Iterator[Path]:
    """Make a directory to fill, which becomes `target` when the block ends well and vanishes when it does not.

    An existing `target` is replaced; whoever has it memory-mapped keeps reading the old files.
    """
    target = Path(os.path.abspath(target))  # noqa: PTH100 - resolve() would follow a link and replace what it points to
    partial = _sibling(target, ".partial")
    with writing(target):
        recover(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial.mkdir()
        try:
            yield partial
            publish(partial, target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def publish(finished: Path, target: Path) -> None:
    """Rename a finished directory to `target` on the same file system, in the place of whatever is there.

    There is a moment between two renames at which nothing has that name; after a kill there, `recover` mends it.
    """
    while True:
        try:
            if os.path.lexists(target):
                target.rename(_sibling(target, ".old"))
            finished.rename(target)
            break
        except BaseException as error:
            recover(target)
            if not isinstance(error, OSError) or error.errno not in _RECOVERED:
                raise
    for old in set_aside(target):
        discarded = _sibling(target, ".partial")  # what is called .old is whole
        with suppress(OSError):
            old.rename(discarded)
            shutil.rmtree(
                discarded
            ) if discarded.is_dir() and not discarded.is_symlink() else discarded.unlink()


_held: set[int] = set()


def _let_go() -> None:
    for handle in _held:
        os.close(handle)
    _held.clear()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_let_go)


@contextmanager
def locked_directory(directory: Path) -> Iterator[Path]:
    """Make `directory` and hold it for this process."""

    def refuse() -> None:
        raise UserError(f"another process is writing {directory}; wait for it to end")

    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
    with hold(directory, refuse):
        yield directory


@contextmanager
def hold(directory: Path, busy: Callable[[], None]) -> Iterator[None]:
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
        except OSError:  # a network disk without locks
            pass
        yield
    finally:
        if handle in _held:  # not in a forked child that leaves this block
            _held.remove(handle)
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)
