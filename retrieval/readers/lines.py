"""Strict UTF-8 text from plain or gzip files. Knows lines and bytes, no record format."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from retrieval.errors import UserError

_BOM = b"\xef\xbb\xbf"


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        with cast(BinaryIO, gzip.open(path) if path.suffix == ".gz" else path.open("rb")) as file:
            yield file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path}: damaged gzip file ({error}); fetch or write it again") from error
    except FileNotFoundError as error:
        raise UserError(f"no file {path}") from error
    except IsADirectoryError as error:
        raise UserError(f"{path} is a directory; name its files, such as {path}/*.md") from error
    except PermissionError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def _decode(data: bytes, path: Path, line: int, offset: int) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line += data.count(b"\n", 0, error.start)
        guess = "utf-16" if offset == 0 and data[:2] in (b"\xff\xfe", b"\xfe\xff") else "latin1"
        raise UserError(
            f"{path}:{line}: not UTF-8 (byte 0x{data[error.start]:02x} at offset {offset + error.start}); "
            f"convert it, for example: iconv -f {guess} -t utf-8"
        ) from error


def read_lines(path: Path) -> Iterator[str]:
    """Lines with their ends, decoded one by one; a byte-order mark is skipped.

    Raises:
        UserError: the file is missing, damaged or not UTF-8 (names line and offset).
    """
    offset = 0
    with _opened(path) as file:
        for number, data in enumerate(file, start=1):
            skip = len(_BOM) if number == 1 and data.startswith(_BOM) else 0
            yield _decode(data[skip:], path, number, offset + skip)
            offset += len(data)


def read_whole(path: Path) -> str:
    """The whole text of a file with line ends of one kind.

    Raises:
        UserError: as `read_lines`.
    """
    with _opened(path) as file:
        data = file.read()
    skip = len(_BOM) if data.startswith(_BOM) else 0
    return _decode(data[skip:], path, 1, skip).replace("\r\n", "\n").replace("\r", "\n")
