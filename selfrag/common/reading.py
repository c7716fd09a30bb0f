"""Files that a user names, read so that whatever is wrong with one is a single line.

The path, the kind of file, the bytes, the text and the JSON in it: each fault names the file and what to do.
"""

from __future__ import annotations

import codecs
import gzip
import json
import os
import re
import stat
import sys
import tomllib
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO, cast

from selfrag.common.errors import UserError

_MOST = 1 << 28  # bytes of a line, or of a text that is read whole
# a compressed file may always give so many bytes, and beyond them so many a packed byte
_UNPACKED, _RATIO = 1 << 24, 200

_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
"""Of JSON; the group is half of a character without the other half."""
_NO_CHARACTER = re.compile("[\0\ud800-\udfff]")
"""A NUL, or half of a character, in decoded text."""


def user_path(path: str | Path) -> Path:
    """Return the path with `~` replaced by the home folder; there need be nothing at it."""
    try:
        file_path = Path(path).expanduser()
        if "\0" in str(file_path):
            raise ValueError("it holds a NUL character")
        file_path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except UnicodeEncodeError as error:
        raise UserError(
            f"this locale ({error.encoding}) cannot name {str(path)!r:.120}; set PYTHONUTF8=1"
        ) from error
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: `~nobody`
        reason: object = error
        if isinstance(error, OSError):
            reason = error.strerror
        raise UserError(
            f"no usable path {str(path)!r:.120}: {reason}; give another"
        ) from error
    return file_path


def cache_home() -> Path:
    """Return `$SELFRAG_CACHE`, else `selfrag` in `$XDG_CACHE_HOME`, else `~/.cache/selfrag`. It need not exist.

    A relative `$XDG_CACHE_HOME` is ignored, as its specification asks.
    """
    cache = os.environ.get("SELFRAG_CACHE")
    if cache:
        return user_path(cache).absolute()
    xdg = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (xdg if xdg.is_absolute() else Path.home() / ".cache") / "selfrag"


def regular_file(path: str | Path) -> Path:
    """Return the path of a file that can be read to its end: no folder, pipe or device."""
    file_path = user_path(path)
    fault = None
    if not file_path.exists():
        fault = "no file is there"
    elif file_path.is_dir():
        fault = f"it is a directory; name its files, such as {file_path}/*.md"
    elif not stat.S_ISREG(file_path.stat().st_mode):
        fault = "it is a pipe or a device; save what it gives in a file and name that"
    elif not os.access(file_path, os.R_OK):
        fault = "Permission denied"
    if fault:
        raise UserError(f"{file_path}: cannot be read: {fault}")
    return file_path


@contextmanager
def opened(path: str | Path) -> Iterator[BinaryIO]:
    """Open a file of bytes, unpacked where its name ends in `.gz`. Do nothing but read it in the block."""
    file_path = regular_file(path)
    try:
        with cast(
            BinaryIO,
            gzip.open(file_path) if file_path.suffix == ".gz" else file_path.open("rb"),
        ) as file:
            yield file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(
            f"{file_path}: cannot be read: damaged gzip file ({error}); fetch or write it again"
        ) from error
    except OSError as error:
        raise UserError(
            f"{file_path}: cannot be read: {error.strerror or error}"
        ) from error


def read_lines(path: str | Path) -> Iterator[str]:
    """Yield lines with their ends, decoded one by one. At most one line is in memory.

    The text is UTF-8, or UTF-16 with a byte order mark, as spreadsheets save it; the mark is skipped.
    """
    with opened(path) as file:
        most, offset, number = _most_bytes(file, path), 0, 0
        if _is_utf16(file.read(4)):
            yield from _utf16_lines(file, path, most)
            return
        file.seek(0)
        while line := file.readline(_MOST + 1):
            number += 1
            if len(line) > _MOST:
                raise _long_line(path, number)
            if offset + len(line) > most:
                raise UserError(f"{path}:{number}: {_bomb(most)}")
            yield _decode(line, path, number, offset)
            offset += len(line)


def _is_utf16(head: bytes) -> bool:
    """Return whether a file begins with the byte order mark of UTF-16, which that of UTF-32 begins with, too."""
    return (
        head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        and head[:4] != codecs.BOM_UTF32_LE
    )


def _utf16_lines(file: BinaryIO, path: str | Path, most: int) -> Iterator[str]:
    """Yield the lines of a file in UTF-16 with a byte order mark."""
    file.seek(0)
    longest = _MOST // 2  # characters, most of which have two bytes
    number = 1
    # Half characters pass the decoder, so that the line that holds one can be named.
    with TextIOWrapper(file, "utf-16", errors="surrogatepass", newline="\n") as text:
        try:
            while line := text.readline(longest + 1):
                if len(line) > longest:
                    raise _long_line(path, number)
                if file.tell() > most:
                    raise UserError(f"{path}:{number}: {_bomb(most)}")
                _check_characters(line, path, number)
                yield line
                number += 1
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path}:{number}: not UTF-16 ({error.reason}); save it again as UTF-8"
            ) from error


