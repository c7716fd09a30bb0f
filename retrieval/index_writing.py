"""Writing an index: a finished segment, its next generations, and other kinds of search over what it holds."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from retrieval.compressed import build_compressed
from retrieval.corpus import Corpus
from retrieval.corpus_writing import build_corpus
from retrieval.encoders import EncoderCard
from retrieval.index import (
    CORPUS,
    DENSE,
    FILES,
    PARTS,
    VECTORS,
    WORDS,
    IndexManifest,
    kept_rows,
    open_parts,
)
from retrieval.language_detection import detect_language, sample
from retrieval.vector_writing import GrowingMatrix, live_blocks
from retrieval.vectors import DenseCard, FlatIndex, Mask, factory_of
from retrieval.word_writing import add_words
from retrieval.words import ANALYZER, language_name
from selfrag.common.atomic import publish, write_json, writing
from selfrag.common.errors import UserError
from selfrag.common.finished import MANIFEST, checksums, sizes

if TYPE_CHECKING:
    from retrieval.file_table import FileRecord


STORAGES = ("auto", "float32", "float16", "int8")
_FLOAT32_ROWS = 50_000  # up to so many vectors `auto` stores float32


def dtype_of(storage: str, rows: int) -> str:
    """Return the number format of the vectors on disk; `auto` is float32 up to 50,000 rows, else float16."""
    if storage != "auto":
        return storage
    return "float32" if rows <= _FLOAT32_ROWS else "float16"


def check_language(language: str) -> None:
    """Raise UserError if a language is neither `auto` nor `none` nor known."""
    if language not in ("auto", "none"):
        language_name(language)


def check_words_only(
    encoder: EncoderCard, kind: str | None, storage: str | None, language: str | None
) -> None:
    """Raise UserError if an index without an encoder is to have vectors, or no words."""
    if encoder.dim:
        return
    if language == "none":
        raise UserError(
            "language=none: an index without an encoder is searched by words; leave it out"
        )
    for name, value in (("kind", kind), ("storage", storage)):
        if value not in (None, "auto"):
            raise UserError(
                f"{name}={value}: an index without an encoder has no vectors; leave it out"
            )


def language_of(language: str, corpus: Corpus) -> str:
    """Return a language as the manifest names it: empty for `none`, and for `auto` the one that a corpus is written in.

    One language serves all passages. A query of two words does not tell its language, so passages in several languages
    with stems of their own could not be found by one query; with the same stems on both sides equal words always meet.
    """
    if language == "none":
        return ""
    if language != "auto":
        return language_name(language)
    passages = (corpus[row] for row in sample(len(corpus)))
    return detect_language(f"{passage.title} {passage.text}" for passage in passages)


def publish_index(
    plan: IndexManifest,
    draft: Path,
    target: Path,
    progress: bool | None,
    records: Sequence[FileRecord] | None = None,
) -> None:
    """Add to a finished segment in `draft` what its kind of search needs, and put the folder in place of `target`.

    `records` are those of the files that its passages came from; None where they did not come from files.
    """
    with writing(target):
        shutil.rmtree(draft / PARTS, ignore_errors=True)
        dense = _dense(
            draft / VECTORS,
            plan.kind,
            draft / PARTS / f"{plan.generation}-{DENSE}",
            progress,
        )
        if plan.language:
            add_words(
                draft / PARTS / f"{plan.generation}-{WORDS}",
                Corpus.open(draft / CORPUS),
                0,
                plan.language,
            )
        if records is not None:
            from retrieval.file_table import write_file_table

            write_file_table(draft / PARTS / f"{plan.generation}-{FILES}", records)
        write_json(
            draft / MANIFEST,
            _sealed(
                replace(plan, dense=dense, checksums={}), draft, sizes(draft)
            ).as_dict(),
        )
        publish(draft, target)


def restructure(
    target: Path,
    manifest: IndexManifest,
    building: Path,
    *,
    kind: str | None = None,
    storage: str | None = None,
    language: str | None = None,
    progress: bool | None = None,
) -> None:
    """Make an index one segment, with another kind of search, number format or language; nothing is encoded.

    None keeps what there is; the language `none` drops the words. Words of an older analyzer are made anew.
    `building` is a folder that the caller holds.
    """
    check_words_only(manifest.encoder, kind, storage, language)
    _, parts = open_parts(target)
    present = parts.vectors[0].dtype
    dtype = (
        present
        if storage is None
        else dtype_of(storage, manifest.rows - manifest.removed)
    )
    kind = kind or manifest.kind
    language = (
        manifest.language if language is None else language_of(language, parts.corpus)
    )
    if manifest.added or manifest.removed or dtype != present:
        draft = building / "compacted"
        shutil.rmtree(draft, ignore_errors=True)
        corpus = build_corpus(parts.corpus.live(), draft / CORPUS)
        _copy_vectors(parts.vectors, parts.corpus.kept, draft, len(corpus), dtype)
        plan = replace(
            manifest,
            passages=len(corpus),
            corpus=corpus.digest,
            kind=kind,
            language=language,
            analyzer=ANALYZER,
            added=[],
            removed=0,
            generation=manifest.generation + 1,
            inputs=manifest.inputs if corpus.digest == manifest.corpus else "",
        )
        records = file_records(target, manifest)
        from retrieval.file_table import move_records

        moved = None if records is None else move_records(records, parts.corpus.kept)
        publish_index(plan, draft, target, progress, moved)
        return
    changed = replace(
        manifest,
        kind=kind,
        language=language,
        analyzer=ANALYZER if language else manifest.analyzer,
    )
    old, new = list[str | None](), list[str]()
    with writing(target):
        if factory_of(kind, manifest.rows, parts.vectors[0].dim) != (
            manifest.dense.factory if manifest.dense else ""
        ):
            name = f"{PARTS}/{manifest.generation + 1}-{DENSE}"
            changed = replace(
                changed, dense=_dense(target / VECTORS, kind, target / name, progress)
            )
            old.append(manifest.part(DENSE))
            new.append(name)
        if (language, changed.analyzer) != (manifest.language, manifest.analyzer):
            name = f"{PARTS}/{manifest.generation + 1}-{WORDS}"
            if language:
                add_words(target / name, parts.corpus, 0, language)
            old.append(manifest.part(WORDS))
            new.append(name)
        if changed != manifest:
            next_generation(target, changed, old, new)


def next_generation(
    target: Path, manifest: IndexManifest, old: Sequence[str | None], new: Sequence[str]
) -> IndexManifest:
    """Write the manifest of a changed index, then remove files that it does not name; return the manifest.

    `old` are relative names that are no longer needed, `new` those that were written to their end. The `files`,
    `checksums` and `generation` of the manifest are those from before.
    """
    before = tuple(name for name in old if name)
    kept = {
        name: size for name, size in manifest.files.items() if not _inside(name, before)
    }
    added = {name: size for name, size in sizes(target).items() if _inside(name, new)}
    manifest = _sealed(
        replace(manifest, generation=manifest.generation + 1), target, kept | added
    )
    write_json(target / MANIFEST, manifest.as_dict())
    # files before their folders
    for path in sorted((target / PARTS).rglob("*"), reverse=True):
        if path.relative_to(target).as_posix() not in manifest.files:
            # a folder that is not empty, or a file that a reader holds on Windows
            with suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()
    return manifest


def _inside(name: str, places: Sequence[str]) -> bool:
    return any(name == place or name.startswith(f"{place}/") for place in places)


def _sealed(
    manifest: IndexManifest, folder: Path, files: dict[str, int]
) -> IndexManifest:
    """Return a manifest with sizes and checksums of its files; those that are known are not read again."""
    known = {
        name: manifest.checksums[name] for name in files if name in manifest.checksums
    }
    new = checksums(folder, sorted(files.keys() - known.keys()))
    return replace(
        manifest,
        files=dict(sorted(files.items())),
        checksums=dict(sorted({**known, **new}.items())),
    )


def _dense(
    vectors: Path, kind: str, file: Path, progress: bool | None
) -> DenseCard | None:
    flat = FlatIndex.open(vectors)
    factory = factory_of(kind, len(flat), flat.dim)
    if not factory:
        return None
    file.parent.mkdir(exist_ok=True)
    return build_compressed(flat, factory, file, progress=progress)


def _copy_vectors(
    parts: list[FlatIndex], kept: Mask | None, draft: Path, rows: int, dtype: str
) -> None:
    """Write the vectors of all rows that are kept, in their order, as those of one segment."""
    matrix = GrowingMatrix(draft / VECTORS, rows, parts[0].dim, dtype)
    for block in live_blocks(parts, kept):
        matrix.append(block)


def file_records(path: Path, manifest: IndexManifest) -> list[FileRecord] | None:
    """Return the records of the files that the passages of an index came from; None where the index has no table."""
    from retrieval.file_table import read_file_table  # a search needs no table of files

    name = manifest.part(FILES)
    return None if name is None else read_file_table(path / name, manifest.rows)


def removed_rows(path: Path, manifest: IndexManifest) -> Mask:
    """Return which rows of an index were removed, bool [rows]."""
    kept = kept_rows(path, manifest)
    return np.zeros(manifest.rows, bool) if kept is None else ~kept
