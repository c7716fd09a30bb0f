"""An index directory: its layout and manifest, and opening it for search."""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from retrieval.atomic import recover
from retrieval.checks import choice, whole
from retrieval.corpus import FILE as PASSAGES
from retrieval.corpus import Corpus
from retrieval.encoders import Encoder, EncoderCard, Template, load_encoder
from retrieval.errors import UserError
from retrieval.manifests import MANIFEST, check_finished
from retrieval.reading import user_path
from retrieval.search import DenseRetriever
from retrieval.vectors import KINDS

FORMAT = "selfrag-index-1"
CORPUS, VECTORS = "corpus", "vectors.npy"


@dataclass(frozen=True, slots=True)
class IndexManifest:
    """How an index was made.

    Attributes:
        passages: number of passages, n.
        corpus: digest of the passages.
        encoder: the encoder that made the vectors.
        template: how passages and queries became texts.
        kind: kind of vector index.
        metric: similarity of two vectors.
        files: bytes by relative file name.
        versions: of Python and of the libraries that made the numbers.
        inputs: fingerprint of the files that the passages were read from; empty if unknown.
        digest: of all this but the encoder's name and source, as it was written; empty in older manifests.
    """

    passages: int
    corpus: str
    encoder: EncoderCard
    template: Template
    kind: str = "flat"
    metric: str = "inner_product"
    files: dict[str, int] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=lambda: _versions())
    inputs: str = ""
    digest: str = ""

    def __post_init__(self) -> None:
        whole("passages", self.passages)
        choice("metric", self.metric, ["inner_product"])

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"format": FORMAT, **asdict(self), "digest": self.own_digest()}

    def identity(self) -> dict[str, Any]:
        """What decides the vectors: equal for two that describe the same vectors of the same passages."""
        values = asdict(self)
        encoder = {name: values["encoder"][name] for name in ("fingerprint", "dim", "precision")}
        return {name: values[name] for name in ("passages", "corpus", "template", "metric")} | encoder

    def own_digest(self) -> str:
        """Digest of the values that `digest` covers."""
        values = {name: value for name, value in asdict(self).items() if name != "digest"}
        del values["encoder"]["name"], values["encoder"]["source"]  # they may differ for one encoder
        if not self.inputs:  # older manifests have neither
            del values["inputs"]
        if self.encoder.precision == "float32":
            del values["encoder"]["precision"]
        return hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=16).hexdigest()


def building_directory(directory: Path) -> Path:
    """Where an unfinished build of `directory` lies."""
    return directory.parent / f"{directory.name}.building"


def load_manifest(directory: str | Path) -> IndexManifest:
    """The manifest of a finished index.

    Raises:
        UserError: there is none, it is unfinished or half-written, or its manifest is damaged.
    """
    path = user_path(directory)
    recover(path)
    unfinished = building_directory(path)
    if not path.exists() and unfinished.exists():
        raise UserError(
            f"the index {path} is not finished: its build was interrupted ({unfinished}); "
            "run the same build again to continue it"
        )
    needed = [VECTORS, *(f"{CORPUS}/{name}" for name in (MANIFEST, PASSAGES))]
    manifest = check_finished(path, IndexManifest, FORMAT, "index", needed)
    if manifest.digest not in ("", manifest.own_digest()):
        raise UserError(f"index {path} is damaged: {MANIFEST} was changed after it was written; build it again")
    return manifest


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("selfrag", "numpy", "pyarrow", "torch", "transformers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


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
