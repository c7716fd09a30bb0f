"""User files in, rows out: one reader a format, chosen by the file's suffix."""

from __future__ import annotations

import csv
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from retrieval.corpus import Place, Row
from retrieval.errors import UserError
from retrieval.metadata import scalars
from retrieval.passage import Passage
from retrieval.reading import parse_json, read_lines, read_whole, regular_file, user_path
from retrieval.splitting import SentenceFinder, Splitting, sentence_finder, split

_TEXTS = ("id", "_id", "title", "text")


def to_row(fields: Mapping[str, Any], path: Path, number: int, unit: str = "line") -> Row:
    """A row from named values: `id` (or BEIR's `_id`), `text`, perhaps `title`; other texts and numbers are metadata.

    Raises:
        UserError: a value is missing or of the wrong kind; the line names the place.
    """
    place = Place(str(path), number, unit)
    identifier = fields.get("id", fields.get("_id"))
    if isinstance(identifier, int) and not isinstance(identifier, bool):
        identifier = str(identifier)
    title = fields.get("title")
    for name, value in (("id", identifier), ("text", fields.get("text")), ("title", "" if title is None else title)):
        if value is None:
            raise UserError(
                f"{place}: no {name}; a row needs id and text (found: {', '.join(map(str, fields)) or 'nothing'})"
            )
        if not isinstance(value, str):
            raise UserError(f"{place}: {name} must be text, not {type(value).__name__}")
        if not value.strip() and name != "title":
            raise UserError(f"{place}: {name} is empty")
    further = scalars({name: value for name, value in fields.items() if name not in _TEXTS})
    return Row(Passage(id=str(identifier), text=fields["text"], title=title or ""), place, further)


def read_jsonl(path: Path) -> Iterator[Row]:
    """One row a line; blank lines are no rows.

    Raises:
        UserError: a line is not a JSON object, or its values are wrong.
    """
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        value = parse_json(line, f"{path}:{number}")
        if not isinstance(value, dict):
            raise UserError(
                f'{path}:{number}: {type(value).__name__} where an object {{"id", "title", "text"}} is needed'
            )
        yield to_row(value, path, number)


def _check_columns(path: Path, columns: list[str]) -> None:
    if "text" not in columns or not {"id", "_id"} & set(columns):
        found = ", ".join(column[:40] for column in columns[:20]) or "none"
        raise UserError(f"{path}: the header must name the columns id and text (title is optional); found: {found}")
    repeated = sorted(column for column, count in Counter(columns).items() if count > 1)
    if repeated:
        raise UserError(f"{path}: the header names {', '.join(repeated)} more than once")


def read_separated(path: Path, delimiter: str) -> Iterator[Row]:
    """Rows of a `,` or tab separated file; fields may be quoted as spreadsheets write them.

    Raises:
        UserError: no usable header, a row of another width, or a wrong value.
    """
    reader = csv.reader(read_lines(path), delimiter=delimiter, strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_columns(path, header)
        while True:
            number = reader.line_num + 1  # a quoted field may span lines: the row is named by its first
            fields = next(reader, None)
            if fields is None:
                return
            if not fields:
                continue
            if len(fields) != len(header):
                raise UserError(f"{path}:{number}: {len(fields)} fields where the header has {len(header)}")
            yield to_row(dict(zip(header, fields, strict=True)), path, number)
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num}: {error}; very long texts are better given as jsonl") from error


def read_parquet(path: Path) -> Iterator[Row]:
    """Rows of a Parquet file, a batch in memory at a time.

    Raises:
        UserError: not a Parquet file, columns missing, or a wrong value.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(regular_file(path))
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: not a readable Parquet file ({error})") from error
    with file:
        names = list(file.schema_arrow.names)
        _check_columns(path, names)
        wanted = [field.name for field in file.schema_arrow if field.name in _TEXTS or _is_column(field.type)]
        number = 0
        try:
            for batch in file.iter_batches(batch_size=1024, columns=wanted):
                for fields in batch.to_pylist():
                    number += 1
                    yield to_row(fields, path, number, unit="row")
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise UserError(f"{path}: damaged after row {number} ({error})") from error


def _is_column(kind: Any) -> bool:
    from pyarrow import types

    tests = types.is_integer, types.is_floating, types.is_boolean, types.is_string, types.is_large_string
    return any(test(kind) for test in tests)


_LONGEST_HEADING = 1000  # characters; a longer one is text: every passage below repeats its headings


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a document under one title.

    Attributes:
        title: path of headings, joined by ` > `, or the name of the document.
        start: offset of its first character in the document, after the heading.
        end: offset after its last.
    """

    title: str
    start: int
    end: int


def document_names(paths: Sequence[Path]) -> list[str]:
    """A short name for each document, unique among `paths`: the stem; where two are alike, the name with its folders.

    Raises:
        UserError: a file is named twice.
    """
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


