"""Building an index, resumable and in place all at once; and changing it: add, remove, compact, check its files."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

import numpy as np

from retrieval.atomic import MANIFEST, damaged, locked_directory, write_json, writing
from retrieval.checks import choice, whole
from retrieval.compressed import factory_of
from retrieval.corpus import Corpus, Row, check_replaceable
from retrieval.encoders import BlockEncoder, Encoder, Template, checked_encode, load_encoder
from retrieval.errors import UserError
from retrieval.index import (
    CORPUS,
    PARTS,
    SEGMENT,
    STORAGES,
    VECTORS,
    WORDS,
    IndexManifest,
    Segment,
    absolute,
    building_directory,
    check_sums,
    dtype_of,
    encoder_of,
    language_of,
    load_manifest,
    next_generation,
    open_index,
    open_parts,
    publish_index,
    restructure,
    write_removed,
)
from retrieval.passage import Passage
from retrieval.progress import Progress
from retrieval.published import PublishedVectors
from retrieval.readers import files_fingerprint, read_files
from retrieval.reading import read_json
from retrieval.search import LocalRetriever
from retrieval.splitting import Splitting
from retrieval.vectors import FlatIndex, GrowingMatrix
from retrieval.words import add_words

_PLAN, _JOURNAL = "plan.json", "journal.json"
BLOCK_ROWS = 1024
"""Rows that are encoded and saved together. A block is sorted by length and does not depend on other blocks, so an
encoding that was interrupted ends with the same vectors as one that was not."""


def build_index(
    files: Sequence[str | Path],
    out: str | Path,
    *,
    encoder: Encoder | str | Path,
    splitting: Splitting | None = None,
    template: Template | None = None,
    kind: str | None = None,
    storage: str | None = None,
    language: str | None = None,
    vectors: Sequence[str | Path] | None = None,
    batch_size: int = 64,
    progress: bool | None = None,
) -> LocalRetriever:
    """Index the user's files; see `index_passages` for how, and `read_files` for the formats.

    Args:
        files: tables with id, title and text, and documents, which are split into passages.
        out: directory of the index.
        encoder: an encoder, or the directory or hub name of one.
        splitting: word budget and overlap for documents.
        template: how passages and queries become texts for the encoder.
        kind: kind of search; see `index_passages`.
        storage: number format of the vectors on disk; see `index_passages`.
        language: of the words; see `index_passages`.
        vectors: files of vectors to take in place of encoding; see `index_passages`.
        batch_size: texts that go through the encoder at once.
        progress: show a bar on stderr; None shows a bar on a terminal, else plain lines.

    Raises:
        UserError: a bad file or row (by file and line), a bad encoder, or a full disk.
    """
    inputs = files_fingerprint(files, splitting)
    return index_passages(
        read_files(files, splitting),
        out,
        encoder=encoder,
        template=template,
        kind=kind,
        storage=storage,
        language=language,
        vectors=vectors,
        batch_size=batch_size,
        progress=progress,
        inputs=inputs,
    )


def index_passages(
    passages: Iterable[Passage | Row],
    out: str | Path,
    *,
    encoder: Encoder | str | Path,
    template: Template | None = None,
    kind: str | None = None,
    storage: str | None = None,
    language: str | None = None,
    vectors: Sequence[str | Path] | None = None,
    batch_size: int = 64,
    progress: bool | None = None,
    inputs: str = "",
) -> LocalRetriever:
    """Index passages. Nothing appears at `out` before all is done; an interrupted call is continued by the next one.

    Where `out` already holds the index of these very passages with this encoder, nothing is encoded, also where it is
    of another kind.

    Args:
        passages: in the order of their rows, with unique ids.
        out: a new directory, or that of an older index, which is replaced.
        encoder: an encoder, or the directory or hub name of one.
        template: how passages and queries become texts for the encoder.
        kind: kind of search: `auto`, `flat`, `rabitq`, `ivf`, or a factory string of faiss. None keeps the kind of the
            index that is there; for a new one it is `auto`.
        storage: number format of the vectors on disk: `float32`, `float16`, `int8`, or `auto` for float32 up to
            50,000 passages, else float16. None keeps that of the index that is there; for a new one it is `auto`.
        language: of the stems and stop words for search by words (BM25), such as `english`; `none` for no search by
            words. None keeps that of the index that is there; for a new one it is `english`.
        vectors: files with the vectors of these passages by this encoder, in the same order; see `PublishedVectors`.
            The encoder then only reads queries.
        batch_size: texts that go through the encoder at once.
        progress: show a bar on stderr; None shows a bar on a terminal, else plain lines.
        inputs: fingerprint of where the passages come from. Passages that an earlier call read from the same are not
            read again.

    Raises:
        UserError: a bad passage, a bad encoder, a full disk, or another process that builds the same index.
    """
    whole("batch_size", batch_size)
    choice("storage", storage or "auto", STORAGES)
    words = language_of(language or "english")
    factory_of("auto" if kind is None else kind, 1, 1)
    target = absolute(out)
    check_replaceable(target, {CORPUS, VECTORS, PARTS, MANIFEST})
    encoder = load_encoder(encoder)
    template = template or Template()
    published = None if vectors is None else PublishedVectors(vectors)
    with locked_directory(building_directory(target)) as building:
        draft = building / "draft"
        _sweep(building)
        found = _unchanged(target, inputs, encoder, template) if inputs else None
        if found is None:
            corpus = _draft_corpus(passages, building, inputs)
            plan = IndexManifest(len(corpus), corpus.digest, encoder.card, template, inputs=inputs)
            plan = replace(plan, kind=kind or "auto", language=words)
            found = _built(target, plan, encoder)
            if found is not None and Corpus.open(target / CORPUS).metadata != corpus.metadata:
                storage = _take_vectors(target, plan, building)
                found = None
        if found is None:
            dtype = dtype_of(storage or "auto", len(corpus))
            _encode_draft(
                corpus, encoder, plan, building, dtype, batch_size=batch_size, progress=progress, published=published
            )
            publish_index(plan, draft, target, progress)
        elif (kind, storage, language) != (None, None, None):
            wanted = {"kind": kind, "storage": storage, "language": language}
            restructure(target, found, building, progress=progress, **wanted)
        shutil.rmtree(building, ignore_errors=True)
    return open_index(target, encoder)


def _take_vectors(target: Path, plan: IndexManifest, building: Path) -> str:
    """Go on as if the vectors of the index that is there had just been encoded; returns their number format."""
    _keep_vectors_of(plan, building)
    with writing(building):
        shutil.copyfile(target / VECTORS, building / "draft" / VECTORS)
    write_json(building / _JOURNAL, {"rows": plan.passages})
    return FlatIndex.open(target / VECTORS).dtype


def _draft_corpus(
    passages: Iterable[Passage | Row], building: Path, inputs: str, others: Corpus | None = None
) -> Corpus:
    """The passages of a build or of an addition, written; or those that an interrupted one read from the same files."""
    draft = building / "draft"
    try:
        return _corpus_of(inputs, building) or Corpus.build(passages, draft / CORPUS, others=others)
    except BaseException:
        if not (draft / VECTORS).exists():
            shutil.rmtree(building, ignore_errors=True)
        raise


def _encode_draft(
    corpus: Corpus,
    encoder: Encoder,
    plan: IndexManifest,
    building: Path,
    dtype: str,
    *,
    batch_size: int,
    progress: bool | None,
    published: PublishedVectors | None = None,
) -> None:
    """The vectors of a build or of an addition; what an interrupted one of the same passages encoded is kept."""
    if published is not None:
        published.check(corpus, encoder.card.dim)
    _keep_vectors_of(plan, building, "" if published is None else published.fingerprint)
    matrix = GrowingMatrix(building / "draft" / VECTORS, building / _JOURNAL, len(corpus), encoder.card.dim, dtype)
    blocks = (
        [plan.template.of_passage(passage) for passage in corpus[start : start + BLOCK_ROWS]]
        for start in range(matrix.done, len(corpus), BLOCK_ROWS)
    )
    if published is not None:
        encoded = published.blocks(corpus, matrix.done)
    elif isinstance(encoder, BlockEncoder):
        encoded = encoder.encode_blocks(blocks, batch_size)
    else:
        encoded = (checked_encode(encoder, texts, batch_size) for texts in blocks)
    with Progress("encoding", "passage", len(corpus), matrix.done, show=progress) as bar:
        for vectors in encoded:
            matrix.append(vectors)
            bar.advance(len(vectors))


def _unchanged(target: Path, inputs: str, encoder: Encoder, template: Template) -> IndexManifest | None:
    """The index at `target` if it was made of the same files in the same way; the files are not read."""
    try:
        manifest = load_manifest(target)
    except UserError:
        return None
    plan = replace(manifest, encoder=encoder.card, template=template, added=[], removed=0)
    return _built(target, plan, encoder) if manifest.inputs == inputs else None


def _corpus_of(inputs: str, building: Path) -> Corpus | None:
    """The passages that an unfinished build has read from the same files."""
    try:
        same = inputs and read_json(building / _PLAN)["inputs"] == inputs
        return Corpus.open(building / "draft" / CORPUS) if same else None
    except (UserError, KeyError, TypeError):
        return None


def _sweep(building: Path) -> None:
    """Remove temporary files of a process that was killed."""
    for entry in [*building.glob(".*.partial"), *building.glob("draft/.*.partial"), *building.glob("draft/.*.old")]:
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def _built(target: Path, plan: IndexManifest, encoder: Encoder) -> IndexManifest | None:
    """The index at `target` if it is sound and holds what was asked for."""
    try:
        manifest, _ = open_parts(target)
        if manifest.identity() != plan.identity() or manifest.encoder.identity() != encoder.card.identity():
            return None
    except UserError:  # missing, half-written, damaged or older: to be replaced
        return None
    if plan.inputs not in ("", manifest.inputs):
        manifest = replace(manifest, inputs=plan.inputs)
        write_json(target / MANIFEST, manifest.as_dict())
    return manifest


def _keep_vectors_of(plan: IndexManifest, building: Path, vectors: str = "") -> None:
    """Throw away what an interrupted build of other passages, with another encoder or other vectors has left."""
    wanted = {**plan.identity(), "vectors": vectors}
    try:
        left = read_json(building / _PLAN)
    except UserError:
        left = {}
    if {**left, "inputs": ""} != {**wanted, "inputs": ""}:
        (building / _JOURNAL).unlink(missing_ok=True)
    write_json(building / _PLAN, {**wanted, "inputs": plan.inputs})


@contextmanager
def _changing(directory: str | Path) -> Iterator[tuple[Path, IndexManifest, Path]]:
    """Hold an index: its folder, its manifest, and a folder for unfinished files."""
    target = absolute(directory)
    load_manifest(target)  # before a folder is made beside it
    with locked_directory(building_directory(target)) as building:
        try:
            yield target, load_manifest(target), building
        finally:
            with suppress(OSError):  # it holds an unfinished build
                building.rmdir()


def add_files(
    directory: str | Path,
    files: Sequence[str | Path],
    *,
    encoder: Encoder | str | Path | None = None,
    splitting: Splitting | None = None,
    batch_size: int = 64,
    progress: bool | None = None,
) -> int:
    """Add the user's files to an index; see `add_passages` for how, and `read_files` for the formats.

    Raises:
        UserError: a bad file or row (by file and line), an id that is there already, or no such index.
    """
    rows = read_files(files, splitting)
    rows = chain(list(islice(rows, 1)), rows)  # a bad file is told before anything else
    return add_passages(directory, rows, encoder=encoder, batch_size=batch_size, progress=progress)


def add_passages(
    directory: str | Path,
    passages: Iterable[Passage | Row],
    *,
    encoder: Encoder | str | Path | None = None,
    batch_size: int = 64,
    progress: bool | None = None,
) -> int:
    """Add passages to an index as a segment of their own, which is searched exactly until `compact_index`.

    An interrupted call is continued by the next one. Retrievers that are open do not see the passages.

    Args:
        directory: the index.
        passages: in the order of their rows; no id may be in the index.
        encoder: the encoder of the index, or where to load it; None loads it from where it was at build time.
        batch_size: see `index_passages`.
        progress: see `index_passages`.

    Returns:
        The number of passages that were added.

    Raises:
        UserError: a bad passage, an id that is there already, no such index, or another process that changes it.
    """
    whole("batch_size", batch_size)
    with _changing(directory) as (target, manifest, building):
        loaded = encoder_of(f"index {target}", manifest.encoder, encoder)
        name = f"{PARTS}/{manifest.generation + 1}-{SEGMENT}"
        if (target / name).exists():  # an addition was killed before the manifest could name it
            shutil.rmtree(building / "draft", ignore_errors=True)
            (target / name).rename(building / "draft")
        _, parts = open_parts(target)
        corpus = _draft_corpus(passages, building, "", parts.corpus)
        segment = Segment(name, len(corpus), corpus.digest)
        plan = IndexManifest(len(corpus), corpus.digest, loaded.card, manifest.template)
        dtype = parts.vectors[0].dtype
        _encode_draft(corpus, loaded, plan, building, dtype, batch_size=batch_size, progress=progress)
        with writing(target):
            (target / PARTS).mkdir(exist_ok=True)
            (building / "draft").rename(target / name)
            old: list[str | None] = []
            new = [name]
            if manifest.language:
                old.append(manifest.part(WORDS))
                new.append(f"{PARTS}/{manifest.generation + 1}-{WORDS}")
                older = target / str(old[0])
                add_words(target / new[1], Corpus.open(target / name / CORPUS), manifest.rows, manifest.language, older)
            next_generation(target, replace(manifest, added=[*manifest.added, segment]), old, new)
        shutil.rmtree(building)
        building.mkdir()
    return len(corpus)


def remove_passages(directory: str | Path, ids: Sequence[str]) -> int:
    """Remove passages from an index by id. They are never found again; `compact_index` gives their space back.

    Returns:
        The number of passages that were removed.

    Raises:
        UserError: an id that is not in the index, which then stays as it is, or no such index.
    """
    wanted = list(dict.fromkeys(ids))
    with _changing(directory) as (target, manifest, _):
        _, parts = open_parts(target)
        rows = parts.corpus.rows_with(wanted)
        if len(rows) < len(wanted):
            found = {parts.corpus[int(row)].id for row in rows}
            missing = next(identifier for identifier in wanted if identifier not in found)
            raise UserError(f"no passage {missing!r:.80} in index {target}; nothing was removed")
        kept = parts.corpus.kept
        removed = np.zeros(manifest.rows, bool) if kept is None else ~kept
        removed[rows] = True
        write_removed(target, manifest, removed)
    return len(rows)


def compact_index(
    directory: str | Path,
    *,
    kind: str | None = None,
    storage: str | None = None,
    language: str | None = None,
    progress: bool | None = None,
) -> IndexManifest:
    """Make an index one segment without the removed passages, also of another kind. Nothing is encoded.

    For the arguments see `index_passages`; None keeps the kind of search, the number format, or the language.

    Raises:
        UserError: no such index, no such kind, or another process that changes it.
    """
    factory_of("auto" if kind is None else kind, 1, 1)
    choice("storage", storage or "auto", STORAGES)
    language_of(language or "none")
    with _changing(directory) as (target, manifest, building):
        restructure(target, manifest, building, kind=kind, storage=storage, language=language, progress=progress)
        return load_manifest(target)


def verify_index(directory: str | Path) -> IndexManifest:
    """Read all files of an index and compare them with their checksums."""
    target = absolute(directory)
    manifest, parts = open_parts(target)
    check_sums(target, manifest, list(manifest.files))
    if not all(vectors.all_finite() for vectors in parts.vectors):
        raise damaged("index", target, "it holds vectors that are not finite")
    return manifest
