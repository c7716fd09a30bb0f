"""Decodes web pages in the encoding that they declare, as browsers do.

Browsers read many labels as a larger encoding: `latin-1` is Windows-1252, and `gb2312` is GB 18030 (WHATWG Encoding).
Labels outside the table are not looked up in Python, whose codecs include slow and harmful ones.
"""

from __future__ import annotations

import codecs
import re
from pathlib import Path

from selfrag.common.errors import UserError

_HEAD = 1 << 17  # bytes in which a declaration is sought
_MAX_BAD = 0.001  # share of characters that may be damaged in a page that declares its encoding
_DECLARED = re.compile(
    rb"<meta[^>]{0,400}charset\s{0,20}=\s{0,20}[\"']?\s{0,20}([A-Za-z0-9_:.-]{1,40})"
    rb"|<\?xml[^>]{0,200}encoding\s{0,20}=\s{0,20}[\"']([A-Za-z0-9_:.-]{1,40})",
    re.IGNORECASE,
)
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
# a page without a byte order mark
_UTF16_STARTS = (
    (b"<\0", "utf-16-le"),
    (b"\0<", "utf-16-be"),
)
_LARGER = {
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "iso8859-11": "cp874",
    "tis-620": "cp874",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "big5": "big5hkscs",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
}
"""Codec that browsers take for a declared one."""
_KNOWN = frozenset(
    (
        "utf-8",
        "gb18030",
        "big5hkscs",
        "euc_jp",
        "iso2022_jp",
        "cp932",
        "cp949",
        "koi8-r",
        "koi8-u",
        "cp866",
        "mac-roman",
        "mac-cyrillic",
        "cp874",
        *(f"cp{number}" for number in range(1250, 1259)),
        *(f"iso8859-{number}" for number in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)),
    )
)


def page_to_utf8(path: Path, content: bytes) -> tuple[bytes, int]:
    """Return a page as UTF-8 without NUL characters, and how many damaged characters were replaced in it.

    The byte order mark decides; without one UTF-8, if the page is valid UTF-8, and else the declared encoding.

    Raises:
        UserError: if the page is neither UTF-8 nor in a known encoding that it declares.
    """
    for mark, charset in _BYTE_ORDER_MARKS:
        if content.startswith(mark):
            return _encode(content[len(mark) :].decode(charset, errors="replace"))
    for start, charset in _UTF16_STARTS:
        if content.startswith(start):
            return _encode(content.decode(charset, errors="replace"))
    declared = _declared_charset(content)
    if declared != "iso2022_jp":  # its bytes are valid UTF-8
        try:
            content.decode("utf-8")
            return content.replace(b"\0", b""), 0
        except UnicodeDecodeError:
            pass
    if declared is not None:
        text = content.decode(declared, errors="replace")
        if text.count("\ufffd") <= _MAX_BAD * len(text):
            return _encode(text)
    raise UserError(
        f"{path}: neither UTF-8 nor the encoding that it declares; save it as UTF-8"
    )


def _encode(text: str) -> tuple[bytes, int]:
    return text.replace("\0", "").encode("utf-8", errors="replace"), text.count(
        "\ufffd"
    )


def _declared_charset(content: bytes) -> str | None:
    """Return the Python codec of the encoding that a page declares, or None if there is no known one."""
    match = _DECLARED.search(content[:_HEAD])
    if match is None:
        return None
    label = (match[1] or match[2]).decode("ascii").lower()
    label = label.removeprefix("x-").replace("windows-", "cp")
    try:
        codec = codecs.lookup(label).name
    except LookupError:  # the caller takes UTF-8 or refuses
        return None
    codec = _LARGER.get(codec, codec)
    return codec if codec in _KNOWN else None
