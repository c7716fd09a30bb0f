"""Opens an index directory for search, and refuses one that does not fit its encoder."""

from __future__ import annotations

from pathlib import Path

from retrieval.corpus import Corpus
from retrieval.dense import DenseRetriever
from retrieval.encoders import load_encoder
from retrieval.encoders.card import Encoder
from retrieval.errors import UserError
from retrieval.layout import CORPUS, VECTORS, load_manifest
from retrieval.vectors import KINDS


def open_index(directory: str | Path, encoder: Encoder | str | Path | None = None) -> DenseRetriever:
    """A retriever over an index that `build_index` wrote; corpus and vectors are memory-mapped.

    Args:
        directory: the index.
        encoder: the encoder it was built with, or where to load it; None loads it from where it was at build time.

    Raises:
        UserError: the index is missing, unfinished, half-written or damaged, or was built with another encoder.
    """
    path = Path(directory)
    manifest = load_manifest(path)
    built_with = manifest.encoder
    if manifest.kind not in KINDS:
        raise UserError(f"index {path} is of kind {manifest.kind!r}; known: {', '.join(KINDS)}; build it again")
    if encoder is None:
        if not built_with.source:
            raise UserError(
                f"index {path} was built with encoder {built_with.name!r}, which must be passed as encoder="
            )
        encoder = built_with.source
    loaded = load_encoder(encoder)
    if loaded.card.fingerprint != built_with.fingerprint:
        raise UserError(
            f"index {path} was built with another encoder: {built_with.name!r} ({built_with.fingerprint}), "
            f"not {loaded.card.name!r} ({loaded.card.fingerprint}); open it with that one, or build it again"
        )
    return DenseRetriever(Corpus.open(path / CORPUS), KINDS[manifest.kind](path / VECTORS), loaded, manifest.template)
