"""Text encoders. Importing this costs no torch."""

from __future__ import annotations

from pathlib import Path

from retrieval.encoders.card import Encoder, EncoderCard
from retrieval.encoders.sentence_transformer import SentenceTransformerEncoder
from retrieval.encoders.settings import EncoderSettings, UnsupportedModulesError
from retrieval.encoders.transformer import TransformerEncoder

__all__ = [
    "Encoder",
    "EncoderCard",
    "EncoderSettings",
    "SentenceTransformerEncoder",
    "TransformerEncoder",
    "load_encoder",
]


def load_encoder(source: Encoder | str | Path) -> Encoder:
    """An encoder from a directory or hub name; an encoder object is returned as it is.

    Raises:
        UserError: it cannot be loaded.
    """
    if not isinstance(source, str | Path):
        return source
    try:
        return TransformerEncoder(source)
    except UnsupportedModulesError:
        return SentenceTransformerEncoder(source)
