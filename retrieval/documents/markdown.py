"""Reads text and Markdown files. Markdown is kept as it is written, cut at headings and between rows."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from retrieval.documents.document import (
    MAX_HEADING,
    Document,
    Outline,
    Section,
    Skipped,
    Table,
)
from retrieval.sentences import Span, trim
from selfrag.common.reading import read_whole

_FRONT_MATTER = re.compile(r"(---|\+\+\+)[^\S\n]*\n")
_FRONT_MATTER_END = {
    "---": re.compile(r"\n(?:---|\.\.\.)[^\S\n]*(?=\n|$)"),
    "+++": re.compile(r"\n\+\+\+[^\S\n]*(?=\n|$)"),
}
_MAX_FRONT_MATTER = 20_000  # characters; more is text
_MAX_FIELDS = 100
_MAX_VALUE = 1000  # characters of a field of the front matter
_TAKEN = frozenset(
    ("id", "text", "title", "file", "start", "end", "heading", "page", "row", "row_id")
)
"""Columns of passages that front matter does not set."""
_CODE_SPAN = re.compile(r"(?<!`)(`+)(?!`).{1,500}?(?<!`)\1(?!`)")
_STRUCTURE = frozenset(
    (
        "heading_open",
        "html_block",
        "table_open",
        "thead_open",
        "tr_open",
        "table_close",
        "fence",
        "code_block",
    )
)
_HTML_TABLE_TAG = re.compile(r"<(/?)(table|tr|th)(?=[\s/>])", re.IGNORECASE)


class _StructureTokens(list[Any]):
    """The tokens of headings, tables and HTML. Those of paragraphs and lists take far more memory than their text."""

    def append(self, token: Any) -> None:
        """Keep a token of the structure, and the content of a heading."""
        is_title = (
            token.type == "inline" and bool(self) and self[-1].type == "heading_open"
        )
        if is_title or token.type in _STRUCTURE:
            super().append(token)


def read_text(path: Path, name: str) -> Document:
    """Read a text file as one section."""
    text = read_whole(path)
    return Document(text, [Section(name, 0, len(text))])


def read_markdown(path: Path, name: str) -> Document:
    """Read a Markdown file."""
    return parse_markdown(read_whole(path), name)


def parse_markdown(text: str, name: str) -> Document:
    """Return a Markdown text with its sections and its tables, of which the rows are parts of the text as written.

    A heading with no text of its own or below it becomes a section that holds the heading itself, so nothing is lost.
    """
    skipped = []
    try:
        body, fields = _front_matter(text)
    except (ValueError, RecursionError) as error:
        body, fields = 0, {}
        reason = " ".join(str(error).split())[:200]
        skipped.append(Skipped("front matter", f"it is read as text: {reason}"))
    references: dict[str, Any] = {}
    tokens = _parse_blocks(text, body, references)
    without = _without_comments(text, body, tokens)
    if without != text:
        text, references = without, {}
        tokens = _parse_blocks(text, body, references)
    starts = _line_starts(text)[text.count("\n", 0, body) :]
    columns = {key: value for key, value in fields.items() if key not in _TAKEN}
    dropped = [key for key, value in columns.items() if value is None]
    name = (fields.get("title") or name)[:MAX_HEADING]
    sections = []
    for section in _sections(text, body, tokens, references, starts, name):
        kept = {key: value for key, value in columns.items() if value}
        sections.append(replace(section, metadata=kept))
    tables = [*_pipe_tables(text, tokens, starts), *_html_tables(text, tokens, starts)]
    tables.sort(key=lambda table: table.span)
    if dropped:
        names = ", ".join(dropped)[:200]
        skipped.append(Skipped(f"front matter: {names}", "no text, number or list"))
    return Document(text, sections, _without_overlap(tables), skipped=skipped)


def _parse_blocks(text: str, body: int, references: dict[str, Any]) -> _StructureTokens:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark").enable("table")
    tokens = _StructureTokens()
    parser.block.parse(text[body:], parser, references, tokens)
    return tokens


def _without_comments(text: str, body: int, tokens: Sequence[Any]) -> str:
    """Return a text without its HTML comments, of which the line ends stay; those in code are text."""
    starts = _line_starts(text)[text.count("\n", 0, body) :]
    blocks = [token.map for token in tokens if token.type in ("fence", "code_block")]
    code = [_lines_span(starts, lines) for lines in blocks]
    parts: list[str] = []
    position = body
    kept = 0
    while (begin := text.find("<!--", position)) >= 0:
        end = text.find("-->", begin + 4) + 3
        if end < 3:
            break
        while code and code[0][1] <= begin:
            del code[0]
        in_block = bool(code) and code[0][0] <= begin
        if in_block or _is_in_code_span(text, begin):
            position = begin + 4
            continue
        parts += [text[kept:begin], "\n" * text.count("\n", begin, end)]
        position = kept = end
    return "".join(parts) + text[kept:]


def _is_in_code_span(text: str, place: int) -> bool:
    """Return whether a place of a text stands between backticks, looking at some hundred characters around it."""
    begin = max(text.rfind("\n", 0, place) + 1, place - 600)
    line = text[begin : place + 600].partition("\n")[0]
    spans = [match.span() for match in _CODE_SPAN.finditer(line)]
    return any(first < place - begin < end for first, end in spans)


def _front_matter(text: str) -> tuple[int, dict[str, str | None]]:
    """Return where the text begins behind a block of YAML or TOML, and the fields of the block.

    A value is text, a list of texts joined by commas, or None where it is neither. What is no such block is text.

    Raises:
        ValueError: the block cannot be parsed.
    """
    fence = _FRONT_MATTER.match(text)
    if fence is None:
        return 0, {}
    last = _FRONT_MATTER_END[fence[1]].search(text, fence.end() - 1)
    if last is None or last.end() > _MAX_FRONT_MATTER:
        return 0, {}
    block = text[fence.end() : last.start() + 1]
    values = _parse_toml(block) if fence[1] == "+++" else _parse_yaml(block)
    if not isinstance(values, dict) or len(values) > _MAX_FIELDS:
        return 0, {}
    return last.end(), {str(key)[:100]: _field(value) for key, value in values.items()}


def _parse_toml(block: str) -> Any:
    import tomllib

    return tomllib.loads(block)


def _parse_yaml(block: str) -> Any:
    """Return the values as texts, as they are written: `no` is no truth value."""
    import yaml

    try:
        return yaml.load(block, yaml.BaseLoader)  # noqa: S506 - it makes texts, lists and mappings only
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _field(value: Any) -> str | None:
    parts = value if isinstance(value, list) else [value]
    if any(isinstance(part, dict | list) for part in parts):
        return None
    text = ", ".join(map(str, parts)).strip()
    return text if len(text) <= _MAX_VALUE else None


def _sections(
    text: str,
    body: int,
    tokens: Sequence[Any],
    references: dict[str, Any],
    starts: Sequence[int],
    name: str,
) -> list[Section]:
    """Return the sections between the headings, empty ones left out."""
    from markdown_it import MarkdownIt

    inline = MarkdownIt("commonmark")
    outline = Outline(name)
    outline.begin = body
    for position, token in enumerate(tokens):
        if token.type != "heading_open" or token.level != 0 or token.map is None:
            continue
        content = tokens[position + 1].content
        if len(content) > MAX_HEADING:
            continue
        level = int(token.tag[1:])
        first, after = _lines_span(starts, token.map)
        outline.close(first, bool(text[outline.begin : first].strip()), level)
        children = inline.parseInline(content, references)[0].children or []
        title = "".join(
            child.content or " " * (child.type == "softbreak") for child in children
        ).strip()
        outline.open(level, title, first, after)
    outline.close(len(text), bool(text[outline.begin :].strip()))
    return outline.sections


def _pipe_tables(
    text: str, tokens: Sequence[Any], starts: Sequence[int]
) -> Iterator[Table]:
    """Yield the tables of lines with pipes. The header is the first line with the line of dashes below it."""
    header: Span | None = None
    rows: list[Span] = []
    for token in tokens:
        if token.type == "table_open":
            header, rows = None, []
        elif token.type == "thead_open":
            first, _ = _lines_span(starts, token.map)
            header = trim(
                text, first, _lines_span(starts, (token.map[0], token.map[0] + 2))[1]
            )
        elif token.type == "tr_open" and header is not None and token.map is not None:
            row = trim(text, *_lines_span(starts, token.map))
            if row[0] >= header[1]:
                rows.append(row)
        elif token.type == "table_close" and rows:
            yield Table(header, tuple(rows))


def _html_tables(
    text: str, tokens: Sequence[Any], starts: Sequence[int]
) -> Iterator[Table]:
    """Yield the tables of HTML in a Markdown text. A first row with `th` is the header."""
    begin: int | None = None  # offset of the open table
    rows: list[int] = []  # offsets of its rows
    header_rows = 0
    for token in tokens:
        if token.type == "heading_open":
            begin = None
        if token.type != "html_block" or token.level != 0:
            continue
        for tag in _HTML_TABLE_TAG.finditer(text, *_lines_span(starts, token.map)):
            name = tag[1] + tag[2].lower()
            if name == "table":  # a table in a table is read by its own rows
                begin, rows, header_rows = tag.start(), [], 0
            elif begin is None:
                continue
            elif name == "tr":
                rows.append(tag.start())
            elif name == "th" and len(rows) == 1:
                header_rows = 1
            elif name == "/table":
                if len(rows) > header_rows:
                    yield _html_table(text, begin, rows, header_rows, tag.start())
                begin = None


def _html_table(
    text: str, begin: int, rows: list[int], header_rows: int, end: int
) -> Table:
    """Return a table of HTML, given the offsets of its begin, its rows and its end."""
    ends = [*rows[1:], end]
    spans = [trim(text, start, stop) for start, stop in zip(rows, ends, strict=True)]
    if header_rows:
        return Table(trim(text, begin, ends[0]), tuple(spans[1:]))
    return Table(None, (trim(text, begin, ends[0]), *spans[1:]))


def _without_overlap(tables: Sequence[Table]) -> list[Table]:
    """Return the tables that begin after the end of the one before."""
    kept: list[Table] = []
    for table in tables:
        if not kept or table.span[0] >= kept[-1].span[1]:
            kept.append(table)
    return kept


def _lines_span(starts: Sequence[int], lines: Sequence[int]) -> Span:
    """Return the offsets of lines, given the number of the first and of the one after the last."""
    first, after = (starts[min(line, len(starts) - 1)] for line in lines)
    return first, after


def _line_starts(text: str) -> array[int]:
    """Return the offsets of the lines, and the end of the text for the lines after the last."""
    starts = array("q", [0])
    end = text.find("\n")
    while end >= 0:
        starts.append(end + 1)
        end = text.find("\n", end + 1)
    starts.append(len(text))
    return starts
