"""Building an index, resumable and in place all at once; and changing it: add, remove, compact, check its files.

Changes by file are in `retrieval.sync`.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np

from retrieval.corpus import Corpus, Row
from retrieval.corpus_writing import build_corpus, check_replaceable
from retrieval.encoders import (
    BLOCK_ROWS,
    BlockEncoder,
    CountingEncoder,
    Encoder,
    Template,
    checked_encode,
)
from retrieval.file_table import FileRecord, read_file_table, write_file_table
from retrieval.index import (
    CORPUS,
    FILES,
    PARTS,
    REMOVED,
    SEGMENT,
    VECTORS,
    WORDS,
    IndexManifest,
    IndexSegment,
    absolute,
    building_directory,
    check_analyzer,
    check_sums,
    encoder_of,
    load_manifest,
    open_index,
    open_parts,
)
from retrieval.index_writing import (
    STORAGES,
    check_language,
    check_words_only,
    dtype_of,
    file_records,
    language_of,
    next_generation,
    publish_index,
    removed_rows,
    restructure,
)
from retrieval.local_encoders import load_encoder
from retrieval.passage import Passage
from retrieval.recording import FileRows
from retrieval.reports import LongPassages, ReadReport
from retrieval.search import LocalRetriever
from retrieval.sources import SourceFile, SourceList, list_files, name_files
from retrieval.splitting import Splitting
from retrieval.vector_writing import EncodingJournal, GrowingMatrix
from retrieval.vectors import FlatIndex, Mask, Matrix, factory_of
from retrieval.word_writing import add_words
from retrieval.words import ANALYZER
from selfrag.common.atomic import locked_directory, write_json, write_text, writing
from selfrag.common.checks import check_choice
from selfrag.common.errors import UserError, count_of
from selfrag.common.finished import MANIFEST, damaged
from selfrag.common.progress import Progress
from selfrag.common.reading import read_whole

_ENTRIES = {CORPUS, VECTORS, PARTS, MANIFEST}
_INPUTS, _JOURNAL = "inputs.txt", "journal.jsonl"


class GivenVectors(Protocol):
    """Vectors that others encoded."""

    @property
    def fingerprint(self) -> str:
        """Changes with any of them."""

    def check(self, corpus: Corpus, dim: int) -> None:
        """Refuse vectors that are not those of the corpus, or of another length than the encoder's."""

    def blocks(self, corpus: Corpus, start: int) -> Iterator[Matrix]:
        """Yield vectors [n, d] from a row on, in order."""


def check_lost(out: str | Path, files: Iterable[SourceFile], replaces: bool) -> int:
    """Return how many passages of the index at `out` come from none of the files, so that a build loses them.

    Raises:
        UserError: there are such passages and a build `replaces` none, or something else is there.
    """
    target = absolute(out)
    check_replaceable(target, _ENTRIES)
    try:
        manifest = load_manifest(target)
    except UserError:  # there is none, or none that can be searched
        return 0
    lost = ~removed_rows(target, manifest)
    locations = {file.location for file in files}
    for record in file_records(target, manifest) or []:
        if record.location in locations:
            lost[record.rows] = False
    count = int(lost.sum())
    if count and not replaces:
        raise UserError(
            f"index {out} holds {count_of(count, 'passages')} of other files: add to it with "
            f"`selfrag index add {out} FILES`, or give --replace (in Python `replace=True`) to drop them"
        )
    return count


