"""The styles of a Word file: which paragraphs are headings or numbered, and which text is hidden."""

from __future__ import annotations

import re
from dataclasses import dataclass

from selfrag.extensions.word.package import Attributes, XmlHandler, is_on, number

BODY_LEVEL = 9
"""Outline level of text that is no heading."""
_HEADING_NAME = re.compile(
    r"(?:heading|(?:ü|u)?berschrift|titre|t(?:í|i)?tulo|titolo|kop|rubrik|overskrift|otsikko|nag(?:ł|l)?(?:ó|o)?wek"
    r"|nadpis|заголовок|ba(?:ş|s)?l(?:\u0131)?k|c(?:í|i)msor|titlu|naslov|επικεφαλίδα|標題|标题|見出し|제목)\s*([1-9])",
    re.IGNORECASE,
)
"""Names and ids of heading styles in the languages of Word; ids lose the letters outside ASCII."""
_LOOKED_AT = 50  # styles of a chain
_ELEMENTS = frozenset(
    ("w:style", "w:name", "w:basedOn", "w:outlineLvl", "w:vanish", "w:numId", "w:ilvl")
)


@dataclass(slots=True)
class Style:
    """A style, and the one that it is based on."""

    name: str = ""
    based_on: str = ""
    outline_level: int | None = None  # 0 to 8 are headings; None is not stated
    hidden: bool | None = None
    numbering: str = ""  # id of its list; "" is not stated
    numbering_level: int | None = None


class Styles(XmlHandler):
    """Reads the styles part and answers for a style and those that it is based on. A loop of styles ends."""

    def __init__(self) -> None:
        super().__init__()
        self._styles: dict[str, Style] = {}
        self._open: Style | None = None
        self._default_paragraph = ""
        self._headings: dict[str, int | None] = {}
        self._lists: dict[str, tuple[str, int | None]] = {}
        self._hidden: dict[str, bool] = {}

    def reads(self, name: str) -> bool:
        """Return whether an element tells something about a style."""
        return name in _ELEMENTS

    def start(self, name: str, attributes: Attributes) -> None:
        """Begin an element of the styles part."""
        value = attributes.get("w:val", "")
        if name == "w:style":
            self._open = Style()
            style_id = attributes.get("w:styleId", "")
            self._styles[style_id] = self._open
            if attributes.get("w:type") == "paragraph" and attributes.get(
                "w:default"
            ) in ("1", "true", "on"):
                self._default_paragraph = style_id
        style = self._open
        if style is None:
            return
        match name:
            case "w:name":
                style.name = value
            case "w:basedOn":
                style.based_on = value
            case "w:outlineLvl":
                style.outline_level = number(value, BODY_LEVEL)
            case "w:vanish":
                style.hidden = is_on(attributes)
            case "w:numId":
                style.numbering = value
            case "w:ilvl":
                style.numbering_level = number(value)

    def end(self, name: str) -> None:
        """End an element of the styles part."""
        if name == "w:style":
            self._open = None

    def heading_level(self, style_id: str) -> int | None:
        """Return the level of a heading style, 0 for a title, None for other text."""
        if style_id not in self._headings:
            self._headings[style_id] = self._find_level(style_id)
        return self._headings[style_id]

    def numbering(self, style_id: str) -> tuple[str, int | None]:
        """Return the id of the list of a style, or "", and the level in it, or None where the style does not say."""
        if style_id not in self._lists:
            numbering, level = "", None
            for style in self._chain(style_id or self._default_paragraph):
                numbering = numbering or style.numbering
                level = style.numbering_level if level is None else level
            self._lists[style_id] = (numbering, level)
        return self._lists[style_id]

    def is_hidden(self, style_id: str) -> bool:
        """Return whether a style hides its text."""
        if style_id not in self._hidden:
            stated = [
                style.hidden
                for style in self._chain(style_id)
                if style.hidden is not None
            ]
            self._hidden[style_id] = bool(stated) and stated[0]
        return self._hidden[style_id]

    def _find_level(self, style_id: str) -> int | None:
        if style_id not in self._styles:
            return _level_in_name(style_id)  # the styles part is missing or damaged
        for style in self._chain(style_id):
            if style.outline_level is not None:
                return (
                    style.outline_level + 1
                    if style.outline_level < BODY_LEVEL
                    else None
                )
            level = _level_in_name(style.name)
            if level is not None:
                return level
        return None

    def _chain(self, style_id: str) -> list[Style]:
        chain: list[Style] = []
        while style_id in self._styles and len(chain) < _LOOKED_AT:
            chain.append(self._styles[style_id])
            style_id = chain[-1].based_on
        return chain


def _level_in_name(name: str) -> int | None:
    if name.lower() == "title":
        return 0
    heading = _HEADING_NAME.fullmatch(name.strip())
    return int(heading[1]) if heading else None
