"""`TextPieces`: ids for text where no tokenizer is at hand, as of a model behind an endpoint."""

from __future__ import annotations

import re
from collections.abc import Sequence

from selfrag.common.untrusted import replace_surrogates
from selfrag.tokenization import TextCodec

_PIECE = re.compile(r"\s?[^\W\d_]+|\s?\d{1,3}|\s{1,7}|.", re.DOTALL)
_BYTES = 7
_MARK = b"\1"
"""First byte of every id, so that a piece that begins with a zero byte is kept."""


class TextPieces(TextCodec):
    """Pieces of text as ids: a word or a part of one, a short number, a sign. English has about as many as tokens.

    An id holds its piece, so any text comes back as it was.

    Example:
        >>> pieces = TextPieces()
        >>> [pieces.decode([piece]) for piece in pieces.encode("Marie Curie, 1867")]
        ['Marie', ' Curie', ',', ' 186', '7']
    """

    bos_ids: tuple[int, ...] = ()

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text; half characters become U+FFFD."""
        ids: list[int] = []
        for piece in _PIECE.findall(replace_surrogates(text)):
            packed = _MARK
            for character in piece:
                added = character.encode()
                if len(packed) + len(added) > _BYTES + 1:
                    ids.append(int.from_bytes(packed))
                    packed = _MARK
                packed += added
            ids.append(int.from_bytes(packed))
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""
        pieces = [
            number.to_bytes(_BYTES + 1).lstrip(b"\0").removeprefix(_MARK)
            for number in ids
        ]
        return b"".join(pieces).decode()
