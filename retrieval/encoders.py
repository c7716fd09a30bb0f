"""What an encoder of texts is, and the texts that it reads of passages and queries.

Encoders that run in this process are in `retrieval.local_encoders`. Any object with `card` and `encode` is one, too.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from retrieval.passage import Passage
from selfrag.common.checks import check_int
from selfrag.common.errors import UserError, count_of

BLOCK_ROWS = 1024
"""Rows that are encoded and saved together. A block is sorted by length and does not depend on other blocks, so an
encoding that was interrupted ends with the same vectors as one that was not."""


@dataclass(frozen=True, slots=True)
class EncoderCard:
    """Identity and settings of an encoder, written into every index."""

    name: str  # what to call it in a message
    fingerprint: str  # differs for every encoder whose vectors differ
    dim: int  # length of a vector, d; 0 of `WordsOnly`
    pooling: str = "custom"  # how token vectors become one, such as `mean`
    # vectors have length 1, so that the inner product is the cosine
    normalized: bool = False
    # what is behind this many tokens of a text is not read; None if unknown
    max_tokens: int | None = None
    source: str = ""  # directory or hub name to load it from again, or empty
    precision: str = "float32"  # number format of the weights; empty if unknown; vectors in two formats can be compared

    def __post_init__(self) -> None:
        check_int("dim", self.dim, 0)

    def identity(self) -> dict[str, Any]:
        """Return what decides which vectors can be compared: all but the name, the source and the precision."""
        return {
            name: value
            for name, value in asdict(self).items()
            if name not in ("name", "source", "precision")
        }

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return asdict(self)


class Encoder(Protocol):
    """Turns texts into vectors whose inner product is their similarity. Safe to call from several threads."""

    @property
    def card(self) -> EncoderCard:
        """Identity and settings; constant."""

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors [n, d] of n texts, in their order."""


@runtime_checkable
class BlockEncoder(Encoder, Protocol):
    """An encoder that works on more than one block at once, for example on several machines."""

    def encode_blocks(
        self, blocks: Iterable[Sequence[str]]
    ) -> Iterator[NDArray[np.float32]]:
        """Yield the vectors of each block of texts, in the order of the blocks, as `checked_encode` gives them."""


@runtime_checkable
class CountingEncoder(Encoder, Protocol):
    """An encoder that counts the texts of which it does not read the end."""

    @property
    def long_texts(self) -> int:
        """Return texts so far that were longer than `card.max_tokens`."""


NO_ENCODER = "none"
"""Names `WordsOnly` where an encoder is asked for."""


class WordsOnly:
    """The encoder of an index that is searched by words only: its vectors hold no numbers. Needs no torch."""

    card = EncoderCard(NO_ENCODER, NO_ENCODER, 0, source=NO_ENCODER, precision="")

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return empty vectors [n, 0]."""
        return np.zeros((len(texts), 0), np.float32)


def checked_encode(encoder: Encoder, texts: Sequence[str]) -> NDArray[np.float32]:
    """Return the vectors of texts, checked, since an encoder may be the user's own."""
    return check_vectors(encoder.encode(texts), encoder.card, len(texts))


def check_vectors(values: Any, card: EncoderCard, count: int) -> NDArray[np.float32]:
    """Return vectors [count, d] as float32, or raise UserError where they are not that or not finite."""
    vectors = np.asarray(values, dtype=np.float32)
    if vectors.shape != (count, card.dim):
        raise UserError(
            f"encoder {card.name!r} returned shape {vectors.shape} for {count_of(count, 'texts')} of dim {card.dim}"
        )
    if not np.isfinite(vectors).all():
        raise UserError(f"encoder {card.name!r} returned values that are not finite")
    return vectors


@dataclass(frozen=True, slots=True)
class Template:
    """Texts around the slots of a passage and of a query.

    The default is that of Contriever and MiniLM, `title + " " + text`; models trained with prefixes need their own,
    such as `Template("passage: {title} {text}", "query: {query}")` for E5.

    Attributes:
        passage: text with the slots `{title}` and `{text}`.
        query: text with the slot `{query}`.

    Raises:
        UserError: an unknown slot, or no `{text}` or `{query}`.
    """

    passage: str = "{title} {text}"
    query: str = "{query}"

    def __post_init__(self) -> None:
        _check_slots(self.passage, needed="text", known={"title", "text"})
        _check_slots(self.query, needed="query", known={"query"})

    def of_passage(self, passage: Passage) -> str:
        """Return the text of a passage. Braces in the passage stay text."""
        return self.passage.format(title=passage.title, text=passage.text).strip()

    def of_query(self, query: str) -> str:
        """Return the text of a query."""
        return self.query.format(query=query)


def _check_slots(template: str, *, needed: str, known: set[str]) -> None:
    try:
        slots = {
            name
            for _, name, _, _ in string.Formatter().parse(template)
            if name is not None
        }
    except ValueError as error:
        raise UserError(
            f"template {template!r}: {error}; double the braces that are text"
        ) from error
    if needed not in slots or slots - known:
        raise UserError(
            f"template {template!r} must hold {{{needed}}} and no slot but: {', '.join(sorted(known))}"
        )
