"""An index directory: its manifest, opening it for search, and its generations.

Each change writes new files, then a new manifest in place of the older one.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from retrieval.corpus import FILE as PASSAGES
from retrieval.corpus import Corpus
from retrieval.encoders import NO_ENCODER, Encoder, EncoderCard, Template
from retrieval.local_encoders import load_alike
from retrieval.search import (
    DenseRetriever,
    Fusion,
    HybridRetriever,
    IndexVersion,
    LocalRetriever,
    WordRetriever,
)
from retrieval.vectors import (
    NPY_ERRORS,
    DenseCard,
    FlatIndex,
    Mask,
    SegmentedIndex,
    VectorIndex,
    factory_of,
)
from selfrag.common.checks import check_choice, check_int
from selfrag.common.errors import UserError, count_of
from selfrag.common.finished import (
    MANIFEST,
    check_finished,
    checksums,
    damaged,
    recover,
)
from selfrag.common.reading import user_path

if TYPE_CHECKING:
    from retrieval.words import WordIndex

FORMAT = "selfrag-index-2"
# the older one has a single segment and flat search
FORMATS = (
    FORMAT,
    "selfrag-index-1",
)
CORPUS, VECTORS, PARTS = "corpus", "vectors.npy", "parts"
DENSE = "dense.faiss"
REMOVED = "removed.npy"
SEGMENT = "segment"
WORDS = "words"
FILES = "files.arrow"
MODES = ("hybrid", "dense", "words")
_SEGMENT = re.compile(rf"\.|{PARTS}/\d+-{SEGMENT}")


@dataclass(frozen=True, slots=True)
class IndexSegment:
    """Passages that were added together, and their vectors.

    Attributes:
        name: its folder, relative to the index; it holds `corpus` and `vectors.npy`.
        passages: number of passages.
        corpus: digest of the passages.
    """

    name: str
    passages: int
    corpus: str

    def __post_init__(self) -> None:
        if not _SEGMENT.fullmatch(self.name):
            raise UserError(f"{self.name!r:.60} is not the folder of a segment")


@dataclass(frozen=True, slots=True)
class IndexManifest:
    """How an index was made. A new one takes the place of the older at each change; files are never changed."""

    passages: int  # number of passages of the first segment, whose folder is that of the index
    corpus: str  # digest of those passages
    encoder: EncoderCard  # the encoder that made the vectors
    template: Template  # how passages and queries became texts
    # kind of search that was asked for: `auto`, `flat`, `rabitq`, `ivf`, or a factory string of faiss
    kind: str = "flat"
    metric: str = "inner_product"  # similarity of two vectors
    files: dict[str, int] = field(default_factory=dict)  # bytes by relative file name
    # of Python and of the libraries that made the numbers
    versions: dict[str, str] = field(default_factory=lambda: _versions())
    inputs: str = ""  # fingerprint of the files that the passages were read from; empty if unknown
    generation: int = 1  # counts the changes
    # segments after the first, in the order of their rows
    added: list[IndexSegment] = field(default_factory=list)
    removed: int = 0  # number of removed passages, whose rows are in `parts/GENERATION-removed.npy`
    # the approximate index of the first segment; None for exact search
    dense: DenseCard | None = None
    language: str = ""  # of the word index; empty where there is none
    analyzer: int = 1  # version of the rules that made the words; `retrieval.words.ANALYZER` in a new index
    # of the files, blake2b by relative name; empty in older manifests
    checksums: dict[str, str] = field(default_factory=dict)
    digest: str = ""  # of all this but the encoder's name and source, as it was written; empty in older manifests

    def __post_init__(self) -> None:
        check_int("passages", self.passages)
        check_int("generation", self.generation)
        check_choice("metric", self.metric, ["inner_product"])
        factory_of(self.kind, 1, 1)
        if self.language:
            from retrieval.words import ANALYZER, language_name

            check_int("analyzer", self.analyzer, 1, ANALYZER)
            language_name(self.language)

    @property
    def segments(self) -> list[IndexSegment]:
        """Return all segments, in the order of their rows."""
        return [IndexSegment(".", self.passages, self.corpus), *self.added]

    @property
    def rows(self) -> int:
        """Return the number of passages of all segments, removed ones too."""
        return sum(segment.passages for segment in self.segments)

    def part(self, ending: str) -> str | None:
        """Return the relative name of the newest file or folder in `parts` that ends so, or None."""
        pattern = re.compile(rf"{PARTS}/(\d+)-{re.escape(ending)}(?=/|$)")
        matches = filter(None, map(pattern.match, self.files))
        newest = max(matches, key=lambda match: int(match[1]), default=None)
        return None if newest is None else newest[0]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {"format": FORMAT, **asdict(self), "digest": self.own_digest()}

    def identity(self) -> dict[str, Any]:
        """Return what decides the vectors: equal for two that describe the same vectors of the same passages."""
        values = asdict(self)
        encoder = {
            name: values["encoder"][name]
            for name in ("fingerprint", "dim", "precision")
        }
        return {
            name: values[name]
            for name in ("passages", "corpus", "template", "metric", "added", "removed")
        } | encoder

    def own_digest(self) -> str:
        """Return a digest of the values that `digest` covers."""
        values = {
            name: value for name, value in asdict(self).items() if name != "digest"
        }
        # they may differ for one encoder
        del (
            values["encoder"]["name"],
            values["encoder"]["source"],
        )
        if self.encoder.precision == "float32":
            del values["encoder"]["precision"]
        for name, default in _LATER.items():  # older manifests do not have them
            if values[name] == default:
                del values[name]
        return hashlib.blake2b(
            json.dumps(values, sort_keys=True).encode(), digest_size=16
        ).hexdigest()


_LATER: dict[str, Any] = {
    "inputs": "",
    "generation": 1,
    "added": [],
    "removed": 0,
    "dense": None,
    "language": "",
    "analyzer": 1,
    "checksums": {},
}


def building_directory(directory: Path) -> Path:
    """Return where an unfinished build of `directory` lies."""
    return directory.parent / f"{directory.name}.building"


def load_manifest(directory: str | Path) -> IndexManifest:
    """Return the manifest of a finished index."""
    path = user_path(directory)
    recover(path)
    unfinished = building_directory(path)
    if not path.exists() and unfinished.exists():
        raise UserError(
            f"the index {path} is not finished: its build was interrupted ({unfinished}); "
            "run the same build again to continue it"
        )
    needed = [VECTORS, *(f"{CORPUS}/{name}" for name in (MANIFEST, PASSAGES))]
    manifest = check_finished(path, IndexManifest, FORMATS, "index", needed)
    if manifest.digest not in ("", manifest.own_digest()):
        raise damaged("index", path, f"{MANIFEST} was changed after it was written")
    return manifest


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in [
        "selfrag",
        "numpy",
        "pyarrow",
        "torch",
        "transformers",
        "faiss-cpu",
        "tantivy",
    ]:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


# bytes of an index up to which every opening reads all of it, in about a tenth of a second
_READ_THROUGH = 1 << 26
# bytes of an approximate index up to which every opening compares its checksum
_CHECKED = 1 << 28


@dataclass(frozen=True, slots=True)
class OpenParts:
    """The files of one generation, memory-mapped."""

    corpus: Corpus  # passages of all segments; removed ones are still there
    vectors: list[FlatIndex]  # of each segment
    index: VectorIndex  # searches all vectors
    # searches all passages by words; None where the index has none
    words: WordIndex | None


def open_index(
    directory: str | Path,
    encoder: Encoder | str | Path | None = None,
    *,
    mode: str | None = None,
    fusion: Fusion | None = None,
) -> LocalRetriever:
    """Return a retriever over an index that `build_index` wrote; corpus and vectors are memory-mapped.

    It keeps reading the generation that it opened, also while the index is changed.

    Args:
        directory: the index.
        encoder: the encoder it was built with, or where to load it; None loads it from where it was at build time.
        mode: `dense`, `words`, or `hybrid` for both; None is hybrid where the index has both, else what it has. A
            search by words needs no encoder.
        fusion: how a hybrid search combines both.

    Raises:
        UserError: the index is missing, unfinished, half-written or damaged, or was built with another encoder.
    """
    if mode is not None:
        check_choice("mode", mode, MODES)
    path = user_path(directory)
    manifest, parts = open_parts(path)
    if not manifest.encoder.dim and mode != "words":
        if mode is not None or not _is_none(encoder):
            require_vectors(path, manifest)
        mode = "words"
    if mode in ("words", "hybrid") and not manifest.language:
        raise UserError(
            f"index {path} has no words; add them with: selfrag index compact {path} --language auto"
        )
    if mode != "dense":
        check_analyzer(path, manifest)
    retriever: LocalRetriever
    words = None if parts.words is None else WordRetriever(parts.corpus, parts.words)
    if mode == "words" and words is not None:
        retriever = words
    else:
        loaded = encoder_of(f"index {path}", manifest.encoder, encoder)
        dense = DenseRetriever(parts.corpus, parts.index, loaded, manifest.template)
        retriever = (
            dense
            if mode == "dense" or words is None
            else HybridRetriever(dense, words, fusion)
        )
    retriever.version = IndexVersion(manifest.generation, manifest.own_digest())
    return retriever


def _is_none(encoder: Encoder | str | Path | None) -> bool:
    """Return whether no encoder is named, or the one of words only."""
    if encoder is None or isinstance(encoder, str | Path):
        return encoder is None or str(encoder) == NO_ENCODER
    return encoder.card.dim == 0


def require_vectors(path: Path, manifest: IndexManifest) -> None:
    """Raise UserError if an index was built without an encoder."""
    if not manifest.encoder.dim:
        raise UserError(
            f"index {path} has words only: it was built with encoder none; build it again with an encoder"
        )


def open_parts(path: Path) -> tuple[IndexManifest, OpenParts]:
    """Return the manifest of an index and the files that it names."""
    while True:
        manifest = load_manifest(path)
        try:
            return manifest, _opened(path, manifest)
        except UserError:
            # else it was changed while it was opened
            if load_manifest(path) == manifest:
                raise


def _opened(path: Path, manifest: IndexManifest) -> OpenParts:
    corpora, vectors = [], []
    for segment in manifest.segments:
        folder = path / segment.name
        corpus, matrix = Corpus.open(folder / CORPUS), FlatIndex.open(folder / VECTORS)
        stated = (
            segment.passages,
            segment.passages,
            manifest.encoder.dim,
            segment.corpus,
        )
        actual = len(corpus), len(matrix), matrix.dim, corpus.digest
        if stated != actual:
            difference = f"are {actual!s:.120}, by its manifest {stated!s:.120}"
            raise damaged(
                "index",
                path,
                f"passages, vectors, their length and digest {difference}",
            )
        corpora.append(corpus)
        vectors.append(matrix)
    small = sum(manifest.files.values()) <= _READ_THROUGH
    dense = manifest.part(DENSE)
    check_sums(path, manifest, list(manifest.files) if small else [])
    if dense is not None and manifest.files[dense] <= _CHECKED:
        check_sums(path, manifest, [dense])
    if small:
        for corpus, matrix in zip(corpora, vectors, strict=True):
            corpus.check_content()
            if not matrix.all_finite():
                raise damaged("index", path, "it holds vectors that are not finite")
    if (dense is None) != (manifest.dense is None):
        raise damaged("index", path, f"{MANIFEST} does not name its approximate index")
    parts: list[VectorIndex] = list(vectors)
    if dense is not None and manifest.dense is not None:
        from retrieval.compressed import CompressedIndex

        parts[0] = CompressedIndex.open(path / dense, vectors[0], manifest.dense)
    kept = kept_rows(path, manifest)
    single = len(parts) == 1 and kept is None
    index = parts[0] if single else SegmentedIndex(parts, kept)
    corpus = Corpus.joined(corpora, kept)
    if (files := manifest.part(FILES)) is not None:
        from retrieval.file_table import FileFinder

        corpus.file_of = FileFinder(path / files)
    return OpenParts(corpus, vectors, index, _words(path, manifest))


def _words(path: Path, manifest: IndexManifest) -> WordIndex | None:
    if not manifest.language:
        return None
    from retrieval.words import ANALYZER, WordIndex

    if manifest.analyzer != ANALYZER:
        return None  # `check_analyzer` says it where they are needed

    name = manifest.part(WORDS)
    words = WordIndex(path / str(name), manifest.language) if name else None
    if words is None or len(words) != manifest.rows:
        raise damaged(
            "index",
            path,
            f"its word index does not hold {count_of(manifest.rows, 'passages')}",
        )
    return words


def check_analyzer(path: Path, manifest: IndexManifest) -> None:
    """Raise UserError if the words of an index were made by older rules."""
    if not manifest.language:
        return
    from retrieval.words import ANALYZER

    if manifest.analyzer != ANALYZER:
        raise UserError(
            f"the words of index {path} were made by an older version; renew them with: selfrag index compact {path}"
        )


def check_sums(path: Path, manifest: IndexManifest, names: Sequence[str]) -> None:
    """Read files of an index and compare them with the checksums of its manifest."""
    if manifest.checksums:
        try:
            actual = checksums(path, names)
        except OSError as error:
            raise UserError(
                f"cannot read {error.filename or path}: {error.strerror}"
            ) from error
        wrong = next(
            (name for name in names if manifest.checksums.get(name) != actual[name]),
            None,
        )
        if wrong is not None:
            raise damaged("index", path, f"{wrong:.80} is not as it was written")


def kept_rows(path: Path, manifest: IndexManifest) -> Mask | None:
    """Return bool [rows], false for removed passages; None where none was removed."""
    name = manifest.part(REMOVED)
    if name is None and not manifest.removed:
        return None
    try:
        packed = np.load(path / str(name), allow_pickle=False)
        removed = np.unpackbits(packed, count=manifest.rows).astype(bool)
    except NPY_ERRORS as error:
        raise damaged(
            "index", path, f"{name} cannot be read ({error!s:.200})"
        ) from error
    if np.count_nonzero(removed) != manifest.removed:
        raise damaged(
            "index", path, f"{name} does not hold {count_of(manifest.removed, 'rows')}"
        )
    return ~removed


def encoder_of(
    where: str, built_with: EncoderCard, encoder: Encoder | str | Path | None
) -> Encoder:
    """Return the encoder of an index, loaded in its number format; None loads it from where it was at build time.

    Raises:
        UserError: it cannot be loaded, or is another one.
    """
    if encoder is None:
        if not built_with.source:
            raise UserError(
                f"{where} was built with encoder {built_with.name!r}, which must be passed as encoder="
            )
        encoder = built_with.source
    loaded = load_alike(encoder, built_with)
    if loaded.card.identity() != built_with.identity():
        raise UserError(
            f"{where} was built with another encoder: {built_with.name!r} ({built_with.fingerprint:.40}), "
            f"not {loaded.card.name!r} ({loaded.card.fingerprint:.40}); open it with that one, or build it again"
        )
    return loaded


def absolute(directory: str | Path) -> Path:
    """Return its absolute path, links kept: a link is not to be replaced by what it points to."""
    return Path(os.path.abspath(user_path(directory)))  # noqa: PTH100 - resolve() would follow a link
