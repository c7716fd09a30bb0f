"""The encoder of an index, loaded when a command first needs it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.encoder_files import EncoderOptions, encoder_directory
from retrieval.encoders import (
    NO_ENCODER,
    BlockEncoder,
    CountingEncoder,
    Encoder,
    EncoderCard,
    checked_encode,
)
from retrieval.index import encoder_of, load_manifest
from retrieval.local_encoders import load_alike, load_encoder
from selfrag.loading import DEMO, index_encoder, resolve_encoder


class LazyEncoder:
    """The encoder of an index, or of one that is to be built, loaded when it is first needed.

    Args:
        index: folder of the index.
        name: directory, hub name, registered name or address; None takes that of the index, for a new one the packaged
            encoder.
        options: fields of `EncoderOptions`, checked at once. An index decides on the number format if they do not.
        anew: the index is built, whatever is there.

    Raises:
        UserError: there is no such device, no such encoder, its server does not answer, or another encoder than that of
            the index is named.
    """

    def __init__(
        self,
        index: Path,
        name: str | None,
        options: dict[str, Any],
        *,
        anew: bool = False,
    ) -> None:
        self._index, self._name, self._options = index, name, options
        self._has_index = index.exists() and not anew
        self._loaded: Encoder | None = None
        if options:  # else there is nothing to check, and torch need not be loaded
            EncoderOptions(**options).resolve()
        if name is None:
            return
        if self._has_index:
            if index_encoder(index, name) != index_encoder(index, None):
                manifest = load_manifest(index)
                encoder_of(f"index {index}", manifest.encoder, self._open())
        elif "://" in name:
            self._open()
        elif name != NO_ENCODER:
            encoder_directory(resolve_encoder(name))

    def _open(self) -> Encoder:
        if self._loaded is None:
            default = resolve_encoder(self._name or DEMO)
            if self._has_index:
                source = index_encoder(self._index, self._name) or default
                self._loaded = load_alike(
                    source, load_manifest(self._index).encoder, **self._options
                )
            else:
                self._loaded = load_encoder(default, **self._options)
        return self._loaded

    @property
    def card(self) -> EncoderCard:
        """Identity and settings."""
        return self._open().card

    @property
    def long_texts(self) -> int:
        """Return texts that were longer than the encoder reads, as far as it counts them."""
        encoder = self._open()
        return encoder.long_texts if isinstance(encoder, CountingEncoder) else 0

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors of texts."""
        return self._open().encode(texts)

    def encode_blocks(
        self, blocks: Iterable[Sequence[str]]
    ) -> Iterator[NDArray[np.float32]]:
        """Yield the vectors of each block of texts."""
        encoder = self._open()
        if isinstance(encoder, BlockEncoder):
            return encoder.encode_blocks(blocks)
        return (checked_encode(encoder, texts) for texts in blocks)