def build_index(
    files: Sequence[str | Path] | SourceList,
    out: str | Path,
    *,
    encoder: Encoder | str | Path,
    splitting: Splitting | None = None,
    template: Template | None = None,
    kind: str | None = None,
    storage: str | None = None,
    language: str | None = None,
    vectors: GivenVectors | None = None,
    progress: bool | None = None,
    report: ReadReport | None = None,
    skip_unreadable: bool = False,
    replace: bool = False,
) -> LocalRetriever:
    """Index the user's files; see `index_passages` for how, and `read_files` for the formats.

    Args:
        files: tables with id, title and text, documents, which are split into passages, and folders of such files.
        out: directory of the index.
        encoder: an encoder, or the directory or hub name of one; `none` for a search by words only.
        splitting: how documents, and long rows of tables, are cut. Where there are `vectors`, no row is cut.
        template: how passages and queries become texts for the encoder.
        kind: kind of search; see `index_passages`.
        storage: number format of the vectors on disk; see `index_passages`.
        language: of the words; see `index_passages`.
        vectors: vectors to take in place of encoding; see `index_passages`.
        progress: show a bar on stderr; None shows a bar on a terminal, else plain lines.
        report: is filled with what was read and what was left out. It stays empty where the files need not be read
            again, since they are as they were at an earlier call that left out nothing. It counts passages of other
            files that were replaced.
        skip_unreadable: leave out files that cannot be read, and list them in the report.
        replace: also drop passages of other files that an index at `out` holds.

    Raises:
        UserError: a bad file or row (by file and line), a bad encoder, a full disk, or passages that would be lost.
    """
    listed = list_files(files, index=absolute(out), skip_unreadable=skip_unreadable)
    report = report or ReadReport()
    listed.add_to(report)
    report.replaced = check_lost(out, listed.files, replace)
    names = name_files(listed.files)
    splitting = splitting or Splitting()
    if vectors is not None:
        splitting = dataclasses.replace(
            splitting, row_words=None
        )  # each row has its vector
    return index_passages(
        FileRows(listed.files, names, splitting, report, skip_unreadable),
        out,
        encoder=encoder,
        template=template,
        kind=kind,
        storage=storage,
        language=language,
        vectors=vectors,
        progress=progress,
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
    vectors: GivenVectors | None = None,
    progress: bool | None = None,
) -> LocalRetriever:
    """Index passages. Nothing appears at `out` before all is done; an interrupted call is continued by the next one.

    Where `out` already holds the index of these very passages with this encoder, nothing is encoded, also where it is
    of another kind.

    Args:
        passages: in the order of their rows, with unique ids. Of `FileRows` the index records the files. Where these
            have not changed since an earlier call, they are not read again.
        out: a new directory, or that of an older index, which is replaced.
        encoder: an encoder, or the directory or hub name of one; `none` for a search by words only.
        template: how passages and queries become texts for the encoder.
        kind: kind of search: `auto`, `flat`, `rabitq`, `ivf`, or a factory string of faiss. None keeps the kind of the
            index that is there; for a new one it is `auto`.
        storage: number format of the vectors on disk: `float32`, `float16`, `int8`, or `auto` for float32 up to
            50,000 passages, else float16. None keeps that of the index that is there; for a new one it is `auto`.
        language: of the stems and stop words for search by words (BM25), by name or code such as `german` or `de`;
            `auto` for the one that most passages are written in, `none` for no search by words. None keeps that of
            the index that is there; for a new one it is `auto`.
        vectors: those of these passages by this encoder, in the same order, such as
            `selfrag.extensions.vectors.files.PublishedVectors`.
            The encoder then only reads queries.
        progress: show a bar on stderr; None shows a bar on a terminal, else plain lines.

    Raises:
        UserError: a bad passage, a bad encoder, a full disk, or another process that builds the same index.
    """
    check_choice("storage", storage or "auto", STORAGES)
    check_language(language or "auto")
    factory_of("auto" if kind is None else kind, 1, 1)
    target = absolute(out)
    check_replaceable(target, _ENTRIES)
    encoder = load_encoder(encoder)
    check_words_only(encoder.card, kind, storage, language)
    template = template or Template()
    files = passages if isinstance(passages, FileRows) else None
    inputs = "" if files is None else files.fingerprint
    records: list[FileRecord] | None = None
    with locked_directory(building_directory(target)) as building:
        draft = building / "draft"
        _sweep(building)
        manifest = _unchanged(target, inputs, encoder, template) if inputs else None
        if manifest is None:
            corpus = _draft_corpus(passages, building, inputs)
            if files is not None:
                records = read_file_table(building / FILES, len(corpus))
                if not files.is_complete:
                    inputs = ""
            plan = IndexManifest(
                len(corpus), corpus.digest, encoder.card, template, inputs=inputs
            )
            words = language_of(language or "auto", corpus)
            plan = replace(plan, kind=kind or "auto", language=words, analyzer=ANALYZER)
            manifest = _built(target, plan, encoder)
            if (
                manifest is not None
                and Corpus.open(target / CORPUS).metadata != corpus.metadata
            ):
                storage = _take_vectors(target, plan, building)
                manifest = None
        if manifest is None:
            dtype = dtype_of(storage or "auto", len(corpus))
            long_passages = encode_draft(
                corpus,
                encoder,
                plan,
                building,
                dtype,
                progress=progress,
                published=vectors,
            )
            if files is not None:
                files.report.long_passages = long_passages
            publish_index(plan, draft, target, progress, records)
        else:
            if records is not None:
                manifest = write_records(target, manifest, records)
            if (kind, storage, language) != (None, None, None):
                restructure(
                    target,
                    manifest,
                    building,
                    progress=progress,
                    kind=kind,
                    storage=storage,
                    language=language,
                )
        shutil.rmtree(building, ignore_errors=True)
    return open_index(target, encoder)


