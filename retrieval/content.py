"""The content of an HTTP reply, unfolded within a bound: a few packed bytes can stand for gigabytes."""

from __future__ import annotations

import zlib

ENCODINGS = "gzip"
"""What may be sent as `Accept-Encoding`: `Content` unfolds it piece by piece."""


class Content:
    """The content of a reply, unfolded no further than `most` bytes.

    Args:
        encoding: the `Content-Encoding` of the reply: none, `gzip` or `deflate`.
        most: bytes that are kept.

    Raises:
        ValueError: another encoding, or several.
    """

    def __init__(self, encoding: str, most: int) -> None:
        name = encoding.strip().lower()
        if name not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise ValueError(
                f"a reply packed as {name[:40]!r}, which was not asked for"
            )
        self._most = most
        self._content = bytearray()
        self._unfolding = (
            zlib.decompressobj(wbits=47) if name not in ("", "identity") else None
        )

    def add(self, part: bytes) -> bool:
        """Take in a piece as it came, and return whether there is room for more.

        Raises:
            ValueError: the piece is not packed as the reply says.
        """
        room = self._most - len(self._content)
        if self._unfolding is None:
            self._content += part[:room]
        elif room > 0:  # zlib takes 0 for no limit
            try:
                self._content += self._unfolding.decompress(part, room)
            except zlib.error as error:
                raise ValueError("a reply that is not packed as it says") from error
        return len(self._content) < self._most

    def __bytes__(self) -> bytes:
        return bytes(self._content)
