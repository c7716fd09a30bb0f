"""User files in, rows out: tables as they are; documents cut at their headings and pages, one reader a format."""

from __future__ import annotations

import csv
import hashlib
import re
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from retrieval.corpus import Place, Row, Scalar, scalars
from retrieval.errors import UserError, require
from retrieval.passage import Passage
from retrieval.reading import opened, parse_json, read_lines, read_whole, regular_file, user_path
from retrieval.splitting import SentenceFinder, Splitting, sentence_finder, split

_TEXTS = ("id", "_id", "title", "text")


def to_row(fields: Mapping[str, Any], path: Path, number: int, unit: str = "line") -> Row:
    """A row from named values: `id` (or BEIR's `_id`), `text`, perhaps `title`; others are metadata."""
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
    """One row a line; blank lines are no rows."""
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
    """Rows of a `,` or tab separated file; fields may be quoted as spreadsheets write them."""
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
    """Rows of a Parquet file, a batch in memory at a time."""
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


_TABLES: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": read_jsonl,
    ".csv": partial(read_separated, delimiter=","),
    ".tsv": partial(read_separated, delimiter="\t"),
    ".parquet": read_parquet,
}
_PACKED = (".parquet", ".pdf", ".docx")
"""Formats that compress by themselves."""


def _kind(path: Path) -> str:
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    if suffix in _TABLES or suffix in DOCUMENTS:
        if suffix in _PACKED and path.suffix == ".gz":
            raise UserError(f"{path}: unpack it first; {suffix[1:].capitalize()} compresses by itself")
        return suffix
    known = " ".join((*_TABLES, *DOCUMENTS))
    raise UserError(f"{path}: no reader for {suffix or 'a name without suffix'!r}; known: {known} (also with .gz)")


def read_files(files: Sequence[str | Path], splitting: Splitting | None = None) -> Iterator[Row]:
    """Rows of all files in order. Tables give their rows as they are, documents are split into passages.

    Args:
        files: `.jsonl`, `.csv`, `.tsv`, `.parquet` (columns id, title, text), `.txt`, `.md`, `.html`, `.pdf`, `.docx`;
            texts also with `.gz`.
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
    find = sentence_finder(splitting.sentences) if any(kind in DOCUMENTS for kind in kinds) else None
    for path, name, kind in zip(paths, names, kinds, strict=True):
        before = None
        for before in (
            read_document(path, kind, name, splitting, find) if find and kind in DOCUMENTS else _TABLES[kind](path)
        ):
            yield before
        if before is None:
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


_LONGEST_HEADING = 1000  # characters; a longer one is text: every passage below repeats its headings
_MOST = 1 << 28  # bytes of a file, and of what a Word file unpacks to
_WITH_LINES = (".txt", ".md", ".markdown")
_DEEPEST = 100  # elements of a page around a text that are looked at


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a document under one title."""

    title: str  # path of headings, joined by ` > `, or the name of the document
    start: int  # offset of its first character in the document, after the heading
    end: int  # offset after its last
    metadata: Mapping[str, Scalar] = field(default_factory=dict)  # further columns of its passages, such as `page`


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


def read_document(path: Path, kind: str, name: str, splitting: Splitting, find: SentenceFinder) -> Iterator[Row]:
    """Passages of one document, with ids `name-1`, `name-2` and so on in reading order; none crosses a section.

    `kind` is its suffix, one of `DOCUMENTS`. The name is the title, too, where there are no headings.
    """
    text, sections = DOCUMENTS[kind](path, name)
    if not text.strip():
        raise UserError(f"{path}: the file is empty")
    number, line, seen = 0, 1, 0
    for section in sections:
        for start, end in split(text[section.start : section.end], splitting, find):
            number += 1
            begin = section.start + start
            line, seen = line + text.count("\n", seen, begin), begin
            page = section.metadata.get("page")
            if page is not None:
                place = Place(str(path), int(page), "page")
            elif kind in _WITH_LINES:
                place = Place(str(path), line)
            else:
                place = Place(str(path), number, "passage")
            passage = Passage(f"{name}-{number}", text[begin : section.start + end], section.title)
            yield Row(passage, place, section.metadata)


Document = tuple[str, list[Section]]
"""The text of a document, and its sections in order."""