def _take_vectors(target: Path, plan: IndexManifest, building: Path) -> str:
    """Go on as if the vectors of the index that is there had just been encoded; returns their number format."""
    with closing(_open_journal(plan, building)) as journal, writing(building):
        shutil.copyfile(target / VECTORS, building / "draft" / VECTORS)
        journal.add(plan.passages)
    return FlatIndex.open(target / VECTORS).dtype


def _draft_corpus(
    passages: Iterable[Passage | Row], building: Path, inputs: str
) -> Corpus:
    """Return the passages of a build, written; or those that an interrupted one read from the same files."""
    corpus = _corpus_of(inputs, building)
    if corpus is None:
        corpus = draft_corpus(passages, building)
        if isinstance(passages, FileRows):
            write_file_table(building / FILES, passages.records())
            # else the next build reads the files again, and reports again
            if passages.is_complete:
                write_text(building / _INPUTS, inputs)
    return corpus


def draft_corpus(
    passages: Iterable[Passage | Row], building: Path, others: Corpus | None = None
) -> Corpus:
    """Write the passages of a build or of a change; `others` are passages whose ids are used already."""
    draft = building / "draft"
    (building / _INPUTS).unlink(missing_ok=True)
    try:
        return build_corpus(passages, draft / CORPUS, others=others)
    except BaseException:
        if not (draft / VECTORS).exists():
            shutil.rmtree(building, ignore_errors=True)
        raise


def encode_draft(
    corpus: Corpus,
    encoder: Encoder,
    plan: IndexManifest,
    building: Path,
    dtype: str,
    *,
    progress: bool | None,
    published: GivenVectors | None = None,
) -> LongPassages | None:
    """Make the vectors of a build or of an addition; what an interrupted one of the same passages encoded is kept.

    Returns:
        How many of the passages that were encoded now are longer than the encoder reads; None where it does not tell.
    """
    if published is not None:
        published.check(corpus, encoder.card.dim)
    if not encoder.card.dim:
        matrix = GrowingMatrix(building / "draft" / VECTORS, len(corpus), 0)
        matrix.append(np.zeros((len(corpus), 0), np.float32))
        return None
    before = encoder.long_texts if isinstance(encoder, CountingEncoder) else 0
    with closing(_open_journal(plan, building, published)) as journal:
        matrix = GrowingMatrix(
            building / "draft" / VECTORS, len(corpus), encoder.card.dim, dtype, journal
        )
        with Progress(
            "encoding", "passage", len(corpus), matrix.done, show=progress
        ) as bar:
            for vectors in _vector_blocks(
                corpus, encoder, plan.template, published, matrix.done
            ):
                matrix.append(vectors)
                bar.advance(len(vectors))
    most = encoder.card.max_tokens
    if (
        published is not None
        or most is None
        or not isinstance(encoder, CountingEncoder)
    ):
        return None
    return LongPassages(encoder.long_texts - before, most)


def _vector_blocks(
    corpus: Corpus,
    encoder: Encoder,
    template: Template,
    published: GivenVectors | None,
    start: int,
) -> Iterator[Matrix]:
    """Yield the vectors of passages from a row on, block by block."""
    if published is not None:
        return published.blocks(corpus, start)
    blocks = (
        [template.of_passage(passage) for passage in corpus[row : row + BLOCK_ROWS]]
        for row in range(start, len(corpus), BLOCK_ROWS)
    )
    if isinstance(encoder, BlockEncoder):
        return encoder.encode_blocks(blocks)
    return (checked_encode(encoder, texts) for texts in blocks)


