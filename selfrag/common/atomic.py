"""Atomic writing and locks: a crash, a full disk or Ctrl-C never leaves something that looks finished."""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from selfrag.common.errors import UserError
from selfrag.common.reading import read_json, user_path
from selfrag.common.validation import validate

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED = {
    *(errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.EISDIR, errno.ELOOP),
}
_RECOVERED = {errno.ENOTEMPTY, errno.EEXIST}  # a reader found nothing there, and put back what was set aside


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the machine can refuse while `path` is written into one line."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise UserError(
                f"no space left while writing {path} ({error.strerror}); free some and run the same again"
            ) from error
        if error.errno in _REFUSED:
            raise UserError(f"cannot write {path}: {error.strerror}") from error
        raise


def check_room(target: Path, needs: int = 1) -> None:
    """Refuse to begin what cannot fit: `needs` bytes where `target` will be, whose folder need not exist yet."""
    folder = next(one for one in (target.absolute(), *target.absolute().parents) if one.exists())
    free = shutil.disk_usage(folder).free
    if free < needs:
        needed = f"{free:,} bytes free, at least {needs:,} needed"
        raise UserError(f"no space left for {target} ({needed}); free some and run the same again")


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
    if path.exists() and not path.is_file():  # a renamed file would take the place of /dev/null
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
    """A directory to fill, which becomes `target` when the block ends well and vanishes when it does not.

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
    for old in _set_aside(target):
        discarded = _sibling(target, ".partial")  # what is called .old is whole
        with suppress(OSError):
            old.rename(discarded)
            shutil.rmtree(discarded) if discarded.is_dir() and not discarded.is_symlink() else discarded.unlink()


def recover(target: Path) -> None:
    """Where `publish` was killed between its renames, give the directory that it was replacing its name again.

    To be called before `target` is read or replaced. Where nothing is to be mended, nothing is done.
    """
    if not os.path.lexists(target):
        for old in _set_aside(target):
            with suppress(OSError):  # another process was faster, or nothing can be written here
                old.rename(target)


def _set_aside(target: Path) -> list[Path]:
    return list(target.parent.glob(f".{glob.escape(target.name)}.{'?' * 8}.old"))


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


MANIFEST = "manifest.json"


class Manifest(Protocol):
    """What a directory holds; written last."""

    @property
    def files(self) -> dict[str, int]:
        """Bytes by relative name."""


T = TypeVar("T", bound=Manifest)


def sizes(directory: Path) -> dict[str, int]:
    """Return the bytes of every file below `directory` by relative name, the manifest and locks left out."""
    files: dict[str, int] = {}
    for path in sorted(directory.rglob("*")):
        if path.suffix == ".lock" or path == directory / MANIFEST or not path.is_file():
            continue
        with suppress(FileNotFoundError):  # another process changes the index
            files[path.relative_to(directory).as_posix()] = path.stat().st_size
    return files


def checksums(directory: Path, names: Iterable[str]) -> dict[str, str]:
    """blake2b of files below `directory` by relative name; reads all of them."""
    found = {}
    for name in names:
        with (directory / name).open("rb") as file:
            found[name] = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    return found


def damaged(what: str, directory: Path, why: object) -> UserError:
    """The error for a finished directory that does not hold what was written."""
    return UserError(f"{what} {directory} is damaged: {why}; build it again")


def check_finished(directory: Path, kind: type[T], formats: Sequence[str], what: str, needed: Sequence[str]) -> T:
    """The manifest of a finished directory; one that is missing, half-written, damaged or of another format is refused.

    `formats` are values of the manifest's `format` that can be read, the present one first; `needed` are files that it
    must list; `what` is the directory in an error, such as `index`.
    """
    directory = user_path(directory)
    if not directory.exists():
        raise UserError(f"no {what} at {directory}; build it first, for example: selfrag index build FILES -o DIR")
    if not directory.is_dir():
        raise UserError(f"{directory} is a file, not the directory of a {what}")
    if not (directory / MANIFEST).exists():
        raise UserError(f"{what} {directory} is half-written: it has no {MANIFEST}; build it again")
    try:
        values = read_json(directory / MANIFEST)
        stated = values.pop("format", None) if isinstance(values, dict) else formats[0]
        if stated not in formats:
            raise UserError(f"{stated!r:.60} is not the format {formats[0]!r}")
        manifest = validate(kind, values, MANIFEST)
    except UserError as error:
        raise damaged(what, directory, error) from error
    found = sizes(directory)
    for name in (*needed, *manifest.files):
        size, actual = manifest.files.get(name), found.get(name)
        if size is None or actual != size:
            state = "is missing" if actual is None else f"has {actual} bytes, {MANIFEST} says {size}"
            raise UserError(f"{what} {directory} is half-written: {name:.80} {state}; build it again")
    return manifest
