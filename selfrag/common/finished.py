"""Directories that a manifest declares finished: their checksums, and what is said of damaged ones."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeVar

from selfrag.common.errors import UserError, count_of
from selfrag.common.reading import read_json, user_path
from selfrag.common.validation import validate


def recover(target: Path) -> None:
    """Give a directory its name again where `publish` was killed between its renames.

    To be called before `target` is read or replaced. Where nothing is to be mended, nothing is done.
    """
    if not os.path.lexists(target):
        for old in set_aside(target):
            # another process was faster, or nothing can be written here
            with suppress(OSError):
                old.rename(target)


def set_aside(target: Path) -> list[Path]:
    """Return directories that were called `target` until another took their place."""
    return list(target.parent.glob(f".{glob.escape(target.name)}.{'?' * 8}.old"))


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
    """Return blake2b of files below `directory` by relative name; reads all of them."""
    sums = {}
    for name in names:
        with (directory / name).open("rb") as file:
            sums[name] = hashlib.file_digest(
                file, lambda: hashlib.blake2b(digest_size=16)
            ).hexdigest()
    return sums


def damaged(what: str, directory: Path, why: object) -> UserError:
    """Return the error for a finished directory that does not hold what was written."""
    return UserError(f"{what} {directory} is damaged: {why}; build it again")


def check_finished(
    directory: Path,
    kind: type[T],
    formats: Sequence[str],
    what: str,
    needed: Sequence[str],
) -> T:
    """Return the manifest of a finished directory, or raise UserError where it is not whole.

    `formats` are values of the manifest's `format` that can be read, the present one first; `needed` are files that it
    must list; `what` is the directory in an error, such as `index`.
    """
    directory = user_path(directory)
    if not directory.exists():
        raise UserError(
            f"no {what} at {directory}; build it first, for example: selfrag index build FILES -o DIR"
        )
    if not directory.is_dir():
        raise UserError(f"{directory} is a file, not the directory of a {what}")
    if not (directory / MANIFEST).exists():
        if not any((directory / name).exists() for name in needed):
            raise UserError(
                f"{directory} is no {what}: it has no {MANIFEST}; give the folder that `selfrag index build` wrote"
            )
        raise UserError(
            f"{what} {directory} is half-written: it has no {MANIFEST}; build it again"
        )
    try:
        values = read_json(directory / MANIFEST)
        stated = values.pop("format", None) if isinstance(values, dict) else formats[0]
        if stated not in formats:
            raise UserError(f"{stated!r:.60} is not the format {formats[0]!r}")
        manifest = validate(kind, values, MANIFEST)
    except UserError as error:
        raise damaged(what, directory, error) from error
    actual_sizes = sizes(directory)
    for name in (*needed, *manifest.files):
        size, actual = manifest.files.get(name), actual_sizes.get(name)
        if size is None or actual != size:
            state = "is missing"
            if actual is not None:
                state = f"has {count_of(actual, 'bytes')}, {MANIFEST} says {size}"
            raise UserError(
                f"{what} {directory} is half-written: {name:.80} {state}; build it again"
            )
    return manifest
