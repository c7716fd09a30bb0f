"""Fields of a Word file: the result is text, the instruction is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from selfrag.extensions.word.package import number

FORM_SETTINGS = frozenset(
    (
        "w:checkBox",
        "w:checked",
        "w:default",
        "w:listEntry",
        "w:ddList",
        "w:result",
    )
)
"""Elements that describe a field of a form."""
PAGE_FIELDS = frozenset(("PAGE", "NUMPAGES", "SECTIONPAGES"))
_LONGEST_INSTRUCTION = 200  # characters that are looked at


@dataclass(slots=True)
class OpenField:
    """A field that has not ended."""

    in_result: bool = False
    # whether its result is left out, since its value stands elsewhere
    drops_result: bool = False
    instruction: str = ""


class FieldStack:
    """Tells for each piece of text whether it belongs to an instruction.

    Args:
        drop_page_numbers: whether the results of page number fields are left out, too.
    """

    def __init__(self, drop_page_numbers: bool) -> None:
        self._drop_page_numbers = drop_page_numbers
        self._open: list[OpenField] = []
        self._hiding = 0  # open fields whose text is left out
        self._withheld: list[
            str
        ] = []  # text in an instruction; it is text after all where the field never ends
        self.dropped_page_number = False

    def __len__(self) -> int:
        return len(self._open)

    @property
    def hides(self) -> bool:
        """Return whether text is left out here."""
        return self._hiding > 0

    def begin(self) -> None:
        """Begin a field with its instruction."""
        self._open.append(OpenField())
        self._hiding += 1

    def drop_result(self) -> None:
        """Leave out the result of the innermost field."""
        if self._open:
            self._open[-1].drops_result = True

    def add_instruction(self, text: str) -> None:
        """Append to the instruction of the innermost field."""
        if self._open and len(self._open[-1].instruction) < _LONGEST_INSTRUCTION:
            innermost = self._open[-1]
            innermost.instruction = (innermost.instruction + text)[
                :_LONGEST_INSTRUCTION
            ]

    def separate(self) -> None:
        """End the instruction of the innermost field; its result follows."""
        if not self._open or self._open[-1].in_result:
            return
        innermost = self._open[-1]
        innermost.in_result = True
        words = innermost.instruction.split(maxsplit=1)
        if self._drop_page_numbers and words and words[0].upper() in PAGE_FIELDS:
            innermost.drops_result = True
            self.dropped_page_number = True
        if not innermost.drops_result:
            self._show()

    def end(self) -> None:
        """End the innermost field."""
        if not self._open:
            return
        innermost = self._open.pop()
        if innermost.drops_result or not innermost.in_result:
            self._show()

    def withhold(self, text: str) -> None:
        """Keep a text that stands in an instruction."""
        self._withheld.append(text)

    def close_to(self, depth: int) -> str:
        """End the fields above a depth, which should have ended, and return text that they would hide."""
        hidden = ""
        while len(self._open) > depth:
            if not self._open[-1].in_result:
                hidden = "".join(self._withheld)
            self.end()
        return hidden

    def _show(self) -> None:
        self._hiding -= 1
        if self._hiding == 0:
            self._withheld.clear()


def form_value(settings: Mapping[str, Sequence[str]]) -> str:
    """Return the value of a check box or a list of a form; "" for other fields.

    Args:
        settings: the values of the elements that describe the field, by name.
    """
    if "w:checkBox" in settings:
        states = settings.get("w:checked") or settings.get("w:default") or ["0"]
        return "☐" if states[0] in ("0", "false", "off") else "☒"
    entries = settings.get("w:listEntry", ())
    if "w:ddList" not in settings or not entries:
        return ""
    chosen = settings.get("w:result") or settings.get("w:default") or ["0"]
    place = number(chosen[0])
    return entries[place] if 0 <= place < len(entries) else ""