def _open_journal(
    plan: IndexManifest, building: Path, published: GivenVectors | None = None
) -> EncodingJournal:
    """Return the journal of an encoding; one of other passages, another encoder or other vectors is begun anew."""
    vectors = "" if published is None else published.fingerprint
    return EncodingJournal(building / _JOURNAL, {**plan.identity(), "vectors": vectors})


def _unchanged(
    target: Path, inputs: str, encoder: Encoder, template: Template
) -> IndexManifest | None:
    """Return the index at `target` if it was made of the same files in the same way; the files are not read."""
    try:
        manifest = load_manifest(target)
    except UserError:
        return None
    plan = replace(
        manifest, encoder=encoder.card, template=template, added=[], removed=0
    )
    same = manifest.inputs == inputs and manifest.part(FILES) is not None
    return _built(target, plan, encoder) if same else None


def _corpus_of(inputs: str, building: Path) -> Corpus | None:
    """Return the passages that an unfinished build has read from the same files, or None."""
    try:
        same = (
            inputs
            and read_whole(building / _INPUTS) == inputs
            and (building / FILES).exists()
        )
        return Corpus.open(building / "draft" / CORPUS) if same else None
    except UserError:
        return None


def _sweep(building: Path) -> None:
    """Remove temporary files of a process that was killed."""
    for entry in [
        *building.glob(".*.partial"),
        *building.glob("draft/.*.partial"),
        *building.glob("draft/.*.old"),
    ]:
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def _built(target: Path, plan: IndexManifest, encoder: Encoder) -> IndexManifest | None:
    """Return the index at `target` if it is sound and holds what was asked for."""
    try:
        manifest, _ = open_parts(target)
        if (
            manifest.identity() != plan.identity()
            or manifest.encoder.identity() != encoder.card.identity()
        ):
            return None
    except UserError:  # missing, half-written, damaged or older: to be replaced
        return None
    if plan.inputs not in ("", manifest.inputs):
        manifest = replace(manifest, inputs=plan.inputs)
        write_json(target / MANIFEST, manifest.as_dict())
    return manifest


def write_records(
    target: Path, manifest: IndexManifest, records: list[FileRecord]
) -> IndexManifest:
    """Write the table of files as the next generation, unless it says the same; returns the manifest."""
    if file_records(target, manifest) == records:
        return manifest
    name = f"{PARTS}/{manifest.generation + 1}-{FILES}"
    with writing(target):
        write_file_table(target / name, records)
        return next_generation(target, manifest, [manifest.part(FILES)], [name])


@contextmanager
def changing(directory: str | Path) -> Iterator[tuple[Path, IndexManifest, Path]]:
    """Hold an index: its folder, its manifest, and a folder for unfinished files."""
    target = absolute(directory)
    load_manifest(target)  # before a folder is made beside it
    with locked_directory(building_directory(target)) as building:
        try:
            yield target, load_manifest(target), building
        finally:
            with suppress(OSError):  # it holds an unfinished build
                building.rmdir()


def add_passages(
    directory: str | Path,
    passages: Iterable[Passage | Row],
    *,
    encoder: Encoder | str | Path | None = None,
    progress: bool | None = None,
) -> int:
    """Add passages to an index as a segment of their own, which is searched exactly until `compact_index`.

    An interrupted call is continued by the next one. Retrievers that are open do not see the passages.

    Args:
        directory: the index.
        passages: in the order of their rows; no id may be in the index.
        encoder: the encoder of the index, or where to load it; None loads it from where it was at build time.
        progress: see `index_passages`.

    Returns:
        The number of passages that were added.

    Raises:
        UserError: a bad passage, an id that is there already, no such index, or another process that changes it.
    """
    with changing(directory) as (target, manifest, building):
        loaded = encoder_of(f"index {target}", manifest.encoder, encoder)
        take_back_draft(target, manifest, building)
        _, parts = open_parts(target)
        corpus = draft_corpus(passages, building, parts.corpus)
        dtype = parts.vectors[0].dtype
        plan = IndexManifest(len(corpus), corpus.digest, loaded.card, manifest.template)
        encode_draft(corpus, loaded, plan, building, dtype, progress=progress)
        publish_change(target, manifest, building, corpus)
    return len(corpus)


