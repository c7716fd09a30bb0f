"""Reads files for an index and records which of its rows came from which file, and in what state the file was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path

import numpy as np

from retrieval.corpus import Row
from retrieval.documents import code_version, document_format
from retrieval.file_table import FileRecord
from retrieval.readers import check_some_read, read_sources
from retrieval.reports import ReadReport, UnreadableFile
from retrieval.sources import FileState, SourceFile, file_kind, file_state
from retrieval.splitting import Splitting
from retrieval.vectors import RowNumbers
from selfrag.common import reading
from selfrag.common.errors import UserError
from selfrag.common.reading import parse_json
from selfrag.common.validation import validate


class FileRows:
    """The rows of files, which can be taken once, and then the records of these files.

    Args:
        files: see `retrieval.sources.list_files`.
        names: a name for each file by its location.
        splitting: how documents are cut.
        report: is filled while the rows are taken.
        skip_unreadable: leave out files that cannot be read, and list them in the report.
        all_may_fail: do not refuse where none of the files can be read.

    Attributes:
        report: what was read.
        counts: passages by the path of their file.
    """

    def __init__(
        self,
        files: Sequence[SourceFile],
        names: Mapping[str, str],
        splitting: Splitting,
        report: ReadReport,
        skip_unreadable: bool = False,
        *,
        all_may_fail: bool = False,
    ) -> None:
        self._files, self._names, self._splitting = files, names, splitting
        self.report, self._skip_unreadable = report, skip_unreadable
        self._all_may_fail = all_may_fail
        self._states: dict[
            str, FileState
        ] = {}  # by location, of the files that were read
        self.counts: dict[str, int] = {}

    @property
    def fingerprint(self) -> str:
        """Return a digest of the files by name, size and times; empty where these do not tell of a change."""
        stated = []
        for file in self._files:
            state = file_state(file.path)
            if state.modified < 0:
                return ""
            how_read = reading_of(self._splitting, file_kind(file.path))
            stated.append((file.location, self._names[file.location], state, how_read))
        values = repr(stated).encode()
        return hashlib.blake2b(values, digest_size=16).hexdigest()

    @property
    def is_complete(self) -> bool:
        """Return whether nothing in the files had to be left out, once the rows were taken."""
        left_out = (self.report.unreadable, self.report.skipped, self.report.empty)
        return not any(left_out)

    def __iter__(self) -> Iterator[Row]:
        files = []
        for file in self._files:
            try:
                self._states[file.location] = file_state(file.path, digest=True)
                files.append(file)
            except UserError as error:
                if not self._skip_unreadable:
                    raise
                self.report.unreadable.append(
                    UnreadableFile(str(file.path), str(error))
                )
        rows = read_sources(
            files, self._names, self._splitting, self.report, self._skip_unreadable
        )
        for row in rows:
            self.counts[row.place.source] = self.counts.get(row.place.source, 0) + 1
            yield row
        if not self._all_may_fail:
            check_some_read(self.report)
        for file in files:
            before, now = self._states[file.location], file_state(file.path)
            if (
                not before.same_times(now)
                and file_state(file.path, digest=True).digest != before.digest
            ):
                raise UserError(
                    f"{file.path} changed while it was read; run the same again"
                )

    def record(self, file: SourceFile, rows: RowNumbers) -> FileRecord:
        """Return the record of a file that was read, whose passages have these rows."""
        state = self._states[file.location]
        how_read = reading_of(self._splitting, file_kind(file.path))
        name = self._names[file.location]
        times = state.size, state.modified, state.changed
        return FileRecord(
            file.location, file.inside, name, how_read, *times, state.digest, [], []
        ).with_rows(rows)

    def records(self) -> list[FileRecord]:
        """Return the records of all files that were read, whose passages are the rows from 0 on."""
        listed, first = [], 0
        for file in self._files:
            count = self.counts.get(str(file.path), 0)
            if count:
                listed.append(self.record(file, np.arange(first, first + count)))
            first += count
        return listed


@cache
def reading_of(splitting: Splitting, kind: str) -> str:
    """Return how files of a kind are read, as a text: two equal texts make the same passages of the same file.

    Args:
        splitting: how documents are cut.
        kind: suffix of the files. Other code may make other passages of them, ours or that of libraries.
    """
    here = Path(__file__).parent
    modules = [Path(reading.__file__)]
    names = ("readers", "splitting", "sentences", "tables")
    modules += [here / f"{name}.py" for name in names]
    document = document_format(kind)
    if document is None:
        version = code_version((here / "parquet.py",))
    else:
        version = document.version()
        shared = ("charset", "document", "formulas", "headers", "list_numbers")
        modules += [here / "documents" / f"{name}.py" for name in shared]
    readers = version + code_version(tuple(modules), ("spacy",))
    return json.dumps(
        {"splitting": asdict(splitting), "readers": readers}, sort_keys=True
    )


def splitting_of(records: Sequence[FileRecord]) -> Splitting:
    """Return how the documents of an index were cut, the last ones where they differ."""
    if not records:
        return Splitting()
    reading = parse_json(records[-1].reading, "the table of files")
    values = reading.get("splitting") if isinstance(reading, dict) else None
    return validate(Splitting, values, "the table of files: splitting")
