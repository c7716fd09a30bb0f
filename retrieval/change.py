"""Changing an index that is there: passages added and removed, segments made one, another kind of search."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

import numpy as np

from retrieval.atomic import locked_directory, writing
from retrieval.build import draft_corpus, encode_draft
from retrieval.checks import choice, whole
from retrieval.compressed import factory_of
from retrieval.corpus import Corpus, Row
from retrieval.encoders import Encoder
from retrieval.errors import UserError
from retrieval.generations import STORAGES, absolute, language_of, next_generation, restructure, write_removed
from retrieval.index import (
    CORPUS,
    PARTS,
    SEGMENT,
    WORDS,
    IndexManifest,
    Segment,
    building_directory,
    check_sums,
    encoder_of,
    load_manifest,
    open_parts,
)
from retrieval.passage import Passage
from retrieval.readers import read_files
from retrieval.splitting import Splitting
from retrieval.words import add_words


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
        batch_size: texts that go through the encoder at once.
        progress: show a bar on stderr; None shows a bar on a terminal, else plain lines.

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
        corpus = draft_corpus(passages, building, "", parts.corpus)
        segment = Segment(name, len(corpus), corpus.digest)
        plan = IndexManifest(len(corpus), corpus.digest, loaded.card, manifest.template)
        dtype = parts.vectors[0].dtype
        encode_draft(corpus, loaded, plan, building, dtype, batch_size=batch_size, progress=progress)
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

    Args:
        directory: the index.
        kind: kind of search; see `index_passages`. None keeps it.
        storage: number format of the vectors; see `index_passages`. None keeps it.
        language: of the words; see `index_passages`. None keeps it.
        progress: show a bar on stderr; None shows a bar on a terminal, else plain lines.

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
    """Read all files of an index and compare them with their checksums.

    Raises:
        UserError: a file is not as it was written.
    """
    target = absolute(directory)
    manifest, parts = open_parts(target)
    check_sums(target, manifest, list(manifest.files))
    if not parts.index.all_finite():
        raise UserError(f"index {target} is damaged: it holds vectors that are not finite; build it again")
    return manifest
