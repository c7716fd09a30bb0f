"""Reads the runs of a story: their properties, signs that are elements, and the readings above characters."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from selfrag.extensions.word.package import Attributes, is_on, number
from selfrag.extensions.word.state import OpenRun
from selfrag.extensions.word.symbols import symbol_text
from selfrag.extensions.word.text import StoryText

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
        self.starts: Mapping[str, Callable[[Attributes], None]] = {
            "w:r": self._start_run,
            "w:rStyle": self._run_style,
            "w:vanish": self._vanish,
            "w:vertAlign": self._raise,
            "w:position": self._position,
            "w:strike": self._strike,
            "w:dstrike": self._strike,
            "w:rFonts": self._font,
            "w:tab": self._tab,
            "w:ptab": self._tab,
            "w:br": self._break,
            "w:cr": self._break,
            "w:noBreakHyphen": self._hyphen,
            "w:sym": self._symbol,
            "w:rt": self._start_ruby_text,
        }
        self.ends: Mapping[str, Callable[[], None]] = {
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

    def _run_properties(self) -> OpenRun | None:
        """Return the run whose properties are being read, None where they are those of something else."""
        path = self._text.path
        if self._text.runs and path[-2] == "w:rPr" and path[-3] == "w:r":
            return self._text.runs[-1]
        return None

    def _run_style(self, attributes: Attributes) -> None:
        run = self._run_properties()
        if run is not None:
            run.style = attributes.get("w:val", "")

    def _vanish(self, attributes: Attributes) -> None:
        run = self._run_properties()
        if run is not None:
            run.hidden = run.hidden or is_on(attributes)

    def _raise(self, attributes: Attributes) -> None:
        run = self._run_properties()
        if run is not None:
            run.shift = _SHIFTS.get(attributes.get("w:val", ""), 0)

    def _position(self, attributes: Attributes) -> None:
        run = self._run_properties()
        height = number(attributes.get("w:val"))
        if run is not None and abs(height) >= _LEAST_SHIFT:
            run.shift = height

    def _strike(self, attributes: Attributes) -> None:
        run = self._run_properties()
        if run is not None:
            run.struck = is_on(attributes)

    def _font(self, attributes: Attributes) -> None:
        run = self._run_properties()
        if run is not None:
            run.font = attributes.get("w:ascii") or attributes.get("w:hAnsi") or ""

    def _tab(self, attributes: Attributes) -> None:
        if self._text.path[-2:-1] != ["w:tabs"]:
            self._text.write("\t")

    def _break(self, attributes: Attributes) -> None:
        self._text.write("\n")

    def _hyphen(self, attributes: Attributes) -> None:
        self._text.write("-")

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
