"""Recognises a directory that was written to its end: a manifest, and every file it lists at its full size.

Knows no content. Our own writes are atomic; what this finds are copies that stopped half-way and manual damage.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from retrieval.errors import UserError
from retrieval.reading import read_json, user_path
from retrieval.records import record

MANIFEST = "manifest.json"


class Manifest(Protocol):
    """What a directory holds; written last."""

    @property
    def files(self) -> dict[str, int]:
        """Bytes by relative name."""
        ...


T = TypeVar("T", bound=Manifest)


def sizes(directory: Path) -> dict[str, int]:
    """Bytes of every file below `directory` by relative name, the manifest left out."""
    files = sorted(path for path in directory.rglob("*") if path.is_file() and path != directory / MANIFEST)
    return {path.relative_to(directory).as_posix(): path.stat().st_size for path in files}


def check_finished(directory: Path, kind: type[T], expected: str, what: str, needed: Sequence[str]) -> T:
    """The manifest of a finished directory.

    Args:
        directory: where it should be.
        kind: dataclass of the manifest, with the field `files`: bytes by relative name.
        expected: value of the manifest's `format`.
        what: its name in an error, such as `index`.
        needed: files that it must list.

    Raises:
        UserError: missing, half-written, of another format, or damaged.
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
        stated = values.pop("format", None) if isinstance(values, dict) else expected
        if stated != expected:
            raise UserError(f"{stated!r:.60} is not the format {expected!r}")
        manifest = record(kind, values, MANIFEST)
    except UserError as error:
        raise UserError(f"{what} {directory} is damaged ({error}); build it again") from error
    found = sizes(directory)
    for name in (*needed, *manifest.files):
        size, actual = manifest.files.get(name), found.get(name)
        if size is None or actual != size:
            state = "is missing" if actual is None else f"has {actual} bytes, {MANIFEST} says {size}"
            raise UserError(f"{what} {directory} is half-written: {name:.80} {state}; build it again")
    return manifest
