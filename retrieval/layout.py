"""Where things lie in an index directory, and what its manifest says. Builds and loads nothing.

DIR/manifest.json  how it was made, and the size of every file; written last
DIR/corpus/        the passages
DIR/vectors.npy    one row a passage
DIR.building/      an unfinished build, which the same command continues
"""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from retrieval.encoders.card import EncoderCard
from retrieval.errors import UserError
from retrieval.finished import check_finished
from retrieval.template import Template

FORMAT = "selfrag-index-1"
CORPUS, VECTORS, MANIFEST = "corpus", "vectors.npy", "manifest.json"


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
    """

    passages: int
    corpus: str
    encoder: EncoderCard
    template: Template
    kind: str = "flat"
    metric: str = "inner_product"
    files: dict[str, int] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=lambda: _versions())

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"format": FORMAT, **asdict(self)}

    def same_vectors(self, other: IndexManifest) -> bool:
        """Whether both describe the same vectors of the same passages."""
        mine, theirs = (
            (own.corpus, own.passages, own.encoder.fingerprint, own.encoder.dim, own.template, own.kind, own.metric)
            for own in (self, other)
        )
        return mine == theirs


def building_directory(directory: Path) -> Path:
    """Where an unfinished build of `directory` lies."""
    return directory.parent / f"{directory.name}.building"


def load_manifest(directory: Path) -> IndexManifest:
    """The manifest of a finished index.

    Raises:
        UserError: there is none, it is unfinished or half-written, or its manifest is damaged.
    """
    unfinished = building_directory(directory)
    if not directory.exists() and unfinished.exists():
        raise UserError(
            f"the index {directory} is not finished: its build was interrupted ({unfinished}); "
            "run the same build again to continue it"
        )
    values = dict(check_finished(directory, FORMAT, "index"))
    try:
        values.pop("format")
        encoder, template = EncoderCard.from_dict(values.pop("encoder")), Template(**values.pop("template"))
        return IndexManifest(encoder=encoder, template=template, **values)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"index {directory} is damaged: its manifest does not fit ({error}); build it again") from error


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("selfrag", "numpy", "pyarrow", "torch", "transformers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