def segment_name(manifest: IndexManifest) -> str:
    """Return the folder, relative to an index, of the segment that its next change adds."""
    return f"{PARTS}/{manifest.generation + 1}-{SEGMENT}"


def take_back_draft(target: Path, manifest: IndexManifest, building: Path) -> None:
    """Make the segment of a change that was killed before the manifest could name it an unfinished one again."""
    name = segment_name(manifest)
    if (target / name).exists():
        shutil.rmtree(building / "draft", ignore_errors=True)
        (target / name).rename(building / "draft")


def publish_change(
    target: Path,
    manifest: IndexManifest,
    building: Path,
    corpus: Corpus | None = None,
    removed: Mask | None = None,
    records: Sequence[FileRecord] | None = None,
) -> IndexManifest:
    """Publish a change of an index as one new generation, and return its manifest.

    Args:
        target: the index.
        manifest: as it is.
        building: the folder for unfinished files, which the caller holds.
        corpus: passages of the segment in `building`, which is encoded and moves into the index; None adds none.
        removed: rows that are removed afterwards, bool [rows]; None removes none.
        records: of the files of all passages; None leaves the table of files as it is.
    """
    if corpus is not None:
        check_analyzer(target, manifest)
    number = manifest.generation + 1
    old: list[str | None] = []
    new: list[str] = []
    changed = manifest
    with writing(target):
        (target / PARTS).mkdir(exist_ok=True)
        if corpus is not None:
            name = segment_name(manifest)
            (building / "draft").rename(target / name)
            new.append(name)
            changed = replace(
                changed,
                added=[*manifest.added, IndexSegment(name, len(corpus), corpus.digest)],
            )
            if manifest.language:
                words = f"{PARTS}/{number}-{WORDS}"
                older = target / str(manifest.part(WORDS))
                added = Corpus.open(target / name / CORPUS)
                add_words(
                    target / words, added, manifest.rows, manifest.language, older
                )
                old.append(manifest.part(WORDS))
                new.append(words)
        if removed is not None:
            name = f"{PARTS}/{number}-{REMOVED}"
            np.save(target / name, np.packbits(removed))
            changed = replace(changed, removed=int(removed.sum()))
            old.append(manifest.part(REMOVED))
            new.append(name)
        if records is not None:
            name = f"{PARTS}/{number}-{FILES}"
            write_file_table(target / name, records)
            old.append(manifest.part(FILES))
            new.append(name)
        changed = next_generation(target, changed, old, new)
    if corpus is not None:
        shutil.rmtree(building)
        building.mkdir()
    return changed


def remove_passages(directory: str | Path, ids: Sequence[str]) -> int:
    """Remove passages from an index by id. They are never found again; `compact_index` gives their space back.

    Returns:
        The number of passages that were removed.

    Raises:
        UserError: an id that is not in the index, which then stays as it is, or no such index.
    """
    distinct = list(dict.fromkeys(ids))
    with changing(directory) as (target, manifest, building):
        _, parts = open_parts(target)
        rows = parts.corpus.rows_with(distinct)
        if len(rows) < len(distinct):
            present = {parts.corpus[int(row)].id for row in rows}
            missing = next(
                identifier for identifier in distinct if identifier not in present
            )
            raise UserError(
                f"no passage {missing!r:.80} in index {target}; nothing was removed"
            )
        removed = removed_rows(target, manifest)
        removed[rows] = True
        publish_change(target, manifest, building, removed=removed)
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
    check_choice("storage", storage or "auto", STORAGES)
    check_language(language or "auto")
    with changing(directory) as (target, manifest, building):
        restructure(
            target,
            manifest,
            building,
            kind=kind,
            storage=storage,
            language=language,
            progress=progress,
        )
        return load_manifest(target)


def verify_index(directory: str | Path) -> IndexManifest:
    """Read all files of an index and compare them with their checksums."""
    target = absolute(directory)
    manifest, parts = open_parts(target)
    check_sums(target, manifest, list(manifest.files))
    if not all(vectors.all_finite() for vectors in parts.vectors):
        raise damaged("index", target, "it holds vectors that are not finite")
    return manifest
