"""Any sentence-transformers model as an encoder; needs the extra `encoders`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from retrieval.encoders.card import EncoderCard
from retrieval.encoders.fingerprint import parameters_fingerprint
from retrieval.encoders.loading import canonical_source, check_encoder, encoder_directory, loading, short_name
from retrieval.errors import UserError, require

_SAFE_VERSION = 6
"""Older ones import whatever class a local model names, without being told to."""


class SentenceTransformerEncoder:
    """Vectors as sentence-transformers makes them, for models with modules that `TransformerEncoder` does not know.

    Args:
        source: a model directory, or a name on the hub.
        name: what messages call it; the last two parts of the source by default.
        device: a torch device.

    Raises:
        MissingExtraError: sentence-transformers is not installed.
        UserError: the model cannot be loaded, or cannot tell two texts apart.
    """

    def __init__(self, source: str | Path, *, name: str | None = None, device: str = "cpu") -> None:
        library = require("sentence_transformers", extra="encoders")
        if int(library.__version__.split(".")[0]) < _SAFE_VERSION:
            found = library.__version__
            raise UserError(
                f"sentence-transformers {found} runs code of a model; run: pip install -U 'selfrag[encoders]'"
            )
        directory, place = encoder_directory(source), canonical_source(source)
        self._lock = Lock()
        with loading(source):
            self._model = library.SentenceTransformer(str(directory), device=device, trust_remote_code=False)
            modules = " ".join(type(module).__name__ for module in self._model)
            length = self._model.max_seq_length
            self.card = EncoderCard(
                name=name or short_name(place),
                fingerprint=parameters_fingerprint(self._model, self._model.tokenizer, f"{modules} {length}"),
                dim=int(self._model.encode(["dimension"], show_progress_bar=False).shape[1]),
                pooling="sentence-transformers",
                normalized="Normalize" in modules,
                max_tokens=length,
                source=place,
            )
            check_encoder(self, lambda texts: self._model.tokenizer(list(texts))["input_ids"])

    def encode(self, texts: Sequence[str], batch_size: int = 64) -> NDArray[np.float32]:
        """Vectors [n, dim] of n texts, in their order."""
        with self._lock:
            vectors = self._model.encode(
                list(texts), batch_size=batch_size, show_progress_bar=False, convert_to_numpy=True
            )
        return np.asarray(vectors, dtype=np.float32).reshape(len(texts), self.card.dim)
