"""Where things lie in an index directory, and what its manifest says. Builds and loads nothing.

DIR/manifest.json  how it was made, and the size of every file; written last
DIR/corpus/        the passages
DIR/vectors.npy    one row a passage
DIR.building/      an unfinished build, which the same command continues
"""

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
from retrieval.encoders.card import EncoderCard
from retrieval.errors import UserError
from retrieval.finished import MANIFEST, check_finished
from retrieval.reading import user_path
from retrieval.template import Template

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
        encoder = {name: values["encoder"][name] for name in ("fingerprint", "dim")}
        return {name: values[name] for name in ("passages", "corpus", "template", "kind", "metric")} | encoder

    def own_digest(self) -> str:
        """Digest of the values that `digest` covers."""
        values = {name: value for name, value in asdict(self).items() if name != "digest"}
        del values["encoder"]["name"], values["encoder"]["source"]  # they may differ for one encoder
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