def _text(path: Path, name: str, *, cut: Callable[[str, str], list[Section]]) -> Document:
    text = read_whole(path)
    return text, cut(text, name)


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
    outline = _Outline(name)
    for position, token in enumerate(tokens):
        if token.type != "heading_open" or token.level != 0 or token.map is None:
            continue
        content = tokens[position + 1].content
        if len(content) > _LONGEST_HEADING:
            continue
        level = int(token.tag[1:])
        first, after = (starts[min(skipped + line, len(starts) - 1)] for line in token.map)
        outline.close(first, bool(text[outline.begin : first].strip()), level)
        children = inline.parseInline(content, references)[0].children or []
        title = "".join(child.content or " " * (child.type == "softbreak") for child in children).strip()
        outline.open(level, title, first, after)
    outline.close(len(text), bool(text[outline.begin :].strip()))
    return outline.sections


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


class _Outline:
    """The sections of a text, by the headings above each."""

    def __init__(self, name: str) -> None:
        self._name, self._path = name, list[tuple[int, str]]()
        self.begin, self._heading = 0, 0  # where the text of the open section starts, and its heading
        self.sections: list[Section] = []

    def close(self, end: int, filled: bool, level: int = 0) -> None:
        """End the open section; a heading with no text of its own or below it is a section of its own text."""
        title = " > ".join(title for _, title in self._path if title) or self._name
        if filled:
            self.sections.append(Section(title, self.begin, end))
        elif self._path and level <= self._path[-1][0]:
            self.sections.append(Section(title, self._heading, end))

    def open(self, level: int, title: str, heading: int, begin: int) -> None:
        """Begin a section: level and title of its heading, and the offsets of the heading and of the text after it."""
        while self._path and self._path[-1][0] >= level:
            self._path.pop()
        self._path.append((level, title))
        self._heading, self.begin = heading, begin


class _Text:
    """Collects a text whose headings come as they are read."""

    def __init__(self, name: str) -> None:
        self._outline, self._parts, self._length = _Outline(name), list[str](), 0

    def add(self, text: str) -> None:
        """A paragraph."""
        if text := text.strip():
            self._parts.append(text + "\n\n")
            self._length += len(self._parts[-1])

    def head(self, level: int, text: str) -> None:
        """A heading; 0 is a title above all levels. What is too long for one is a paragraph."""
        text = " ".join(text.split())
        if len(text) > _LONGEST_HEADING:
            self.add(text)
        elif text:
            self._close(level)
            heading = self._length
            self.add(text)
            self._outline.open(level, text, heading, self._length)

    def _close(self, level: int = 0) -> None:
        self._outline.close(self._length, self._length > self._outline.begin, level)

    def document(self) -> Document:
        """Text and sections."""
        self._close()
        return "".join(self._parts), self._outline.sections


