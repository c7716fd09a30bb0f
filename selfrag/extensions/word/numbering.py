"""The numbers and bullets of lists, which Word does not keep in the text: `4.2`, `(b)`, `IV.`, `•`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from selfrag.extensions.word.package import Attributes, XmlHandler, is_on, number
from selfrag.extensions.word.styles import Styles
from selfrag.interface import format_number

BULLET = "•"
MAX_LEVEL = 8
_LONGEST_LABEL = 100  # characters
_ELEMENTS_NAMES = (
    "w:abstractNum w:num w:numStyleLink w:lvlOverride w:abstractNumId w:startOverride "
    "w:lvl w:start w:numFmt w:lvlText w:isLgl w:lvlRestart"
)
_ELEMENTS = frozenset(_ELEMENTS_NAMES.split())


@dataclass(slots=True)
class Level:
    """How one level of a list is numbered."""

    start: int = 1
    kind: str = "decimal"
    pattern: str = ""  # with `%1` for the number of the first level
    decimal: bool = False  # whether all numbers are decimal
    restart: int | None = None  # restarts after this level; 0 never


@dataclass(slots=True)
class AbstractList:
    """Levels and counters that several lists share."""

    levels: dict[int, Level] = field(default_factory=dict)
    linked_style: str = ""  # a list style that holds the levels in place of this one
    counters: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class NumberedList:
    """A list, and what it changes of the abstract one."""

    abstract: str = ""
    levels: dict[int, Level] = field(default_factory=dict)
    starts: dict[int, int] = field(default_factory=dict)  # not used yet


class Numbering(XmlHandler):
    """Reads the numbering part and counts the paragraphs of lists.

    Args:
        styles: of the same file.
    """

    def __init__(self, styles: Styles) -> None:
        super().__init__()
        self._styles = styles
        self._abstract: dict[str, AbstractList] = {}
        self._lists: dict[str, NumberedList] = {}
        self._open_abstract: AbstractList | None = None
        self._open_list: NumberedList | None = None
        self._override = 0
        self._level = Level()

    def reads(self, name: str) -> bool:
        """Return whether an element tells something about a list."""
        return name in _ELEMENTS

    def closes(self, name: str) -> bool:
        """Return whether an element ends a list."""
        return name in ("w:abstractNum", "w:num")

    def start(self, name: str, attributes: Attributes) -> None:
        """Begin an element of the numbering part."""
        value = attributes.get("w:val", "")
        match name:
            case "w:abstractNum":
                self._open_abstract = AbstractList()
                self._abstract[attributes.get("w:abstractNumId", "")] = (
                    self._open_abstract
                )
            case "w:num":
                self._open_list = NumberedList()
                self._lists[attributes.get("w:numId", "")] = self._open_list
            case "w:numStyleLink" if self._open_abstract is not None:
                self._open_abstract.linked_style = value
            case "w:lvlOverride":
                self._override = number(attributes.get("w:ilvl"))
            case "w:abstractNumId" if self._open_list is not None:
                self._open_list.abstract = value
            case "w:startOverride" if self._open_list is not None:
                self._open_list.starts[self._override] = number(value, 1)
            case "w:lvl":
                self._start_level(number(attributes.get("w:ilvl")))
            case _:
                self._set_level(name, attributes)

    def _start_level(self, depth: int) -> None:
        self._level = Level()
        levels = self._open_list or self._open_abstract
        if levels is not None:
            levels.levels[depth] = self._level

    def _set_level(self, name: str, attributes: Attributes) -> None:
        value = attributes.get("w:val", "")
        match name:
            case "w:start":
                self._level.start = number(value, 1)
            case "w:numFmt":
                self._level.kind = value
            case "w:lvlText":
                self._level.pattern = value[:_LONGEST_LABEL]
            case "w:isLgl":
                self._level.decimal = is_on(attributes)
            case "w:lvlRestart":
                self._level.restart = number(value)

    def end(self, name: str) -> None:
        """End an element of the numbering part."""
        if name == "w:abstractNum":
            self._open_abstract = None
        elif name == "w:num":
            self._open_list = None

    def next_label(self, list_id: str, depth: int) -> str:
        """Count a paragraph of a list and return its number or bullet.

        Args:
            list_id: id of the list.
            depth: level of the paragraph, from 0 on.
        """
        numbered = self._lists.get(list_id)
        if numbered is None:
            return ""
        abstract = self._resolve(numbered)
        depth = max(0, min(depth, MAX_LEVEL))
        level = numbered.levels.get(depth) or abstract.levels.get(depth)
        if level is None:
            return ""
        self._count(numbered, abstract, depth, level)
        if level.kind == "bullet":
            return BULLET
        if level.kind == "none":
            return re.sub(r"%[1-9]", "", level.pattern).strip()

        def written(match: re.Match[str]) -> str:
            place = int(match[1]) - 1
            part = numbered.levels.get(place) or abstract.levels.get(place) or Level()
            kind = "decimal" if level.decimal else part.kind
            return format_number(abstract.counters.get(place, part.start), kind)

        return re.sub(r"%([1-9])", written, level.pattern).strip()[:_LONGEST_LABEL]

    def _resolve(self, numbered: NumberedList) -> AbstractList:
        """Return the levels of a list, also where a list style holds them."""
        abstract = self._abstract.get(numbered.abstract, AbstractList())
        if abstract.linked_style and not abstract.levels:
            linked = self._lists.get(self._styles.numbering(abstract.linked_style)[0])
            if linked is not None:
                return self._abstract.get(linked.abstract, abstract)
        return abstract

    def _count(
        self, numbered: NumberedList, abstract: AbstractList, depth: int, level: Level
    ) -> None:
        counters = abstract.counters
        if depth in numbered.starts:
            counters[depth] = numbered.starts.pop(depth)
        elif depth in counters:
            counters[depth] += 1
        else:
            counters[depth] = level.start
        for deeper in range(depth + 1, MAX_LEVEL + 1):
            below = numbered.levels.get(deeper) or abstract.levels.get(deeper)
            if below is not None and below.restart == 0:
                continue
            counters.pop(deeper, None)
