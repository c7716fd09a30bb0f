"""Reads the runs of a story: their properties, signs that are elements, and the readings above characters."""

from __future__ import annotations

import re

from selfrag.extensions.word.package import (
    Attributes,
    ElementEnds,
    ElementStarts,
    is_on,
    number,
)
from selfrag.extensions.word.state import OpenRun
from selfrag.extensions.word.symbols import symbol_text
from selfrag.extensions.word.text import StoryText

_PROPERTIES = (
    *("w:rStyle", "w:vanish", "w:vertAlign", "w:position"),
    *("w:strike", "w:dstrike", "w:rFonts"),
)
_SHIFTS = {"superscript": 1, "subscript": -1}
_LEAST_SHIFT = 4  # half points by which text is raised or lowered


class RunReader:
    """Reads runs.

    Args:
        text: of the story.

    Attributes:
        starts: what to do where an element begins.
        ends: and where it ends.
    """

    def __init__(self, text: StoryText) -> None:
        self._text = text
        self._rubies: list[int] = []
        self._ruby_texts: list[str] = []
        self.starts: ElementStarts = {
            "w:r": self._start_run,
            **dict.fromkeys(_PROPERTIES, self._set_property),
            "w:tab": self._tab,
            "w:ptab": self._tab,
            "w:br": lambda _: text.write("\n"),
            "w:cr": lambda _: text.write("\n"),
            "w:noBreakHyphen": lambda _: text.write("-"),
            "w:sym": self._symbol,
            "w:rt": self._start_ruby_text,
        }
        self.ends: ElementEnds = {
            "w:r": self._end_run,
            "w:rt": self._end_ruby_text,
            "w:ruby": self._end_ruby,
        }

    def _start_run(self, attributes: Attributes) -> None:
        run = OpenRun()
        if self._text.runs and self._text.is_hidden():
            run.hidden = True
        self._text.runs.append(run)

    def _end_run(self) -> None:
        if self._text.runs:
            self._text.runs.pop()

    def _set_property(self, attributes: Attributes) -> None:
        """Set a property of the open run, unless it is one of something else."""
        path = self._text.path
        if not self._text.runs or path[-3:-1] != ["w:r", "w:rPr"]:
            return
        run, value = self._text.runs[-1], attributes.get("w:val", "")
        match path[-1]:
            case "w:rStyle":
                run.style = value
            case "w:vanish":
                run.hidden = run.hidden or is_on(attributes)
            case "w:vertAlign":
                run.shift = _SHIFTS.get(value, 0)
            case "w:position" if abs(number(value)) >= _LEAST_SHIFT:
                run.shift = number(value)
            case "w:strike" | "w:dstrike":
                run.struck = is_on(attributes)
            case "w:rFonts":
                run.font = attributes.get("w:ascii") or attributes.get("w:hAnsi") or ""

    def _tab(self, attributes: Attributes) -> None:
        if self._text.path[-2:-1] != ["w:tabs"]:
            self._text.write("\t")

    def _symbol(self, attributes: Attributes) -> None:
        code = attributes.get("w:char", "")
        letter = None
        if re.fullmatch("[0-9A-Fa-f]{1,6}", code):
            letter = symbol_text(attributes.get("w:font", ""), int(code, 16))
        if letter is None:
            self._text.leave_out("symbols")
        else:
            self._text.write(letter)

    def _start_ruby_text(self, attributes: Attributes) -> None:
        self._rubies.append(
            len(self._text.paragraphs[-1].texts) if self._text.paragraphs else 0
        )

    def _end_ruby_text(self) -> None:
        start = self._rubies.pop()
        if self._text.paragraphs:
            self._ruby_texts.append("".join(self._text.paragraphs[-1].texts[start:]))
            del self._text.paragraphs[-1].texts[start:]

    def _end_ruby(self) -> None:
        reading = self._ruby_texts.pop() if self._ruby_texts else ""
        if reading.strip() and self._text.paragraphs:
            self._text.paragraphs[-1].texts.append(f"({reading})")
