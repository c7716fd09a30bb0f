"""The encoder of an index, loaded when a command first needs it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.encoder_files import EncoderOptions
from retrieval.encoders import Encoder, EncoderCard
from retrieval.index import load_manifest
from retrieval.local_encoders import load_alike, load_encoder
from selfrag.loading import DEMO, index_encoder, resolve_encoder


class LazyEncoder:
    """The encoder of an index, or of one that is to be built, loaded when it is first needed.

    Args:
        index: folder of the index.
        name: directory, hub name, registered name or address; None takes that of the index, for a new one the packaged
            encoder.
        options: fields of `EncoderOptions`, checked at once. An index decides on the number format if they do not.

    Raises:
        UserError: there is no such device, or another encoder than that of the index is named and cannot be loaded.
    """

    def __init__(self, index: Path, name: str | None, options: dict[str, Any]) -> None:
        self._index, self._name, self._options = index, name, options
        self._loaded: Encoder | None = None
        if options:  # else there is nothing to check, and torch need not be loaded
            EncoderOptions(**options).resolve()
        if (
            name is not None
            and index.exists()
            and index_encoder(index, name) != index_encoder(index, None)
        ):
            self._open()

    def _open(self) -> Encoder:
        if self._loaded is None:
            default = resolve_encoder(self._name or DEMO)
            if self._index.exists():
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

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors of texts."""
        return self._open().encode(texts)
