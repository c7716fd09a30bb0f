"""The encoder of an index, loaded when a command first needs it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from retrieval.encoders import Encoder, EncoderCard, load_encoder, resolve_device

if TYPE_CHECKING:
    pass
from selfrag.loading import DEMO, index_encoder, resolve_encoder


class LazyEncoder:
    """The encoder of an index, or of one that is to be built, loaded when it is first needed.

    Args:
        index: folder of the index.
        name: directory, hub name or registered name; None takes that of the index, for a new one the packaged encoder.
        device: see `retrieval.encoders.load_encoder`; checked at once.
        precision: likewise.

    Raises:
        UserError: there is no such device, or another encoder than that of the index is named and cannot be loaded.
    """

    def __init__(
        self, index: Path, name: str | None = None, *, device: str = "cpu", precision: str = "float32"
    ) -> None:
        self._index, self._name = index, name
        self._options = {"device": device, "precision": precision}
        self._loaded: Encoder | None = None
        if (device, precision) != ("cpu", "float32"):  # else there is nothing to check, and torch need not be loaded
            resolve_device(device, precision)
        if name is not None and index.exists() and index_encoder(index, name) != index_encoder(index, None):
            self._open()

    def _open(self) -> Encoder:
        if self._loaded is None:
            source = index_encoder(self._index, self._name) if self._index.exists() else None
            self._loaded = load_encoder(source or resolve_encoder(self._name or DEMO), **self._options)
        return self._loaded

    @property
    def card(self) -> EncoderCard:
        """Identity and settings."""
        return self._open().card

    def encode(self, texts: Sequence[str], batch_size: int = 64) -> NDArray[np.float32]:
        """Return the vectors of texts."""
        return self._open().encode(texts, batch_size)
