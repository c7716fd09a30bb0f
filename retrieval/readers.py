"""From the files of a user to rows: tables as they are, documents cut into passages."""

from __future__ import annotations

import hashlib
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from retrieval.corpus import Place, Row
from retrieval.documents import READERS, Table
from retrieval.errors import UserError
from retrieval.passage import Passage
from retrieval.reading import regular_file, user_path
from retrieval.reports import ReadReport, UnreadableFile
from retrieval.sentences import SentenceFinder, sentence_finder
from retrieval.splitting import Splitting, split
from retrieval.tables import TABLES

_PACKED = (".parquet", ".pdf", ".docx")
"""Formats that compress by themselves."""


def _kind(path: Path) -> str:
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    if suffix in TABLES or suffix in READERS:
        if suffix in _PACKED and path.suffix == ".gz":
            raise UserError(f"{path}: unpack it first; {suffix[1:].capitalize()} compresses by itself")
        return suffix
    known = " ".join((*TABLES, *READERS))
    raise UserError(f"{path}: no reader for {suffix or 'a name without suffix'!r}; known: {known} (also with .gz)")


def read_files(
    files: Sequence[str | Path],
    splitting: Splitting | None = None,
    *,
    report: ReadReport | None = None,
    skip_unreadable: bool = False,
) -> Iterator[Row]:
    """Return the rows of all files in order. Tables give their rows as they are, documents are split into passages.

    Args:
        files: `.jsonl`, `.csv`, `.tsv`, `.parquet` (columns id, title, text), `.txt`, `.md`, `.html`, `.pdf`, `.docx`;
            texts also with `.gz`.
        splitting: how documents are cut; tables are never cut.
        report: is filled with what was read and what was left out, while the rows are taken.
        skip_unreadable: leave out files that cannot be read, and list them in the report. A file is read as a whole or
            not at all.

    Raises:
        UserError: no files, an unknown suffix or a missing file (all checked before the first row), a bad row, or no
            file that can be read.
    """
    if isinstance(files, str | Path):
        files = [files]
    if not files:
        raise UserError("no files to read; name at least one")
    if report is None:
        report = ReadReport()
    paths: list[Path] = []
    for file in files:
        try:
            path = user_path(file)
            _kind(path)
            paths.append(regular_file(path))
        except UserError as error:
            if not skip_unreadable:
                raise
            report.unreadable.append(UnreadableFile(str(file), str(error)))
    return _rows(paths, splitting or Splitting(), report, skip_unreadable)


def _rows(paths: Sequence[Path], splitting: Splitting, report: ReadReport, skip_unreadable: bool) -> Iterator[Row]:
    kinds = [_kind(path) for path in paths]
    find = sentence_finder(splitting.sentences) if any(kind in READERS for kind in kinds) else None
    for path, name, kind in zip(paths, document_names(paths), kinds, strict=True):
        try:
            if find is not None and kind in READERS:
                rows = read_document(path, kind, name, splitting, find, report)
                rows = chain([next(rows)], rows)  # the whole file is read now
            else:
                rows = TABLES[kind](path)
                if skip_unreadable:
                    _check_table(path, TABLES[kind](path))
        except UserError as error:
            if not skip_unreadable:
                raise
            report.unreadable.append(UnreadableFile(str(path), str(error)))
            continue
        report.files += 1
        row = None
        for row in rows:
            report.passages += 1
            yield row
        if row is None:
            raise UserError(f"{path}: no rows in it")
    if skip_unreadable and not report.files:
        first = report.unreadable[0].why
        raise UserError(f"none of the {len(report.unreadable)} files can be read; the first: {first}")


def _check_table(path: Path, rows: Iterator[Row]) -> None:
    """Read a table to its end, so that a bad row is known before the first one is taken."""
    if not sum(1 for _ in rows):
        raise UserError(f"{path}: no rows in it")


_SETTLED = 2.0  # seconds; a file that changed later than this ago may change again without its times telling


def files_fingerprint(files: Sequence[str | Path], splitting: Splitting | None = None) -> str:
    """Fingerprint of files by name, size and times of change, without reading them; empty where that is not certain."""
    stated = []
    for file in [files] if isinstance(files, str | Path) else files:
        path = user_path(file).resolve()
        try:
            found = path.stat()
        except OSError:
            return ""
        if time.time() - max(found.st_mtime, found.st_ctime) < _SETTLED:
            return ""
        stated.append((str(path), found.st_size, found.st_mtime_ns, found.st_ctime_ns))
    return hashlib.blake2b(repr((stated, splitting or Splitting())).encode(), digest_size=16).hexdigest()


_WITH_LINES = (".txt", ".md", ".markdown")


def document_names(paths: Sequence[Path]) -> list[str]:
    """A short name for each document, unique among `paths`: the stem; where two are alike, with folders."""
    resolved = [path.resolve() for path in paths]
    twice = next((path for path, count in Counter(resolved).items() if count > 1), None)
    if twice is not None:
        raise UserError(f"{twice} is given twice")
    names = [path.name.removesuffix(".gz").rsplit(".", 1)[0] or path.name for path in resolved]
    for depth in range(1, max((len(path.parts) for path in resolved), default=0)):
        counts = Counter(names)
        names = [
            "/".join(path.parts[-depth:]) if counts[name] > 1 else name
            for path, name in zip(resolved, names, strict=True)
        ]
    return names


def read_document(
    path: Path, kind: str, name: str, splitting: Splitting, find: SentenceFinder, report: ReadReport | None = None
) -> Iterator[Row]:
    """Yield the passages of one document, with ids `name-1`, `name-2` and so on in reading order.

    No passage crosses a section. A passage that is a part of a long row of a table has the number of that row in the
    column `row`.

    Args:
        path: the file.
        kind: its suffix, one of `READERS`.
        name: stands in the ids, and is the title where there are no headings.
        splitting: how long passages are.
        find: gives the sentences of a text.
        report: is told the pages and what was left out.
    """
    document = READERS[kind](path, name)
    text = document.text
    if not text.strip():
        raise UserError(f"{path}: the file is empty")
    if report is not None:
        report.add_document(path, document)
    number, line, seen = 0, 1, 0
    waiting = deque(document.tables)
    for section in document.sections:
        tables: list[Table] = []
        while waiting and waiting[0].span[0] < section.end:
            tables.append(waiting.popleft())
        for part in split(text, splitting, find, tables=tables, within=(section.start, section.end)):
            number += 1
            line, seen = line + text.count("\n", seen, part.start), part.start
            page = section.metadata.get("page")
            if page is not None:
                place = Place(str(path), int(page), "page")
            elif kind in _WITH_LINES:
                place = Place(str(path), line)
            else:
                place = Place(str(path), number, "passage")
            metadata = section.metadata
            if part.row is not None:
                metadata = {**metadata, "row": part.row}
            yield Row(Passage(f"{name}-{number}", part.text_in(text), section.title), place, metadata)
