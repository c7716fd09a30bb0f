"""Reads text and Markdown files. Markdown is kept as it is written and cut at its headings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from retrieval.documents.document import MAX_HEADING, Document, Outline, Section
from retrieval.reading import read_whole


def read_text(path: Path, name: str) -> Document:
    """Read a text file as one section."""
    text = read_whole(path)
    return Document(text, [Section(name, 0, len(text))])


def read_markdown(path: Path, name: str) -> Document:
    """Read a Markdown file."""
    text = read_whole(path)
    return Document(text, markdown_sections(text, name))


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
    outline = Outline(name)
    for position, token in enumerate(tokens):
        if token.type != "heading_open" or token.level != 0 or token.map is None:
            continue
        content = tokens[position + 1].content
        if len(content) > MAX_HEADING:
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