def read_document(path: Path, name: str, splitting: Splitting, find: SentenceFinder) -> Iterator[Row]:
    """Passages of one document, with ids `name-1`, `name-2` and so on in reading order.

    Raises:
        UserError: the document cannot be read, or is blank.
    """
    text = read_whole(path)
    if not text.strip():
        raise UserError(f"{path}: the file is empty")
    markdown = path.name.removesuffix(".gz").endswith((".md", ".markdown"))
    number, line, seen = 0, 1, 0
    for section in markdown_sections(text, name) if markdown else [Section(name, 0, len(text))]:
        for start, end in split(text[section.start : section.end], splitting, find):
            number += 1
            begin = section.start + start
            line, seen = line + text.count("\n", seen, begin), begin
            body = text[begin : section.start + end]
            yield Row(Passage(f"{name}-{number}", body, section.title), Place(str(path), line))


def markdown_sections(text: str, name: str) -> list[Section]:
    """Sections between the headings of a Markdown text, empty ones left out.

    A heading with no text of its own or below it becomes a section that holds the heading itself, so nothing is lost.
    """
    from markdown_it import MarkdownIt

    starts = _line_starts(text)
    skipped = _front_matter_lines(text)
    references: dict[str, Any] = {}
    tokens = MarkdownIt("commonmark").disable("inline").parse(text[starts[skipped] :], references)
    inline = MarkdownIt("commonmark")
    sections: list[Section] = []
    path: list[tuple[int, str]] = []
    begin, heading = 0, 0  # where the text of the open section starts, and its heading
    for position, token in enumerate(tokens):
        if token.type != "heading_open" or token.level != 0 or token.map is None:
            continue
        content = tokens[position + 1].content
        if len(content) > _LONGEST_HEADING:
            continue
        level = int(token.tag[1:])
        first, after = (starts[min(skipped + line, len(starts) - 1)] for line in token.map)
        if text[begin:first].strip():
            sections.append(Section(_title(path, name), begin, first))
        elif path and level <= path[-1][0]:
            sections.append(Section(_title(path, name), heading, first))
        while path and path[-1][0] >= level:
            path.pop()
        children = inline.parseInline(content, references)[0].children or []
        path.append((level, "".join(child.content or " " * (child.type == "softbreak") for child in children).strip()))
        begin, heading = after, first
    if text[begin:].strip():
        sections.append(Section(_title(path, name), begin, len(text)))
    elif path:
        sections.append(Section(_title(path, name), heading, len(text)))
    return sections


def _title(path: Sequence[tuple[int, str]], name: str) -> str:
    return " > ".join(title for _, title in path if title) or name


def _line_starts(text: str) -> list[int]:
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    return [min(start, len(text)) for start in starts]


def _front_matter_lines(text: str) -> int:
    """Lines of a leading `---` block of metadata; it is kept as text but holds no headings."""
    lines = text.split("\n")
    if lines[0].rstrip() != "---":
        return 0
    return next((number + 1 for number, line in enumerate(lines[1:], start=1) if line.rstrip() in ("---", "...")), 0)


_TABLES: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": read_jsonl,
    ".csv": partial(read_separated, delimiter=","),
    ".tsv": partial(read_separated, delimiter="\t"),
    ".parquet": read_parquet,
}
_DOCUMENTS = (".txt", ".md", ".markdown")


def _kind(path: Path) -> str:
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    if suffix in _TABLES or suffix in _DOCUMENTS:
        if suffix == ".parquet" and path.suffix == ".gz":
            raise UserError(f"{path}: unpack it first; Parquet compresses by itself")
        return suffix
    known = " ".join((*_TABLES, *_DOCUMENTS))
    raise UserError(f"{path}: no reader for {suffix or 'a name without suffix'!r}; known: {known} (also with .gz)")


def read_files(files: Sequence[str | Path], splitting: Splitting | None = None) -> Iterator[Row]:
    """Rows of all files in order. Tables give their rows as they are, documents are split into passages.

    Args:
        files: `.jsonl`, `.csv`, `.tsv`, `.parquet` (columns id, title, text), `.txt`, `.md`; all but Parquet also
            with `.gz`.
        splitting: how documents are cut; tables are never cut.

    Raises:
        UserError: no files, an unknown suffix or a missing file (all checked before the first row), or a bad row.
    """
    if isinstance(files, str | Path):
        files = [files]
    paths = [user_path(file) for file in files]
    if not paths:
        raise UserError("no files to read; name at least one")
    kinds = [_kind(path) for path in paths]
    for path in paths:
        regular_file(path)
    return _rows(paths, kinds, splitting or Splitting())


def _rows(paths: Sequence[Path], kinds: Sequence[str], splitting: Splitting) -> Iterator[Row]:
    names = document_names(paths)
    find = sentence_finder(splitting.sentences) if any(kind in _DOCUMENTS for kind in kinds) else None
    for path, name, kind in zip(paths, names, kinds, strict=True):
        before = None
        for before in (
            read_document(path, name, splitting, find) if find and kind in _DOCUMENTS else _TABLES[kind](path)
        ):
            yield before
        if before is None:
            raise UserError(f"{path}: no rows in it")


_SETTLED = 2.0  # seconds; a file that changed later than this ago may change again without its times telling


def files_fingerprint(files: Sequence[str | Path], splitting: Splitting | None = None) -> str:
    """Fingerprint of files by name, size and times of change, without reading them; empty where that is not certain.

    Args:
        files: as for `read_files`.
        splitting: as for `read_files`.
    """
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
