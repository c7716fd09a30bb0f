"""Plain text and Markdown documents as titled sections, split into passages with stable ids. Knows no table format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrieval.errors import UserError
from retrieval.passage import Passage
from retrieval.readers.row import Place, Row
from retrieval.reading import read_whole
from retrieval.splitting import SentenceFinder, Splitting, split

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
