"""Changes an index by file: sync it with files and folders, add files, remove files.

A sync makes the index equal to the files that are named now: it adds what is new, replaces what has changed, and
removes what is gone. All of it is published as one generation, so readers see the old state or the new one. Passages
that are the same as before keep their rows, and a text that the index has encoded before is not encoded again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from retrieval.build import (
    build_index,
    changing,
    compact_index,
    draft_corpus,
    encode_draft,
    publish_change,
    take_back_draft,
)
from retrieval.corpus import Corpus, Row, Scalar
from retrieval.encoders import CountingEncoder, Encoder, EncoderCard, checked_encode
from retrieval.file_table import FileRecord
from retrieval.index import (
    CORPUS,
    IndexManifest,
    absolute,
    encoder_of,
    load_manifest,
    open_parts,
)
from retrieval.index_writing import file_records, removed_rows
from retrieval.passage import Passage
from retrieval.recording import FileRows, reading_of, splitting_of
from retrieval.reports import ReadReport
from retrieval.sources import (
    FileState,
    SourceFile,
    SourceList,
    file_kind,
    file_state,
    list_files,
    name_files,
)
from retrieval.splitting import Splitting
from retrieval.vectors import FlatIndex, Mask, Matrix, RowNumbers
from selfrag.common.errors import UserError
from selfrag.common.finished import MANIFEST
from selfrag.common.reading import user_path

_MOST_SEGMENTS = 64
"""Segments after which a sync compacts the index: each costs every search a little."""


@dataclass(slots=True)
class SyncReport:
    """What a sync did. Files are named by their paths inside the folder that was named."""

    added: list[str] = field(default_factory=list)  # files that are new
    # files whose passages were replaced
    changed: list[str] = field(default_factory=list)
    # files whose passages were removed
    removed: list[str] = field(default_factory=list)
    unchanged: int = 0  # files that stayed as they are
    passages_added: int = 0
    passages_removed: int = 0
    # those of the added passages whose texts the encoder had to read
    passages_encoded: int = 0
    passages: int = 0  # in the index now
    generation: int = 0  # of the index now
    compacted: bool = False  # whether the index was made one segment afterwards
    # symbolic links inside folders, which are not followed
    links: list[str] = field(default_factory=list)
    # the files that were read, and those that could not be
    read: ReadReport = field(default_factory=ReadReport)

    @property
    def has_changes(self) -> bool:
        """Return whether the sync changed the index or could not read a file."""
        return bool(self.added or self.changed or self.removed or self.read.unreadable)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return asdict(self)


def check_order(directory: str | Path, files: Sequence[str | Path]) -> None:
    """Raise UserError where one of the files is an index, and the directory is none."""
    target = absolute(directory)
    if (target / MANIFEST).exists():
        return
    for name in files:
        if (absolute(name) / MANIFEST).exists() and (absolute(name) / CORPUS).exists():
            raise UserError(
                f"{name} is an index, and {directory} is none; the index comes first, then its files"
            )


def sync_index(
    directory: str | Path,
    files: Sequence[str | Path],
    *,
    encoder: Encoder | str | Path | None = None,
    splitting: Splitting | None = None,
    skip_unreadable: bool = False,
    progress: bool | None = None,
) -> SyncReport:
    """Make an index equal to files and folders; build it where there is none.

    The files that are compared are those that the index knows and those that are named. A file that the index knows
    and that is not named now, or is no longer there, is gone. Passages that were added in Python stay.

    Args:
        directory: the index.
        files: files, and folders with all files below them that have a reader.
        encoder: the encoder of the index, or where to load it; None loads it from where it was at build time. It is
            loaded only if there is something to encode.
        splitting: how documents are cut; None cuts them as before. Another one reads every file again.
        skip_unreadable: go on past files that cannot be read, and list them. Their passages stay as they were.
        progress: see `index_passages`.

    Raises:
        UserError: a bad file or row (by file and line), a folder without files, an index whose files are not known, or
            another process that changes it. The index then stays as it was.
    """
    check_order(directory, files)
    target = absolute(directory)
    listed = list_files(files, index=target, skip_unreadable=skip_unreadable)
    if _is_new(target):
        if encoder is None:
            raise UserError(f"no index at {target}; name the encoder of a new one")
        report = SyncReport(links=listed.links)
        build_index(
            listed,
            target,
            encoder=encoder,
            splitting=splitting,
            report=report.read,
            progress=progress,
            skip_unreadable=skip_unreadable,
        )
        manifest = load_manifest(target)
        records = file_records(target, manifest) or []
        report.added = [record.inside for record in records]
        report.passages = report.passages_added = manifest.rows
        report.passages_encoded = manifest.rows if manifest.encoder.dim else 0
        report.generation = manifest.generation
        return report
    report = _change(
        target, listed, encoder, splitting, True, skip_unreadable, progress
    )
    manifest = load_manifest(target)
    if (
        len(manifest.segments) > _MOST_SEGMENTS
        or manifest.removed > report.passages > 0
    ):
        report.generation = compact_index(target, progress=progress).generation
        report.compacted = True
    return report


def add_files(
    directory: str | Path,
    files: Sequence[str | Path],
    *,
    encoder: Encoder | str | Path | None = None,
    splitting: Splitting | None = None,
    skip_unreadable: bool = False,
    progress: bool | None = None,
) -> SyncReport:
    """Add files to an index, or replace those of them that it knows and that have changed; nothing else is removed.

    For the arguments and errors see `sync_index`.
    """
    check_order(directory, files)
    target = absolute(directory)
    load_manifest(target)
    listed = list_files(files, index=target, skip_unreadable=skip_unreadable)
    return _change(target, listed, encoder, splitting, False, skip_unreadable, progress)


def index_splitting(directory: str | Path) -> Splitting:
    """Return how the documents of an index were cut; the default where there is none yet."""
    target = absolute(directory)
    if _is_new(target):
        return Splitting()
    return splitting_of(file_records(target, load_manifest(target)) or [])


def remove_files(directory: str | Path, files: Sequence[str]) -> int:
    """Remove all passages of files from an index; returns the number of passages.

    Args:
        directory: the index.
        files: paths of files, which need no longer be there, or their paths inside the folder that was indexed.

    Raises:
        UserError: a file that the index does not know. It then stays as it was.
    """
    with changing(directory) as (target, manifest, building):
        records = file_records(target, manifest) or []
        removed = removed_rows(target, manifest)
        before = int(removed.sum())
        gone = [_record_of(name, records, target) for name in files]
        for record in gone:
            removed[record.rows] = True
        kept = [record for record in records if record not in gone]
        publish_change(target, manifest, building, removed=removed, records=kept)
    return int(removed.sum()) - before


def _record_of(name: str, records: Sequence[FileRecord], target: Path) -> FileRecord:
    location = normalize("NFC", str(absolute(user_path(name)).resolve()))
    inside = normalize("NFC", name)
    matching = [file for file in records if normalize("NFC", file.location) == location]
    if not matching:
        matching = [file for file in records if normalize("NFC", file.inside) == inside]
    if len(matching) > 1:
        exact = [
            record for record in matching if name in (record.location, record.inside)
        ]
        matching = exact if len(exact) == 1 else matching
    if not matching:
        raise UserError(
            f"no passages of {name!r:.200} in index {target}; nothing was removed"
        )
    if len(matching) > 1:
        places = ", ".join(record.location for record in matching)
        raise UserError(
            f"{name!r:.200} may be each of {places:.600}; name one by its whole path"
        )
    return matching[0]


def _is_new(target: Path) -> bool:
    """Return whether there is no index, and none whose replacement was interrupted."""
    if target.exists():
        return False
    try:
        load_manifest(target)
    except UserError:
        return not target.exists()
    return False


def _change(
    target: Path,
    listed: SourceList,
    encoder: Encoder | str | Path | None,
    splitting: Splitting | None,
    removes: bool,
    skip_unreadable: bool,
    progress: bool | None,
) -> SyncReport:
    """Bring the listed files into an index, and take out the files that are not listed if the call `removes`."""
    report = SyncReport(links=listed.links)
    listed.add_to(report.read)
    with changing(target) as (_, manifest, building):
        records = file_records(target, manifest)
        if records is None and removes:
            raise UserError(
                f"index {target} does not know the files of its passages; build it again from them once (passages "
                "that stay the same are not encoded again), then sync it"
            )
        records = records or []
        kept = ~removed_rows(target, manifest)
        splitting = splitting or splitting_of(records)
        plan = _compare(listed, records, kept, splitting, removes)
        report.unchanged = plan.unchanged
        report.removed = sorted(record.inside for record in plan.gone)
        report.passages, report.generation = int(kept.sum()), manifest.generation
        if plan.to_read or plan.gone:
            change = _Change(target, manifest, building, plan, kept)
            change.publish(encoder, splitting, report, skip_unreadable, progress)
    return report


@dataclass(slots=True)
class _Plan:
    """The files of a sync by what happens to them."""

    to_read: list[SourceFile]  # new and changed files
    known: dict[str, FileRecord]  # records of the changed ones by location
    gone: list[FileRecord]
    stay: list[FileRecord]  # records that stay as they are
    before: list[FileRecord]  # all records
    unchanged: int  # files that were compared and have not changed


def _by_location(records: Sequence[FileRecord]) -> dict[str, FileRecord]:
    return {record.location: record for record in records}


def _compare(
    listed: SourceList,
    records: Sequence[FileRecord],
    kept: Mask,
    splitting: Splitting,
    removes: bool,
) -> _Plan:
    by_location = _by_location(records)
    plan = _Plan([], {}, [], [], list(records), 0)
    for file in listed.files:
        record = by_location.pop(file.location, None)
        # an addition names single files, whose ids stay
        if record is not None and not removes:
            file = replace(file, inside=record.inside)
        if record is None:
            plan.to_read.append(file)
        elif record.inside == file.inside and _is_unchanged(
            file, record, splitting, kept
        ):
            plan.stay.append(record)
            plan.unchanged += 1
        else:
            plan.to_read.append(file)
            plan.known[file.location] = record
    unreadable = [Path(os.path.realpath(skipped.file)) for skipped in listed.unreadable]
    pages = {skipped.file for skipped in listed.unreadable}
    for record in by_location.values():
        place = Path(record.location)
        if (
            not removes
            or record.location in pages
            or any(place.is_relative_to(folder) for folder in unreadable)
        ):
            plan.stay.append(record)
        else:
            plan.gone.append(record)
    return plan


def _is_unchanged(
    file: SourceFile, record: FileRecord, splitting: Splitting, kept: Mask
) -> bool:
    """Return whether a file would give the passages that the index holds of it."""
    reading = reading_of(splitting, file_kind(file.path))
    if record.reading != reading or not kept[record.rows].all():
        return False
    state = file_state(file.path)
    if FileState(record.size, record.modified, record.changed).same_times(state):
        return True
    if record.size != state.size or not record.digest:
        return False
    return file_state(file.path, digest=True).digest == record.digest


def _row_key(passage: Passage, metadata: Mapping[str, Scalar]) -> bytes:
    """Return a digest of all that a row holds."""
    values = [passage.id, passage.title, passage.text, sorted(metadata.items())]
    return hashlib.blake2b(json.dumps(values).encode(), digest_size=16).digest()


def _text_key(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


class _Change:
    """One change of an index: rows that stay, rows that go, and new ones."""

    def __init__(
        self,
        target: Path,
        manifest: IndexManifest,
        building: Path,
        plan: _Plan,
        kept: Mask,
    ) -> None:
        self._target = target
        self._manifest = manifest
        self._building = building
        self._plan = plan
        _, parts = open_parts(target)
        self._corpus, self._vectors = parts.corpus, parts.vectors
        self._before = int(kept.sum())
        self._kept = kept  # bool [rows]; rows of changed files are taken out, and back in where they are found again
        self._old: dict[
            str, dict[bytes, int]
        ] = {}  # rows of changed files by location and by what they hold
        self._gone: dict[bytes, int] = {}  # rows of files that are gone, likewise
        self._encoded: dict[
            bytes, int
        ] = {}  # rows whose vector may serve again, by the text that was encoded
        self._rows: dict[
            str, list[int]
        ] = {}  # rows of files that were read, by location
        self._new = 0
        for record in plan.known.values():
            self._take_out(record, self._old.setdefault(record.location, {}))
        for record in plan.gone:
            self._take_out(record, self._gone)

    def _take_out(self, record: FileRecord, by_content: dict[bytes, int]) -> None:
        for row in record.rows.tolist():
            passage = self._corpus[row]
            if self._kept[row]:
                by_content.setdefault(_row_key(passage, self._corpus.further(row)), row)
            self._encoded.setdefault(
                _text_key(self._manifest.template.of_passage(passage)), row
            )
        self._kept[record.rows] = False

    def publish(
        self,
        encoder: Encoder | str | Path | None,
        splitting: Splitting,
        report: SyncReport,
        skip_unreadable: bool,
        progress: bool | None,
    ) -> None:
        """Read the files, encode what is new, and publish all as one generation."""
        plan, manifest = self._plan, self._manifest
        take_back_draft(self._target, manifest, self._building)
        # 1. Read the files. Rows that are there already stay; the others are written as a segment.
        files = FileRows(
            plan.to_read,
            self._names(),
            splitting,
            report.read,
            skip_unreadable,
            all_may_fail=True,
        )
        corpus = self._write_new_rows(files)
        # 2. Encode the new texts.
        if corpus is not None:
            reused = _ReusedVectors(
                self._target, manifest.encoder, encoder, self._vectors, self._encoded
            )
            draft = IndexManifest(
                len(corpus), corpus.digest, manifest.encoder, manifest.template
            )
            dtype = self._vectors[0].dtype
            report.read.long_passages = encode_draft(
                corpus, reused, draft, self._building, dtype, progress=progress
            )
            report.passages_encoded = reused.encoded
        # 3. Publish.
        records = self._new_records(files, report)
        if not self._new and not self._kept.any():
            raise UserError(
                f"no passage would be left in index {self._target}; remove its folder if that is meant"
            )
        # no file could be read
        now, before = (_by_location(each) for each in (records, plan.before))
        if not self._new and now == before:
            return
        removed = np.concatenate([~self._kept, np.zeros(self._new, bool)])
        changed = publish_change(
            self._target,
            manifest,
            self._building,
            corpus,
            removed if removed.any() else None,
            records,
        )
        report.generation = changed.generation
        report.passages = int(np.count_nonzero(~removed))
        report.passages_added = self._new
        report.passages_removed = self._before + self._new - report.passages

    def _names(self) -> dict[str, str]:
        """Return the names of the files to read; a file keeps the name that the index knows it by."""
        plan = self._plan
        names = {}
        for file in plan.to_read:
            record = plan.known.get(file.location)
            if record is not None and record.inside == file.inside:
                names[file.location] = record.name
        new = [file for file in plan.to_read if file.location not in names]
        taken = [*names.values(), *(record.name for record in plan.stay)]
        return names | name_files(new, taken)

    def _write_new_rows(self, files: FileRows) -> Corpus | None:
        rows = self._new_rows(files)
        # also reads the files to their end where nothing is new
        first = next(rows, None)
        if first is None:
            return None
        # `others` sees the rows that stay when the ids are checked, after the last row was read
        return draft_corpus(
            chain([first], rows), self._building, self._corpus.with_kept(self._kept)
        )

    def _new_rows(self, files: FileRows) -> Iterator[Row]:
        """Yield the rows that the index does not hold yet."""
        locations = {str(file.path): file.location for file in self._plan.to_read}
        for row in files:
            location = locations[row.place.source]
            key = _row_key(row.passage, row.metadata)
            number = self._old.get(location, {}).pop(key, None)
            if number is None:  # perhaps the file was moved
                number = self._gone.pop(key, None)
            if number is None:
                number = len(self._kept) + self._new
                self._new += 1
                yield row
            else:
                self._kept[number] = True
            self._rows.setdefault(location, []).append(number)

    def _new_records(self, files: FileRows, report: SyncReport) -> list[FileRecord]:
        records = list(self._plan.stay)
        for file in self._plan.to_read:
            rows = self._rows.get(file.location)
            known = self._plan.known.get(file.location)
            if rows is not None:
                records.append(files.record(file, np.sort(np.array(rows, np.int64))))
                (report.added if known is None else report.changed).append(file.inside)
            elif known is not None and file.shown in report.read.empty:
                report.removed.append(file.inside)
            elif known is not None:  # it could not be read: its passages stay
                self._kept[list(self._old[file.location].values())] = True
                records.append(known)
        return records


class _ReusedVectors:
    """An encoder that takes vectors of an index where it holds the same text. The real one is loaded when needed."""

    def __init__(
        self,
        target: Path,
        card: EncoderCard,
        encoder: Encoder | str | Path | None,
        parts: Sequence[FlatIndex],
        rows: Mapping[bytes, int],
    ) -> None:
        self.card = card
        self.encoded = 0  # texts that the real encoder read
        self._target = target
        self._given = encoder
        self._parts = parts
        self._rows = rows
        self._loaded: Encoder | None = None

    @property
    def long_texts(self) -> int:
        """Return texts that were longer than the real encoder reads, as far as it counts them."""
        return (
            self._loaded.long_texts if isinstance(self._loaded, CountingEncoder) else 0
        )

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors [n, d] of n texts."""
        rows = np.array(
            [self._rows.get(_text_key(text), -1) for text in texts], np.int64
        )
        vectors = np.empty((len(texts), self.card.dim), np.float32)
        vectors[rows >= 0] = _stored_vectors(self._parts, rows[rows >= 0])
        missing = [
            text for text, row in zip(texts, rows.tolist(), strict=True) if row < 0
        ]
        if missing:
            if self._loaded is None:
                self._loaded = encoder_of(
                    f"index {self._target}", self.card, self._given
                )
            vectors[rows < 0] = checked_encode(self._loaded, missing)
            self.encoded += len(missing)
        return vectors


def _stored_vectors(parts: Sequence[FlatIndex], rows: RowNumbers) -> Matrix:
    """Return the vectors of rows of several segments, whose row numbers continue."""
    vectors = np.empty((len(rows), parts[0].dim), np.float32)
    first = 0
    for part in parts:
        inside = (rows >= first) & (rows < first + len(part))
        vectors[inside] = part.rows(rows[inside] - first)
        first += len(part)
    return vectors
