"""Manifests: directories that were written to their end, and dataclasses read strictly from JSON."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, get_args, get_origin, get_type_hints

from retrieval.errors import UserError
from retrieval.reading import read_json, user_path

R = TypeVar("R")


def record(kind: type[R], values: object, where: str) -> R:
    """An object of a dataclass whose fields are text, numbers, truth values, dictionaries of them, or such dataclasses.

    Fields with a default may be left out, and the checks of the dataclass run too. An error names the field.
    """
    if not isinstance(values, Mapping):
        raise UserError(f"{where} must be an object, not {type(values).__name__}")
    hints = get_type_hints(kind)
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            raise UserError(f"{where} has the unknown field {name!r:.60}; known: {', '.join(known)}")
    for name, field in known.items():
        if name not in values and field.default is MISSING and field.default_factory is MISSING:
            raise UserError(f"{where} has no {name}")
    given = {name: _value(hints[name], value, f"{where}: {name}") for name, value in values.items()}
    try:
        return kind(**given)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error


def _value(hint: Any, value: Any, where: str) -> Any:
    if is_dataclass(hint) and isinstance(hint, type):
        return record(hint, value, where)
    if get_origin(hint) is list:
        if not isinstance(value, list):
            raise UserError(f"{where} must be a list, not {type(value).__name__} {value!r:.60}")
        return [_value(get_args(hint)[0], one, f"{where} {number}") for number, one in enumerate(value, start=1)]
    if get_origin(hint) is dict:
        if not isinstance(value, Mapping):
            raise UserError(f"{where} must be an object, not {type(value).__name__} {value!r:.60}")
        of_key, of_value = get_args(hint)
        return {_value(of_key, key, where): _value(of_value, one, f"{where} {key!r:.60}") for key, one in value.items()}
    options = get_args(hint) or (hint,)
    inner = next((one for one in options if is_dataclass(one) and isinstance(one, type)), None)
    if inner is not None and value is not None:
        return record(inner, value, where)
    if float in options and type(value) is int:
        return value
    if type(value) not in options:
        wanted = " or ".join("null" if one is type(None) else one.__name__ for one in options)
        raise UserError(f"{where} must be {wanted}, not {type(value).__name__} {value!r:.60}")
    return value


MANIFEST = "manifest.json"


class Manifest(Protocol):
    """What a directory holds; written last."""

    @property
    def files(self) -> dict[str, int]:
        """Bytes by relative name."""


T = TypeVar("T", bound=Manifest)


def sizes(directory: Path) -> dict[str, int]:
    """Bytes of every file below `directory` by relative name, the manifest and locks left out."""
    found = (path for path in directory.rglob("*") if path.suffix != ".lock")
    files = sorted(path for path in found if path.is_file() and path != directory / MANIFEST)
    return {path.relative_to(directory).as_posix(): path.stat().st_size for path in files}


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


def check_finished(
    directory: Path, kind: type[T], expected: str | Sequence[str], what: str, needed: Sequence[str]
) -> T:
    """The manifest of a finished directory; one that is missing, half-written, damaged or of another format is refused.

    Args:
        directory: where it should be.
        kind: dataclass of the manifest, with the field `files`: bytes by relative name.
        expected: value of the manifest's `format`, or several that can be read, the present one first.
        what: its name in an error, such as `index`.
        needed: files that it must list.
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
        formats = (expected,) if isinstance(expected, str) else expected
        stated = values.pop("format", None) if isinstance(values, dict) else formats[0]
        if stated not in formats:
            raise UserError(f"{stated!r:.60} is not the format {formats[0]!r}")
        manifest = record(kind, values, MANIFEST)
    except UserError as error:
        raise damaged(what, directory, error) from error
    found = sizes(directory)
    for name in (*needed, *manifest.files):
        size, actual = manifest.files.get(name), found.get(name)
        if size is None or actual != size:
            state = "is missing" if actual is None else f"has {actual} bytes, {MANIFEST} says {size}"
            raise UserError(f"{what} {directory} is half-written: {name:.80} {state}; build it again")
    return manifest
