"""Reads what is no text but may be told in words: pictures, charts and diagrams; counts what can not."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from selfrag.extensions.word.blocks import TextBlock, WordBlock
from selfrag.extensions.word.package import Attributes, ElementEnds, ElementStarts
from selfrag.extensions.word.text import StoryText

_NO_DESCRIPTION = re.compile(
    r"automatically generated|AI-generated|\.(png|jpe?g|gif|bmp|emf|wmf|tiff?|svg)$",
    re.IGNORECASE,
)
"""Descriptions of pictures that no person wrote."""


class PictureReader:
    """Reads pictures, charts, diagrams and embedded objects.

    Args:
        text: of the story.
        linked: reads the part of a diagram or a chart, given the id of its relationship.

    Attributes:
        starts: what to do where an element begins.
        ends: and where it ends.
    """

    def __init__(
        self, text: StoryText, linked: Callable[[str], Sequence[WordBlock]]
    ) -> None:
        self._text = text
        self._linked = linked
        self._description = ""
        self._in_object = 0
        self.starts: ElementStarts = {
            "wp:docPr": self._describe,
            "v:shape": self._describe,
            "a:blip": self._picture,
            "v:imagedata": self._picture,
            "v:textpath": self._text_path,
            "w:object": self._start_object,
            "w:altChunk": lambda _: text.leave_out("inserted files"),
            "w:subDoc": lambda _: text.leave_out("inserted files"),
            "w:commentReference": lambda _: text.leave_out("comments"),
            "dgm:relIds": self._read_linked,
            "c:chart": self._read_linked,
        }
        self.ends: ElementEnds = {"w:object": self._end_object}

    def _describe(self, attributes: Attributes) -> None:
        self._description = attributes.get("descr") or attributes.get("alt", "")

    def _picture(self, attributes: Attributes) -> None:
        description, self._description = self._description.strip(), ""
        if self._in_object or self._text.is_hidden():
            return
        if description and not _NO_DESCRIPTION.search(description):
            self._text.progress += 1
            self._text.emit(TextBlock(description))
        else:
            self._text.leave_out("pictures")

    def _text_path(self, attributes: Attributes) -> None:
        text = attributes.get("string", "")
        if text.strip() and not self._text.is_hidden():
            self._text.progress += 1
            self._text.emit(TextBlock(text))

    def _start_object(self, attributes: Attributes) -> None:
        self._in_object += 1
        self._text.leave_out("embedded objects")

    def _end_object(self) -> None:
        self._in_object = max(0, self._in_object - 1)

    def _read_linked(self, attributes: Attributes) -> None:
        """Read a diagram or a chart."""
        relationship = attributes.get("r:dm") or attributes.get("r:id", "")
        if not relationship or self._text.is_hidden():
            return
        for block in self._linked(relationship):
            self._text.progress += 1
            self._text.emit(block)
