"""Reads the paragraphs of a story: their text, style, level and number."""

from __future__ import annotations

import re

from selfrag.extensions.word.blocks import TextBlock
from selfrag.extensions.word.numbering import Numbering
from selfrag.extensions.word.package import (
    Attributes,
    ElementEnds,
    ElementStarts,
    number,
)
from selfrag.extensions.word.state import OpenParagraph
from selfrag.extensions.word.styles import BODY_LEVEL
from selfrag.extensions.word.text import StoryText

_PROPERTIES = ("w:pStyle", "w:outlineLvl", "w:framePr", "w:numId", "w:ilvl")


class ParagraphReader:
    """Reads paragraphs and their properties.

    Args:
        text: of the story.
        numbering: of the file.

    Attributes:
        starts: what to do where an element begins.
        ends: and where it ends.
        is_in_box: whether the paragraphs stand in a text box, where none is a heading.
    """

    def __init__(self, text: StoryText, numbering: Numbering) -> None:
        self._text = text
        self._numbering = numbering
        # one whose mark is deleted, so that the next continues it
        self._carried: OpenParagraph | None = None
        self.is_in_box = False
        self.starts: ElementStarts = {
            "w:p": self._start_paragraph,
            "a:p": self._start_paragraph,
            **dict.fromkeys(_PROPERTIES, self._set_property),
        }
        self.ends: ElementEnds = {
            "w:p": self._end_paragraph,
            "a:p": self._end_paragraph,
        }

    def _start_paragraph(self, attributes: Attributes) -> None:
        paragraph = OpenParagraph(sink_depth=len(self._text.sinks))
        if (
            self._carried is not None
            and self._carried.sink_depth == paragraph.sink_depth
        ):
            paragraph.texts, paragraph.after = self._carried.texts, self._carried.after
            self._carried = None
        self._text.paragraphs.append(paragraph)
        self._text.fields.dropped_page_number = False

    def _end_paragraph(self) -> None:
        if not self._text.paragraphs:
            return
        paragraph = self._text.paragraphs.pop()
        if paragraph.joins_next:
            self.flush_carried()
            self._carried = paragraph
        else:
            self._finish_paragraph(paragraph)

    def _finish_paragraph(self, paragraph: OpenParagraph) -> None:
        text = "".join(paragraph.texts).strip()
        if self._text.fields.dropped_page_number and len(re.findall(r"\w+", text)) <= 2:
            text = ""
        label = self._label(paragraph)
        if text:
            if label:
                text = f"{label} {text}"
            self._text.emit(TextBlock(text, self._heading_level(paragraph)))
        for block in paragraph.after:
            self._text.emit(block)

    def flush_carried(self) -> None:
        """Hand on a paragraph that waited for the next one."""
        paragraph, self._carried = self._carried, None
        if paragraph is not None:
            self._finish_paragraph(paragraph)

    def _heading_level(self, paragraph: OpenParagraph) -> int | None:
        if self.is_in_box:
            return None
        if paragraph.outline_level is None:
            return self._text.styles.heading_level(paragraph.style)
        return (
            paragraph.outline_level + 1
            if paragraph.outline_level < BODY_LEVEL
            else None
        )

    def _label(self, paragraph: OpenParagraph) -> str:
        list_id, level = self._text.styles.numbering(paragraph.style)
        if paragraph.numbering is not None:
            list_id = paragraph.numbering
        if paragraph.numbering_level is not None:
            level = paragraph.numbering_level
        return self._numbering.next_label(list_id, level or 0)

    def _set_property(self, attributes: Attributes) -> None:
        """Set a property of the open paragraph."""
        if not self._text.paragraphs:
            return
        paragraph, value = self._text.paragraphs[-1], attributes.get("w:val", "")
        match self._text.path[-3:]:
            case [_, "w:pPr", "w:pStyle"]:
                paragraph.style = value
            case [_, "w:pPr", "w:outlineLvl"]:
                paragraph.outline_level = number(value, BODY_LEVEL)
            case ["w:pPr", "w:numPr", "w:numId"]:
                paragraph.numbering = value
            case ["w:pPr", "w:numPr", "w:ilvl"]:
                paragraph.numbering_level = number(value)
            case [*_, "w:framePr"]:
                if attributes.get("w:dropCap", "none") != "none":
                    paragraph.joins_next = True