_SKIPPED = ("script", "style", "noscript", "template", "nav", "iframe", "svg", "object", "canvas", "select", "form")
_INLINE = frozenset(
    (
        *("a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "code", "data", "del", "dfn", "em", "font", "i"),
        *("ins", "kbd", "label", "mark", "q", "s", "samp", "small", "span", "strike", "strong", "sub", "sup", "td"),
        *("th", "time", "tt", "u", "var"),
    )
)
"""Elements that do not end a paragraph; cells end a row only."""
_CHARSET = re.compile(rb"<meta[^>]{0,200}charset=[\"']?([A-Za-z0-9_-]{1,40})", re.IGNORECASE)


def _html(path: Path, name: str) -> Document:
    """Text of a page without scripts, styles, forms and navigation."""
    selectolax = require("selectolax.lexbor", extra="documents")
    with opened(path) as file:
        content = file.read(_MOST + 1)
    if len(content) > _MOST:
        raise UserError(f"{path}: more than {_MOST:,} bytes; split it")
    tree = selectolax.LexborHTMLParser(_decoded(path, content))
    title = tree.css_first("head > title")
    named = " ".join(title.text().split())[:_LONGEST_HEADING] if title is not None else ""
    tree.strip_tags([*_SKIPPED, "head"])
    outline = _Text(named or name)
    block, words = None, list[str]()

    def end() -> None:
        text = re.sub(r"\s+", " ", "".join(words))
        words.clear()
        if block is not None and re.fullmatch("h[1-6]", block.tag):
            outline.head(int(block.tag[1]), text)
        else:
            outline.add(text)

    for node in tree.root.traverse(include_text=True) if tree.root is not None else ():
        if node.tag in ("br", "td", "th"):
            words.append(" ")
        if node.tag != "-text":
            continue
        own = node.parent
        for _ in range(_DEEPEST):
            if own is None or own.tag not in _INLINE:
                break
            own = own.parent
        if block is None or own is None or own.mem_id != block.mem_id:
            end()
            block = own
        words.append(node.text_content or "")
    end()
    return outline.document()


def _decoded(path: Path, content: bytes) -> str:
    """A page as text: UTF-8, or what the page declares."""
    found = _CHARSET.search(content[:4096])
    for charset in ("utf-8-sig", found[1].decode() if found else None):
        try:
            if charset is not None:
                return content.decode(charset).replace("\0", "")
        except (UnicodeDecodeError, LookupError):
            continue
    raise UserError(f"{path}: neither UTF-8 nor the encoding that it declares; save it as UTF-8")


def _pdf(path: Path, name: str) -> Document:
    """Text of the pages, each a section with its number."""
    pypdf = require("pypdf", extra="documents")
    _check_size(path)
    try:
        reader = pypdf.PdfReader(path)
        if reader.is_encrypted and not reader.decrypt(""):
            raise UserError(f"{path}: the PDF is encrypted; save it without a password")
        titles = _titles(reader)
        pages = [page.extract_text() for page in reader.pages]
    except UserError:
        raise
    except Exception as error:  # whatever a damaged file makes of the parser
        raise UserError(f"{path}: cannot be read as PDF: {type(error).__name__}: {str(error)[:200]}") from error
    text, sections, title = "", list[Section](), ""
    for number, page in enumerate(pages, 1):
        title = titles.get(number, title)
        start = len(text)
        text += re.sub(r"(?<!\n)\n(?!\n)", " ", re.sub(r"(?<=[a-z])-\n(?=[a-z])", "", page.replace("\0", ""))) + "\n\n"
        sections.append(Section(title or name, start, len(text), {"page": number}))
    if pages and not text.strip():
        raise UserError(f"{path}: no text in the PDF's {len(pages)} pages; scans need text recognition (OCR) first")
    return text, sections


def _titles(reader: Any) -> dict[int, str]:
    """Path of bookmarks by the page, from 1, on which it begins; the first of each page."""
    found: dict[int, str] = {}

    def walk(entries: Sequence[Any], above: tuple[str, ...]) -> None:
        last = above
        for entry in entries:
            if isinstance(entry, list):
                if len(last) < _DEEPEST:
                    walk(entry, last)
                continue
            page = reader.get_destination_page_number(entry)
            last = (*above, " ".join(str(entry.title).split())[:_LONGEST_HEADING])
            if page is not None and page >= 0:
                found.setdefault(page + 1, " > ".join(filter(None, last)))

    walk(reader.outline, ())
    return found


def _docx(path: Path, name: str) -> Document:
    """Text of a Word file; tables row by row."""
    docx = require("docx", extra="documents")
    _check_size(path)
    try:
        with zipfile.ZipFile(path) as parts:
            if sum(part.file_size for part in parts.infolist()) > _MOST:
                raise UserError(f"{path}: unpacks to more than {_MOST:,} bytes; split it")
        document = docx.Document(str(path))
        title = " ".join((document.core_properties.title or "").split())[:_LONGEST_HEADING]
        outline = _Text(title or name)
        for block in document.iter_inner_content():
            if hasattr(block, "rows"):
                rows = (dict.fromkeys(cell.text.strip() for cell in row.cells) for row in block.rows)
                outline.add("\n".join(" | ".join(filter(None, cells)) for cells in rows))
                continue
            style = str(getattr(block.style, "name", ""))
            level = re.fullmatch(r"Heading ([1-9])", style)
            if level or style == "Title":
                outline.head(int(level[1]) if level else 0, block.text)
            else:
                outline.add(block.text)
    except UserError:
        raise
    except Exception as error:  # whatever a damaged file makes of the parser
        raise UserError(f"{path}: cannot be read as Word file: {type(error).__name__}: {str(error)[:200]}") from error
    return outline.document()


def _check_size(path: Path) -> None:
    if regular_file(path).stat().st_size > _MOST:
        raise UserError(f"{path}: more than {_MOST:,} bytes; split it")


DOCUMENTS: dict[str, Callable[[Path, str], Document]] = {
    ".txt": partial(_text, cut=lambda text, name: [Section(name, 0, len(text))]),
    ".md": partial(_text, cut=markdown_sections),
    ".markdown": partial(_text, cut=markdown_sections),
    ".html": _html,
    ".htm": _html,
    ".pdf": _pdf,
    ".docx": _docx,
}
"""Reader of each suffix: from a file and the document's name to its text and sections."""
