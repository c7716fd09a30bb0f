"""Records of public files: JSON Lines or one JSON array, plain or gzipped, each with its line. Knows no schema.

ALCE publishes arrays, and results of its programs as `{"data": [...]}`; Self-RAG publishes JSON Lines, sometimes under
either ending. The first character decides, not the name.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from retrieval.reading import mended_json
from selfrag.errors import UserError
from selfrag.jsonl import read_jsonl

T = TypeVar("T")
_GAP = re.compile(r"[\s]*")
_DATA = re.compile(r'\s*\{\s*"data"\s*:\s*(?=\[)')
_NOT_JSON = (ValueError, RecursionError, UserError)  # JSON's own, or a number of thousands of digits


def read_records(path: Path, parse: Callable[[dict[str, Any]], T]) -> list[T]:
    """Parse every record of a file.

    Args:
        path: the file.
        parse: makes a value of one object; raises `UserError` for a bad one.

    Raises:
        UserError: the file cannot be read, is empty, or a record is bad; names `file:line`.
    """
    start = _beginning(path)
    whole = start.startswith("[") or _DATA.match(start) is not None
    found = _array(path, parse) if whole else list(read_jsonl(path, parse, mended=True))
    if not found:
        raise UserError(f"{path}: no rows; check that this is the right file")
    return found


def _beginning(path: Path) -> str:
    """The first characters, without the space before them; the readers complain about what cannot be read."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            return stream.read(200).decode("utf-8", errors="replace").lstrip()
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error


def _array(path: Path, parse: Callable[[dict[str, Any]], T]) -> list[T]:
    text = mended_json(_text(path))
    data = _DATA.match(text)
    at = text.index("[", data.end() if data else 0) + 1
    decoder, line, counted = json.JSONDecoder(), 1, 0
    found: list[T] = []
    while True:
        at = _GAP.match(text, at).end()  # type: ignore[union-attr]  # matches anywhere, if only nothing
        line, counted = line + text.count("\n", counted, at), at
        if text[at : at + 1] == "]":
            return found
        try:
            record, at = decoder.raw_decode(text, at)
            if not isinstance(record, dict):
                raise UserError(f"a row must be an object, not {type(record).__name__}")
            found.append(parse(record))
            at = _GAP.match(text, at).end()  # type: ignore[union-attr]
            if text[at : at + 1] not in (",", "]"):
                raise UserError("',' or ']' must follow this row")
        except _NOT_JSON as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else error
            raise UserError(f"{path}:{line}: {reason}; fix the row that begins on this line") from error
        at += text[at] == ","


def _text(path: Path) -> str:
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: not UTF-8 ({error.reason}); fix this line") from error
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
