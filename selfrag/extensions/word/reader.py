"""From a Word file to a document: headers first, then the body with the notes where the text refers to them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from selfrag.extensions.word.blocks import (
    BlockWriter,
    TableBlock,
    TableCell,
    TextBlock,
    WordBlock,
    cell_text,
)
from selfrag.extensions.word.charts import ChartReader
from selfrag.extensions.word.numbering import Numbering
from selfrag.extensions.word.package import (
    DamagedPartError,
    ElementText,
    WordPackage,
    XmlHandler,
)
from selfrag.extensions.word.story import Story
from selfrag.extensions.word.styles import Styles
from selfrag.interface import (
    MAX_HEADING,
    Document,
    DocumentBuilder,
    UserError,
    count_of,
)

_REASONS = {
    "pictures": "no description; text in pictures needs text recognition (OCR)",
    "embedded objects": "their contents belong to another program",
    "inserted files": "contents that Word inserts from another file when it opens this one",
    "comments": "remarks beside the text",
    "hidden texts": "Word does not show them",
    "deleted texts": "tracked changes",
    "symbols": "characters of a font that is not known",
}


def read_word(path: Path, name: str) -> Document:
    """Return the text of a Word file with its headings, tables, notes and text boxes.

    Raises:
        UserError: the file is damaged, encrypted, too large, or holds no text but other content.
    """
    package = WordPackage(path)
    try:
        document = _WordReader(package, name).read()
    except DamagedPartError as error:
        raise UserError(f"{path}: cannot be read as Word file: {error}") from error
    finally:
        package.close()
    if not document.text and document.skipped:
        skipped = "; ".join(f"{item.what}: {item.why}" for item in document.skipped)
        raise UserError(f"{path}: no text in the Word file; left out: {skipped}")
    return document


class _WordReader:
    def __init__(self, package: WordPackage, name: str) -> None:
        self._package = package
        self._part = package.main_part()
        self._lost: dict[str, str] = {}  # parts that could not be read, and why
        try:
            self._links = package.relationships(self._part)
        except DamagedPartError as error:
            self._links = {}
            self._lost[self._part] = f"{error}; notes, headers and styles are missing"
        title = ElementText("dc:title")
        try:
            for link in package.relationships("").values():
                if link.kind == "core-properties" and not link.external:
                    package.parse(link.target, title)
        except DamagedPartError:
            pass  # a title is no text of the document
        self._builder = DocumentBuilder(title.value[:MAX_HEADING] or name)
        self._writer = BlockWriter(self._builder)
        self._styles = Styles()
        self._numbering = Numbering(self._styles)
        self._notes: dict[tuple[str, str], list[WordBlock]] = {}
        self._left_out: Counter[str] = Counter()
        self._done: set[str] = set()  # linked parts that have been read

    def read(self) -> Document:
        """Read all parts and return the document."""
        self._parse_linked("styles", self._styles)
        self._parse_linked("numbering", self._numbering)
        outside: list[WordBlock] = []  # text of the notes part that is in no note
        for kind in ("footnotes", "endnotes"):
            self._parse_linked(kind, self._story(outside.append, Counter()))
        self._read_headers()
        body = self._story(self._writer.add, self._left_out)
        self._package.parse(self._part, body)
        body.finish()
        for what, count in self._left_out.items():
            if count <= 0:
                continue
            self._builder.skip(count_of(count, what), _REASONS[what])
        for part, reason in self._lost.items():
            self._builder.skip(part, reason)
        return self._builder.build()

    def _story(
        self,
        add: Callable[[WordBlock], None],
        left_out: Counter[str],
        *,
        drop_page_numbers: bool = False,
    ) -> Story:
        return Story(
            add,
            self._styles,
            self._numbering,
            self._notes,
            left_out,
            self._read_drawing,
            drop_page_numbers=drop_page_numbers,
        )

    def _parse(self, part: str, handler: XmlHandler) -> None:
        """Parse a part without which the text can be read; the report names it where it cannot be."""
        try:
            self._package.parse(part, handler)
        except DamagedPartError as error:
            self._lost[part] = str(error)

    def _parse_linked(self, kind: str, handler: XmlHandler) -> None:
        for link in self._links.values():
            if link.kind == kind and not link.external:
                self._parse(link.target, handler)
                return

    def _read_headers(self) -> None:
        """Add the headers and footers, each text once."""
        parts = [
            link.target
            for link in self._links.values()
            if link.kind in ("header", "footer") and not link.external
        ]
        texts: set[str] = set()
        for part in dict.fromkeys(parts):
            blocks: list[WordBlock] = []
            story = self._story(blocks.append, Counter(), drop_page_numbers=True)
            self._parse(part, story)
            story.finish()
            for block in blocks:
                text = cell_text(TableCell([block]))
                if text not in texts and re.search(r"\w", text):
                    texts.add(text)
                    self._writer.add(
                        block
                        if isinstance(block, TableBlock)
                        else TextBlock(block.text)
                    )

    def _read_drawing(self, relationship: str) -> Sequence[WordBlock]:
        """Return the text of a diagram or a chart, the first time that it is asked for."""
        link = self._links.get(relationship)
        if link is None or link.external or link.target in self._done:
            return ()
        self._done.add(link.target)
        if link.kind == "chart":
            chart = ChartReader()
            self._parse(link.target, chart)
            return chart.blocks()
        blocks: list[WordBlock] = []
        story = self._story(blocks.append, Counter())
        self._parse(link.target, story)
        story.finish()
        return blocks
