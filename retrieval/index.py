"""An index directory: its layout and manifest, building it (resumable, atomic), and opening it for search."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from retrieval.atomic import locked_directory, publish, recover, write_json, writing
from retrieval.checks import choice, whole
from retrieval.corpus import FILE as PASSAGES
from retrieval.corpus import Corpus, check_replaceable
from retrieval.encoders import Encoder, EncoderCard, Template, load_encoder
from retrieval.errors import UserError
from retrieval.manifests import MANIFEST, check_finished, sizes
from retrieval.passage import Passage
from retrieval.readers import Row, read_files
from retrieval.reading import read_json, user_path
from retrieval.search import DenseRetriever
from retrieval.splitting import Splitting
from retrieval.vectors import KINDS, encode_corpus

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


_PLAN, _JOURNAL = "plan.json", "journal.json"


def build_index(
    files: Sequence[str | Path],
    out: str | Path,
    *,
    encoder: Encoder | str | Path,
    splitting: Splitting | None = None,
    template: Template | None = None,
    batch_size: int = 64,
    progress: bool | None = None,
) -> DenseRetriever:
    """Index the user's files; see `index_passages` for how, and `read_files` for the formats.

    Args:
        files: tables with id, title and text, and documents, which are split into passages.
        out: directory of the index.
        encoder: an encoder, or the directory or hub name of one.
        splitting: word budget and overlap for documents.
        template: how passages and queries become texts for the encoder.
        batch_size: texts that go through the encoder at once.
        progress: show a bar on stderr; None shows it on a terminal only.

    Raises:
        UserError: a bad file or row (by file and line), a bad encoder, or a full disk.
    """
    rows = read_files(files, splitting)
    return index_passages(rows, out, encoder=encoder, template=template, batch_size=batch_size, progress=progress)


def index_passages(
    passages: Iterable[Passage | Row],
    out: str | Path,
    *,
    encoder: Encoder | str | Path,
    template: Template | None = None,
    batch_size: int = 64,
    progress: bool | None = None,
) -> DenseRetriever:
    """Index passages. Nothing appears at `out` before all is done; an interrupted call is continued by the next one.

    Where `out` already holds the index of these very passages with this encoder, it is opened and nothing is encoded.

    Args:
        passages: in the order of their rows, with unique ids.
        out: a new directory, or that of an older index, which is replaced.
        encoder: an encoder, or the directory or hub name of one.
        template: how passages and queries become texts for the encoder.
        batch_size: texts that go through the encoder at once.
        progress: show a bar on stderr; None shows it on a terminal only.

    Raises:
        UserError: a bad passage, a bad encoder, a full disk, or another process that builds the same index.
    """
    whole("batch_size", batch_size)
    target = Path(os.path.abspath(user_path(out)))  # noqa: PTH100 - resolve() would follow a link and replace what it points to
    check_replaceable(target, {CORPUS, VECTORS, MANIFEST})
    encoder = load_encoder(encoder)
    with locked_directory(building_directory(target)) as building:
        draft = building / "draft"
        _sweep(building)
        try:
            corpus = Corpus.build(passages, draft / CORPUS)
        except BaseException:
            if not (draft / VECTORS).exists():
                shutil.rmtree(building, ignore_errors=True)
            raise
        plan = IndexManifest(len(corpus), corpus.digest, encoder.card, template or Template())
        built = _built(target, plan, encoder)
        if built is None:
            _keep_vectors_of(plan, building)
            files = draft / VECTORS, building / _JOURNAL
            encode_corpus(corpus, encoder, plan.template, *files, batch_size=batch_size, progress=progress)
            with writing(target):
                write_json(draft / MANIFEST, replace(plan, files=sizes(draft)).as_dict())
                publish(draft, target)
        shutil.rmtree(building, ignore_errors=True)
    return built or open_index(target, encoder)


def _sweep(building: Path) -> None:
    """Remove temporary files of a process that was killed."""
    for entry in [*building.glob(".*.partial"), *building.glob("draft/.*.partial"), *building.glob("draft/.*.old")]:
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def _built(target: Path, plan: IndexManifest, encoder: Encoder) -> DenseRetriever | None:
    """The index at `target` if it is sound and is what was asked for."""
    try:
        return open_index(target, encoder) if load_manifest(target).identity() == plan.identity() else None
    except UserError:  # missing, half-written, damaged or older: to be replaced
        return None


def _keep_vectors_of(plan: IndexManifest, building: Path) -> None:
    """Throw away what an interrupted build of other passages or with another encoder has left."""
    wanted = plan.identity()
    try:
        left = read_json(building / _PLAN)
    except UserError:
        left = None
    if left != wanted:
        (building / _JOURNAL).unlink(missing_ok=True)
        write_json(building / _PLAN, wanted)
