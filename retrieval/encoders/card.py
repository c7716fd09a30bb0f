"""What an encoder is, and the values by which an index recognises the encoder that it was built with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from retrieval.checks import whole
from retrieval.errors import UserError


@dataclass(frozen=True, slots=True)
class EncoderCard:
    """Identity and settings of an encoder, written into every index.

    Attributes:
        name: what to call it in a message.
        fingerprint: differs for every encoder whose vectors differ.
        dim: length of a vector, d.
        pooling: how token vectors become one, such as `mean`.
        normalized: vectors have length 1, so that the inner product is the cosine.
        max_tokens: what is behind this many tokens of a text is not read; None if unknown.
        source: directory or hub name to load it from again, or empty.
    """

    name: str
    fingerprint: str
    dim: int
    pooling: str = "custom"
    normalized: bool = False
    max_tokens: int | None = None
    source: str = ""

    def __post_init__(self) -> None:
        whole("dim", self.dim)

    def identity(self) -> dict[str, Any]:
        """What decides the vectors: all but the name and the source."""
        return {name: value for name, value in asdict(self).items() if name not in ("name", "source")}

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


class Encoder(Protocol):
    """Turns texts into vectors whose inner product is their similarity. Safe to call from several threads."""

    @property
    def card(self) -> EncoderCard:
        """Identity and settings; constant."""
        ...

    def encode(self, texts: Sequence[str], batch_size: int = 64) -> NDArray[np.float32]:
        """Vectors [n, d] of n texts, in their order."""
        ...


def checked_encode(encoder: Encoder, texts: Sequence[str], batch_size: int) -> NDArray[np.float32]:
    """`encoder.encode` with its result checked, since an encoder may be the user's own.

    Raises:
        UserError: wrong shape, or values that are not finite.
    """
    vectors = np.asarray(encoder.encode(texts, batch_size), dtype=np.float32)
    card = encoder.card
    if vectors.shape != (len(texts), card.dim):
        raise UserError(
            f"encoder {card.name!r} returned shape {vectors.shape} for {len(texts)} texts of dim {card.dim}"
        )
    if not np.isfinite(vectors).all():
        raise UserError(f"encoder {card.name!r} returned values that are not finite")
    return vectors