def _check_characters(text: str, path: str | Path, number: int) -> None:
    """Raise UserError where text from UTF-16 holds half of a character or a NUL; it begins at line `number`."""
    wrong = _NO_CHARACTER.search(text)
    if wrong:
        line = number + text.count("\n", 0, wrong.start())
        raise UserError(
            f"{path}:{line}: not UTF-16 (U+{ord(wrong[0]):04X} is no character); save it again as UTF-8"
        )


def _long_line(path: str | Path, number: int) -> UserError:
    return UserError(
        f"{path}:{number}: a line of more than {_MOST >> 20} MiB; cut it into several rows"
    )


def read_whole(path: str | Path) -> str:
    """Return the whole text of a file with line ends of one kind; for its encoding see `read_lines`."""
    with opened(path) as file:
        most = _most_bytes(file, path)
        data = file.read(min(_MOST, most) + 1)
    if len(data) > min(_MOST, most):
        if most < _MOST:
            raise UserError(f"{path}: {_bomb(most)}")
        raise UserError(
            f"{path}: more than {_MOST >> 20} MiB; cut it into several files"
        )
    is_utf16 = _is_utf16(data[:4])
    text = _decode_utf16(data, path) if is_utf16 else _decode(data, path, 1, 0)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _decode_utf16(data: bytes, path: str | Path) -> str:
    try:
        text = data.decode("utf-16", "surrogatepass")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: not UTF-16 ({error.reason}); save it again as UTF-8"
        ) from error
    _check_characters(text, path, 1)
    return text


def read_json(path: str | Path, *, nan: bool = False) -> Any:
    """Return the value of a JSON file."""
    return parse_json(read_whole(path), str(path), nan=nan)


def mended_json(text: str) -> str:
    """Return a JSON text of the same length with U+FFFD for lone surrogates, which no UTF-8 can hold."""
    return _ESCAPE.sub(lambda match: "\\ufffd" if match[1] else match[0], text)


def parse_json(
    text: str, where: str, *, nan: bool = False, mended: bool = False
) -> Any:
    """Return the value of a JSON text, read strictly: no key twice, not nested deeply, no endless number.

    `where` names file and line in the error. `nan` takes NaN and infinity, which JSON does not have, as Python writes
    them. `mended` reads what `mended_json` makes of the text.
    """
    constants = None if nan else _no_constant
    try:
        text = mended_json(text) if mended else text
        return json.loads(text, object_pairs_hook=_once, parse_constant=constants)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}".removeprefix("line 1 ")
        raise UserError(f"{where}: not JSON ({error.msg} at {place})") from error
    except RecursionError as error:
        raise UserError(
            f"{where}: JSON that cannot be read (it is nested too deeply)"
        ) from error
    except ValueError as error:  # a constant, a key twice, too many digits
        raise UserError(f"{where}: JSON that cannot be read ({error})") from error


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """Return the tables of a TOML text; `where` names the file in the error."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not TOML ({error})") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        twice = next(
            name
            for name, count in Counter(name for name, _ in pairs).items()
            if count > 1
        )
        raise ValueError(f"the key {twice[:60]!r} occurs twice")
    return values


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON value")


def unpacked_limit(packed: int) -> int:
    """Return to how many bytes a compressed file of a size may unpack."""
    return max(_UNPACKED, _RATIO * packed)


def _most_bytes(file: BinaryIO, path: str | Path) -> int:
    if Path(path).suffix != ".gz":
        return sys.maxsize
    return unpacked_limit(os.fstat(file.fileno()).st_size)


def _bomb(most: int) -> str:
    return f"it unpacks to more than {most >> 20} MiB, far beyond its size; unpack it first if that is right"


_WINDOWS = bytes(range(0x80, 0xA0))
"""Dashes, curly quotes and the euro sign in Windows' cp1252, control characters in latin1."""


def _decode(data: bytes, path: str | Path, line: int, offset: int) -> str:
    """UTF-8 as text without a byte-order mark; `line` and `offset` are those of the first byte."""
    try:
        text, wrong = data.decode("utf-8"), data.find(b"\0")
    except UnicodeDecodeError as error:
        text, wrong = "", error.start
    if wrong < 0:
        if offset == 0:
            return text.removeprefix("\ufeff")
        return text
    line += data.count(b"\n", 0, wrong)
    byte = f"0x{data[wrong]:02x} at offset {offset + wrong}"
    encoding = "latin1"
    if any(byte in data for byte in _WINDOWS):
        encoding = "cp1252"
    if offset == 0 and data[:4] in (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE):
        encoding = "utf-32"
    elif offset == 0 and b"\0" in data[:2]:
        encoding = "utf-16"
    elif text:
        raise UserError(
            f"{path}:{line}: a NUL character (byte {byte}), which no text has; remove it, for example: tr -d '\\000'"
        )
    raise UserError(
        f"{path}:{line}: not UTF-8 (byte {byte}); convert it, for example: iconv -f {encoding} -t utf-8"
    )
