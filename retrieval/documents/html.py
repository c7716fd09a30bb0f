"""Reads HTML pages: their text without scripts, styles, forms and navigation."""

from __future__ import annotations

import re
from pathlib import Path

from retrieval.documents.document import MAX_BYTES, MAX_HEADING, Document, DocumentBuilder
from retrieval.errors import UserError, require
from retrieval.reading import opened

_MAX_DEPTH = 100  # elements around a text that are looked at
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


def read_html(path: Path, name: str) -> Document:
    """Text of a page without scripts, styles, forms and navigation."""
    selectolax = require("selectolax.lexbor", extra="documents")
    with opened(path) as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise UserError(f"{path}: more than {MAX_BYTES:,} bytes; split it")
    tree = selectolax.LexborHTMLParser(_decoded(path, content))
    title = tree.css_first("head > title")
    named = " ".join(title.text().split())[:MAX_HEADING] if title is not None else ""
    tree.strip_tags([*_SKIPPED, "head"])
    builder = DocumentBuilder(named or name)
    block, words = None, list[str]()

    def end() -> None:
        text = re.sub(r"\s+", " ", "".join(words))
        words.clear()
        if block is not None and re.fullmatch("h[1-6]", block.tag):
            builder.add_heading(int(block.tag[1]), text)
        else:
            builder.add_paragraph(text)

    for node in tree.root.traverse(include_text=True) if tree.root is not None else ():
        if node.tag in ("br", "td", "th"):
            words.append(" ")
        if node.tag != "-text":
            continue
        own = node.parent
        for _ in range(_MAX_DEPTH):
            if own is None or own.tag not in _INLINE:
                break
            own = own.parent
        if block is None or own is None or own.mem_id != block.mem_id:
            end()
            block = own
        words.append(node.text_content or "")
    end()
    return builder.build()


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
