"""Large files in parts: for machines without a network that take a few MiB at a time.

`split_file` writes the parts and a list of checksums beside them. `join_parts` checks every part and the joined file.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from selfrag.common.atomic import new_directory, write_json
from selfrag.common.errors import UserError
from selfrag.common.reading import read_json
from selfrag.demo import BASE_MODEL, asset_path
from selfrag.demo.download import publish

LIST = "parts.json"
"""Name of the list of checksums in a folder of parts."""

_MEBIBYTE = 2**20
_CHECKSUM = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class FilePart:
    """One part of a file."""

    name: str  # file name in the folder of the parts
    size: int  # bytes
    sha256: str  # of its content


@dataclass(frozen=True, slots=True)
class SplitFile:
    """A file in parts."""

    name: str  # of the joined file
    size: int  # bytes of the joined file
    sha256: str  # of the joined file
    parts: tuple[FilePart, ...]  # in order


def split_file(file: Path, folder: Path, most: int) -> SplitFile:
    """Write a file as parts of at most `most` bytes into a new folder, with their checksums in `parts.json`.

    Raises:
        UserError: the file cannot be read or is empty, or the folder exists or cannot be written.
    """
    if folder.exists():
        raise UserError(f"{folder} exists already; name another folder or remove it")
    if not file.is_file():
        raise UserError(f"no file {file}")
    digest = hashlib.sha256()
    parts: list[FilePart] = []
    with new_directory(folder) as draft, file.open("rb") as source:
        while content := source.read(most):
            digest.update(content)
            name = f"{file.name}.{len(parts) + 1:03d}"
            (draft / name).write_bytes(content)
            parts.append(FilePart(name, len(content), hashlib.sha256(content).hexdigest()))
        if not parts:
            raise UserError(f"{file} is empty")
        record = SplitFile(file.name, sum(part.size for part in parts), digest.hexdigest(), tuple(parts))
        write_json(draft / LIST, asdict(record))
    return record


def join_parts(folder: Path, target: Path, sha256: str | None = None) -> SplitFile:
    """Join the parts of a folder into the file `target`, which appears only when every checksum is right.

    Args:
        folder: what `split_file` wrote.
        target: the file to write.
        sha256: the checksum that the joined file must have; None for that of the list alone.

    Raises:
        UserError: the list or a part is missing or damaged, or `target` exists or cannot be written.
    """
    split = read_list(folder)
    if sha256 is not None and split.sha256 != sha256:
        raise UserError(
            f"{folder} holds parts of {split.name} with SHA-256 {split.sha256[:12]}.., not {sha256[:12]}..;"
            " split the right file"
        )
    if target.exists():
        raise UserError(f"{target} exists already; name another file or remove it")
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.partial")
    digest = hashlib.sha256()
    try:
        with draft.open("wb") as sink:
            for content in _checked_parts(folder, split):
                digest.update(content)
                sink.write(content)
        if digest.hexdigest() != split.sha256:
            raise UserError(f"{folder}: the joined parts are not {split.name}; split it again")
        draft.rename(target)
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror}") from error
    finally:
        draft.unlink(missing_ok=True)
    return split


def _checked_parts(folder: Path, split: SplitFile) -> Iterator[bytes]:
    """Yield the content of each part, in order."""
    for part in split.parts:
        path = folder / part.name
        if not path.is_file():
            raise UserError(f"{folder} lacks {part.name}, one of {len(split.parts)} parts; copy it here")
        if path.stat().st_size != part.size:
            raise UserError(f"{path} has {path.stat().st_size} bytes, not {part.size}; copy it again")
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != part.sha256:
            raise UserError(f"{path} is damaged: it has another SHA-256 than {LIST} says; copy it again")
        yield content


def read_list(folder: Path) -> SplitFile:
    """Read and check the list of a folder of parts.

    Raises:
        UserError: it is missing, or no list of parts.
    """
    path = folder / LIST
    record = read_json(path)
    try:
        parts = tuple(FilePart(**part) for part in record["parts"])
        split = SplitFile(record["name"], record["size"], record["sha256"], parts)
        _check(split)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is no list of parts ({error}); split the file again") from error
    return split


def _check(split: SplitFile) -> None:
    """Raise ValueError for names that leave the folder, and values of the wrong kind."""
    entries: list[Any] = [split, *split.parts]
    for entry in entries:
        if not isinstance(entry.name, str) or Path(entry.name).name != entry.name:
            raise ValueError(f"name {entry.name!r:.60}")
        if not isinstance(entry.sha256, str) or not _CHECKSUM.fullmatch(entry.sha256):
            raise ValueError(f"sha256 {entry.sha256!r:.60}")
        if isinstance(entry.size, bool) or not isinstance(entry.size, int) or entry.size < 1:
            raise ValueError(f"size {entry.size!r:.60}")
    if not split.parts or sum(part.size for part in split.parts) != split.size:
        raise ValueError("the sizes of the parts do not add up")


def fill_cache(folder: Path) -> Path:
    """Put the demo's base model from parts where `selfrag.demo` looks for it; returns its folder.

    Raises:
        UserError: as `join_parts`.
    """
    [(name, checksum)] = BASE_MODEL.files.items()

    def build(draft: Path) -> None:
        join_parts(folder, draft / name, checksum)

    return publish(asset_path(BASE_MODEL), build, needs=BASE_MODEL.megabytes * _MEBIBYTE)
