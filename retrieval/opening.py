"""Opens an index directory for search, and refuses one that does not fit its encoder."""

from __future__ import annotations

from pathlib import Path

from retrieval.corpus import Corpus
from retrieval.dense import DenseRetriever
from retrieval.encoders import load_encoder
from retrieval.encoders.card import Encoder
from retrieval.errors import UserError
from retrieval.layout import CORPUS, VECTORS, load_manifest
from retrieval.reading import user_path
from retrieval.vectors import KINDS

_READ_THROUGH = 1 << 26  # bytes of an index up to which every opening reads all of it, in about a tenth of a second


def open_index(directory: str | Path, encoder: Encoder | str | Path | None = None) -> DenseRetriever:
    """A retriever over an index that `build_index` wrote; corpus and vectors are memory-mapped.

    Args:
        directory: the index.
        encoder: the encoder it was built with, or where to load it; None loads it from where it was at build time.

    Raises:
        UserError: the index is missing, unfinished, half-written or damaged, or was built with another encoder.
    """
    path = user_path(directory)
    manifest = load_manifest(path)
    built_with = manifest.encoder
    if manifest.kind not in KINDS:
        raise UserError(f"index {path} is of kind {manifest.kind!r:.80}; known: {', '.join(KINDS)}; build it again")
    corpus, vectors = Corpus.open(path / CORPUS), KINDS[manifest.kind](path / VECTORS)
    stated = manifest.passages, manifest.corpus, built_with.dim
    if stated != (len(corpus), corpus.digest, vectors.dim) or len(corpus) != len(vectors):
        raise UserError(
            f"index {path} is damaged: its manifest says {stated[0]} passages ({stated[1]:.40}) and vectors of "
            f"{stated[2]}, its files hold {len(corpus)} ({corpus.digest:.40}) and {len(vectors)} vectors of "
            f"{vectors.dim}; build it again"
        )
    if sum(manifest.files.values()) <= _READ_THROUGH:
        corpus.check_content()
        if not vectors.all_finite():
            raise UserError(f"index {path} is damaged: it holds vectors that are not finite; build it again")
    if encoder is None:
        if not built_with.source:
            raise UserError(
                f"index {path} was built with encoder {built_with.name!r}, which must be passed as encoder="
            )
        encoder = built_with.source
    loaded = load_encoder(encoder)
    if loaded.card.identity() != built_with.identity():
        raise UserError(
            f"index {path} was built with another encoder: {built_with.name!r} ({built_with.fingerprint:.40}), "
            f"not {loaded.card.name!r} ({loaded.card.fingerprint:.40}); open it with that one, or build it again"
        )
    return DenseRetriever(corpus, vectors, loaded, manifest.template)
