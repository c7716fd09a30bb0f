"""Paragraphs, runs and alternatives that are open while a story is read."""

from __future__ import annotations

from dataclasses import dataclass, field

from selfrag.extensions.word.blocks import WordBlock


@dataclass(slots=True)
class OpenParagraph:
    """A paragraph that has not ended."""

    texts: list[str] = field(default_factory=list)
    style: str = ""
    outline_level: int | None = None
    numbering: str | None = None  # None is not stated
    numbering_level: int | None = None
    # its mark is deleted, or it is the large first letter of the next one
    joins_next: bool = False
    sink_depth: int = 0  # tells which text box or cell it stands in
    # notes, text boxes and descriptions that belong to it
    after: list[WordBlock] = field(default_factory=list)
    struck_end: int = 0  # length of `texts` after the last struck text

    def add(self, text: str, struck: bool = False) -> None:
        """Append text; struck text stands between `~~`."""
        if struck and self.texts and self.struck_end == len(self.texts):
            self.texts[-1] = f"{self.texts[-1][:-2]}{text}~~"
            return
        self.texts.append(f"~~{text}~~" if struck else text)
        if struck:
            self.struck_end = len(self.texts)


@dataclass(slots=True)
class OpenRun:
    """Properties of the text that is being read."""

    hidden: bool | None = None  # None is not stated
    style: str = ""
    shift: int = 0  # above the line is positive, below it negative
    struck: bool = False
    font: str = ""


@dataclass(slots=True)
class Choice:
    """Alternatives of the same content, of which one is read."""

    progress: int = 0  # what had been read when the alternative began
    taken: bool = False
