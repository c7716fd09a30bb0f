"""From the files of a user to rows: tables as they are, documents cut into passages."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from retrieval.corpus import Place, Row
from retrieval.documents import Document, ReadingOptions, Table, document_format
from retrieval.documents.isolation import IsolatedReader, is_isolated
from retrieval.passage import Passage
from retrieval.reports import ReadReport, SkippedContent, UnreadableFile
from retrieval.sentences import SentenceFinder, has_spacy, sentence_finder
from retrieval.sources import (
    SourceFile,
    file_kind,
    file_state,
    list_files,
    name_files,
)
from retrieval.splitting import Splitting, count_words, split
from retrieval.tables import TABLES, TableColumns
from selfrag.common.errors import EmptyFileError, UserError, count_of


def read_files(
    files: Sequence[str | Path],
    splitting: Splitting | None = None,
    *,
    report: ReadReport | None = None,
    skip_unreadable: bool = False,
) -> Iterator[Row]:
    """Return the rows of all files in order. Documents are split, rows of tables stay unless long.

    Args:
        files: tables (`.jsonl`, `.csv`, `.tsv`, `.parquet`), documents (`.txt`, `.md`, `.html`, `.pdf`, `.docx`),
            texts also with `.gz`; and folders, which stand for all such files below them.
        splitting: how documents are read and cut; rows of tables where they are longer than `row_words`.
        report: is filled with what was read and what was left out, while the rows are taken.
        skip_unreadable: leave out files that cannot be read, and list them in the report. A file is read as a whole or
            not at all.

    Raises:
        UserError: no files, an unknown suffix or a missing file (all checked before the first row), a bad row, or no
            file that can be read.
    """
    listed = list_files(files, skip_unreadable=skip_unreadable)
    if report is None:
        report = ReadReport()
    listed.add_to(report)
    return _some_rows(listed.files, splitting, report, skip_unreadable)


def _some_rows(
    files: Sequence[SourceFile],
    splitting: Splitting | None,
    report: ReadReport,
    skip_unreadable: bool,
) -> Iterator[Row]:
    yield from read_sources(
        files, name_files(files), splitting, report, skip_unreadable
    )
    check_some_read(report)


def check_some_read(report: ReadReport) -> None:
    """Raise UserError where files were to be read and none of them gave a passage."""
    if report.files:
        return
    if report.unreadable:
        first = report.unreadable[0].why
        raise UserError(
            f"of {count_of(len(report.unreadable), 'files')} none can be read; the first: {first}"
        )
    if report.empty:
        raise UserError(f"{report.empty[0]}: the file is empty")


def read_sources(
    files: Sequence[SourceFile],
    names: Mapping[str, str],
    splitting: Splitting | None,
    report: ReadReport,
    skip_unreadable: bool = False,
) -> Iterator[Row]:
    """Yield the rows of files that were listed, each with a name by its location; see `read_files`."""
    splitting = splitting or Splitting()
    with IsolatedReader(ReadingOptions(ocr=splitting.ocr)) as reader:
        if any(is_isolated(file_kind(file.path)) for file in files):
            reader.start()  # while the finder of sentences is loaded
        yield from _read_each(files, names, splitting, report, skip_unreadable, reader)


def _read_each(
    files: Sequence[SourceFile],
    names: Mapping[str, str],
    splitting: Splitting,
    report: ReadReport,
    skip_unreadable: bool,
    reader: IsolatedReader,
) -> Iterator[Row]:
    find: SentenceFinder | None = None
    for file in files:
        path, kind = file.path, file_kind(file.path)
        before = len(report.skipped)
        try:
            if not file_state(path).size:
                raise EmptyFileError(f"{path}: the file is empty")
            if document_format(kind) is not None:
                report.simple_sentences = not has_spacy()
                find = find or sentence_finder(splitting.sentences)
                rows = read_document(
                    path, kind, names[file.location], splitting, find, reader, report
                )
            else:
                columns = _columns_of(splitting, names[file.location])
                if skip_unreadable:
                    _check_table(TABLES[kind](path, columns))
                rows = _cut_long_rows(TABLES[kind](path, columns), splitting, report)
            # a document is read to its end now
            first = next(rows, None)
            if first is None:
                raise EmptyFileError(f"{path}: the file is empty")
        except EmptyFileError:
            report.empty.append(file.shown)
            continue
        except UserError as error:
            why = str(error).replace(str(path), file.shown)
            if not skip_unreadable:
                raise type(error)(why) from error
            report.unreadable.append(UnreadableFile(file.shown, why))
            continue
        report.files += 1
        dropped: Counter[str] = Counter()
        for row in chain([first], rows):
            report.passages += 1
            dropped.update(row.dropped)
            yield row
        for column, count in dropped.items():
            what = f"column {column} of {count_of(count, 'rows')}"
            report.skipped.append(SkippedContent(str(path), what, _DROPPED))
        for number, part in enumerate(report.skipped[before:], start=before):
            report.skipped[number] = replace(part, file=file.shown)


def _columns_of(splitting: Splitting, name: str) -> TableColumns:
    """Return the columns that are chosen for a table; its rows without an id are `name-1`, `name-2` and so on."""
    return TableColumns(
        splitting.text_column, splitting.title_column, splitting.id_column, name
    )


def _sheet_rows(
    document: Document, path: Path, name: str, splitting: Splitting, report: ReadReport
) -> list[Row]:
    """Return the rows of sheets with the columns `sheet` and `row`; one without a title has the name of its sheet.

    Several sheets may share ids, so that their rows are numbered unless a column of ids is chosen. A sheet that lacks a
    chosen column is left out, unless all do.
    """
    rows: list[Row] = []
    refusals: list[UserError] = []
    several = len(document.sheets) > 1
    for sheet in document.sheets:
        place = f"{path}, sheet {sheet.name}"
        columns = _columns_of(splitting, f"{name}-{sheet.name}" if several else name)
        if columns.text is None and "text" in sheet.columns:
            columns = replace(columns, text="text")
        try:
            columns = columns.resolve(Path(place), sheet.columns)
        except UserError as error:
            refusals.append(error)
            why = str(error).removeprefix(f"{place}: ")
            left_out = SkippedContent(str(path), f"sheet {sheet.name}", why)
            report.skipped.append(left_out)
            continue
        if several:
            columns = replace(columns, id=splitting.id_column)
        for number, cells in enumerate(sheet.rows, start=1):
            if not any(cells):
                continue
            fields = dict(zip(sheet.columns, cells, strict=False))
            row = columns.row(fields, path, number, Place(place, number, "row"))
            metadata = {"sheet": sheet.name, "row": number, **row.metadata}
            title = row.passage.title or sheet.name
            passage = replace(row.passage, title=title)
            rows.append(Row(passage, Place(str(path), number, "row"), metadata))
    if refusals and not rows:
        raise refusals[0]
    return rows


def _cut_long_rows(
    rows: Iterator[Row], splitting: Splitting, report: ReadReport
) -> Iterator[Row]:
    """Yield rows of a table, those of more than `row_words` words cut into passages.

    These have ids `ID-1`, `ID-2` and so on, and the id of the row in the column `row_id`.
    """
    most = splitting.row_words
    find: SentenceFinder | None = None
    for row in rows:
        passage = row.passage
        if (
            most is None
            or len(passage.text) <= most
            or count_words(passage.text) <= most
        ):
            yield row
            continue
        find = find or sentence_finder(splitting.sentences)
        report.cut_rows += 1
        metadata = {**row.metadata, "row_id": passage.id}
        for number, part in enumerate(split(passage.text, splitting, find), start=1):
            text = part.text_in(passage.text)
            yield Row(
                Passage(f"{passage.id}-{number}", text, passage.title),
                row.place,
                metadata,
                row.dropped * (number == 1),
            )


def _check_table(rows: Iterator[Row]) -> None:
    """Read a table to its end, so that a bad row is known before the first one is taken."""
    deque(rows, maxlen=0)


_DROPPED = "objects, nested lists and numbers out of range are no metadata"
_WITH_LINES = (".txt", ".md", ".markdown")


def read_document(
    path: Path,
    kind: str,
    name: str,
    splitting: Splitting,
    find: SentenceFinder,
    reader: IsolatedReader,
    report: ReadReport | None = None,
) -> Iterator[Row]:
    """Yield the passages of one document, with ids `name-1`, `name-2` and so on in reading order.

    No passage crosses a section. Its columns lead to its place in the file: `start` and `end`, the offsets in the text
    that was read, `heading`, `page` of a PDF, and `row`, the number of the long row of a table that it is a part of.

    Args:
        path: the file.
        kind: its suffix, of a `DocumentFormat`.
        name: stands in the ids, and is the title where there are no headings.
        splitting: how long passages are.
        find: gives the sentences of a text.
        reader: reads the file.
        report: is told the pages and what was left out.
    """
    document = reader.read(path, kind, name)
    text = document.text
    if not text.strip() and not document.sheets:
        raise EmptyFileError(f"{path}: the file is empty")
    report = report or ReadReport()
    report.add_document(path, document)
    rows = _sheet_rows(document, path, name, splitting, report)
    yield from _cut_long_rows(iter(rows), splitting, report)
    number, line, seen = 0, 1, 0
    waiting = deque(document.tables)
    for section in document.sections:
        tables: list[Table] = []
        while waiting and waiting[0].span[0] < section.end:
            tables.append(waiting.popleft())
        for part in split(
            text, splitting, find, tables=tables, within=(section.start, section.end)
        ):
            number += 1
            line, seen = line + text.count("\n", seen, part.start), part.start
            page = section.metadata.get("page")
            if page is not None:
                place = Place(str(path), int(page), "page")
            elif kind in _WITH_LINES:
                place = Place(str(path), line)
            else:
                place = Place(str(path), number, "passage")
            metadata = {**section.metadata, "start": part.start, "end": part.end}
            if section.title != name:
                metadata["heading"] = section.title
            if part.row is not None:
                metadata["row"] = part.row
            yield Row(
                Passage(f"{name}-{number}", part.text_in(text), section.title),
                place,
                metadata,
            )
