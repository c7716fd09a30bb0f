"""Reads the text of a PDF page as fragments with their places: its characters, and the values of fields and notes."""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Callable
from typing import Any, TypeAlias

from selfrag.extensions.pdf.layout import Fragment, share_row
from selfrag.extensions.pdf.line_ends import clean_text

Box: TypeAlias = tuple[float, float, float, float]
"""Left, bottom, right and top."""

_MAX_NOTES = 2000  # fields and notes of a page
_MAX_VALUE = 1 << 20  # bytes of a value
_MAX_OPTIONS = 1000  # of a list box
_WIDE_GAP = 0.6  # gap that ends a fragment, in heights of a line
# gap up to which a raised or lowered letter belongs to the word before it
_NO_GAP = 0.15
# gap between the letters of a word that is spaced out, in heights of a line
_SPACED = 0.08
# a gap up to this many times the last one is still inside such a word
_WIDEST_LETTER_GAP = 1.15
_SAME_LINE = 0.3  # vertical overlap of letters of one line, as a share of the lower one
_UPSIDE_DOWN = 2  # quarter turns
_MAX_FONT_NAME = 128  # bytes; a longer name is left out
_BOLD = re.compile(rb"bold|black|heavy|demi|cmbx", re.IGNORECASE)
_SAMPLES = 200  # characters whose direction is looked at
_LINE_ENDS, _SPACES = (10, 13), (9, 32, 160)
_UNMAPPED = (0, 0xFFFD, 0xFFFF)
_LINE_END_HYPHENS = (2, 0xFFFE)  # as PDFium marks a hyphen at the end of a line
_HIDDEN = 0x02 | 0x20  # flags of fields and notes: hidden, not shown on a screen


class FragmentReader:
    """Reads the characters of a page in the order of drawing.

    Args:
        textpage: of PDFium.

    Attributes:
        turns: quarter turns by which most of the text is rotated.
        unmapped: characters for which the font names no letter.
    """

    def __init__(self, textpage: Any) -> None:
        from pypdfium2 import raw

        self._raw, self._textpage = raw, textpage
        self._count = textpage.count_chars()
        self._fragments: list[Fragment] = []
        self._characters: list[str] = []  # of the fragment that is being read
        self._box: Box = (0.0, 0.0, 0.0, 0.0)  # of these characters
        self._turned = 0  # their quarter turns
        self._is_bold = False
        self._letter_gap = 0.0  # between the last two letters of a word
        self._font = ctypes.create_string_buffer(_MAX_FONT_NAME)
        # position after the last fragment that is not upside down
        self._upside_down = 0
        self.unmapped = 0
        turns = [
            self._turns(index)
            for index in range(0, self._count, self._count // _SAMPLES + 1)
        ]
        self.turns = max(range(4), key=turns.count)

    def read(self) -> list[Fragment]:
        """Return the fragments of the page."""
        raw, textpage = self._raw, self._textpage
        rectangle = raw.FS_RECTF()
        previous: Box | None = None
        newline = False
        space: int | None = None  # position of a space before the character
        for index in range(self._count):
            code = raw.FPDFText_GetUnicode(textpage, index)
            if code in _LINE_ENDS:
                newline = True
                continue
            if code in _SPACES:
                space = index
                continue
            if code in _UNMAPPED:
                self.unmapped += 1
                continue
            ends_line = code in _LINE_END_HYPHENS
            if code < 32 and not ends_line:
                continue
            raw.FPDFText_GetLooseCharBox(textpage, index, rectangle)
            placed = (rectangle.left, rectangle.bottom, rectangle.right, rectangle.top)
            if previous is None:
                self._begin(index, placed)
            elif space is not None or newline:
                self._separate(previous, index, placed, space)
            box = turn_box(placed, self._turned)
            if previous is not None and space is None and not newline:
                self._letter_gap = box[0] - previous[2]
            self._characters.append("-" if ends_line else chr(code))
            left, bottom, right, top = self._box
            self._box = (
                min(left, box[0]),
                min(bottom, box[1]),
                max(right, box[2]),
                max(top, box[3]),
            )
            previous, space, newline = box, None, ends_line
        self._end()
        return self._fragments

    def _turns(self, index: int) -> int:
        """Return the quarter turns of a character, clockwise."""
        angle = self._raw.FPDFText_GetCharAngle(self._textpage, index)
        return round(angle / (math.pi / 2)) % 4 if angle >= 0 else 0

    def _separate(
        self, previous: Box, index: int, placed: Box, space: int | None
    ) -> None:
        """Begin a fragment where a line or a wide gap ends; else note a space, where there is one."""
        box = turn_box(placed, self._turned)
        height = min(previous[3] - previous[1], box[3] - box[1])
        overlap = min(previous[3], box[3]) - max(previous[1], box[1])
        gap = max(box[0] - previous[2], previous[0] - box[2])
        if (
            overlap < _SAME_LINE * height
            or gap > _WIDE_GAP * height
            or self._turns(index) != self._turned
        ):
            self._end()
            self._begin(index, placed)
        elif space is None:
            if gap > _NO_GAP * height:
                self._characters.append(" ")
        elif not self._is_letter_gap(gap, height, space):
            self._characters.append(" ")
            self._letter_gap = 0.0

    def _is_letter_gap(self, gap: float, height: float, space: int) -> bool:
        """Return whether a space that PDFium made of a gap is no wider than the gaps inside the word before it."""
        if (
            self._letter_gap < _SPACED * height
            or gap > _WIDEST_LETTER_GAP * self._letter_gap
        ):
            return False
        return bool(self._raw.FPDFText_IsGenerated(self._textpage, space) == 1)

    def _begin(self, index: int, placed: Box) -> None:
        self._turned = self._turns(index)
        self._letter_gap = 0.0
        self._font.value = b""
        self._raw.FPDFText_GetFontInfo(
            self._textpage, index, self._font, _MAX_FONT_NAME, None
        )
        self._is_bold = _BOLD.search(self._font.value) is not None
        self._box = turn_box(placed, self._turned)

    def _end(self) -> None:
        text = clean_text("".join(self._characters)).strip()
        self._characters.clear()
        if not text:
            return
        fragment = Fragment(text, *self._box, self._turned == self.turns, self._is_bold)
        place = len(self._fragments)
        # PDFium sorts the pieces of a line from the left of the page
        if self._turned == _UPSIDE_DOWN:
            while place > self._upside_down and _stands_before(
                fragment, self._fragments[place - 1]
            ):
                place -= 1
        else:
            self._upside_down = len(self._fragments) + 1
        self._fragments.insert(place, fragment)


def _stands_before(fragment: Fragment, previous: Fragment) -> bool:
    return share_row(fragment, previous) and fragment.right <= previous.left


def turn_box(box: Box, turns: int) -> Box:
    """Return a box as it lies where text that is rotated by quarter turns clockwise is made upright."""
    left, bottom, right, top = box
    if turns == 1:
        return -top, left, -bottom, right
    if turns == 2:
        return -right, -top, -left, -bottom
    if turns == 3:
        return bottom, -right, top, -left
    return box


def take_notes(page: Any) -> tuple[list[tuple[str, Box]], bool]:
    """Take the fields and notes with text off a page.

    Returns:
        What is filled into the fields and written in the notes, and where; and whether other notes were drawn into the
        page: then it is to be loaded again, and their text is text of the page.
    """
    from pypdfium2 import raw

    notes: list[tuple[str, Box]] = []
    rectangle = raw.FS_RECTF()
    remaining = 0
    for index in reversed(range(min(raw.FPDFPage_GetAnnotCount(page), _MAX_NOTES))):
        note = raw.FPDFPage_GetAnnot(page, index)
        if not note:
            continue
        text = None
        if not raw.FPDFAnnot_GetFlags(note) & _HIDDEN:
            text = _note_text(page.formenv, note)
        is_placed = bool(raw.FPDFAnnot_GetRect(note, rectangle))
        is_plain = raw.FPDFAnnot_GetSubtype(note) in (
            raw.FPDF_ANNOT_LINK,
            raw.FPDF_ANNOT_POPUP,
        )
        raw.FPDFPage_CloseAnnot(note)
        if text and is_placed:
            notes.append(
                (
                    text,
                    (rectangle.left, rectangle.bottom, rectangle.right, rectangle.top),
                )
            )
        if text is None and not is_plain:
            remaining += 1
        else:
            raw.FPDFPage_RemoveAnnot(page, index)
    notes.reverse()
    drawn = (
        remaining > 0
        and raw.FPDFPage_Flatten(page, raw.FLAT_NORMALDISPLAY) == raw.FLATTEN_SUCCESS
    )
    return notes, drawn


def _note_text(form: Any, note: Any) -> str | None:
    """Return the text of a field or note, or None where only its drawing says it."""
    from pypdfium2 import raw

    kind = raw.FPDFAnnot_GetSubtype(note)
    if kind == raw.FPDF_ANNOT_WIDGET and form is not None:
        text = _field_text(form, note)
    elif kind == raw.FPDF_ANNOT_FREETEXT:
        text = _wide_text(raw.FPDFAnnot_GetStringValue, note, b"Contents") or None
    else:
        return None
    return text and " ".join(clean_text(text).split())


def _field_text(form: Any, note: Any) -> str | None:
    """Return the value of a field, the name of a box that is checked, or the options of a list box: all are shown."""
    from pypdfium2 import raw

    kind = raw.FPDFAnnot_GetFormFieldType(form, note)
    if kind in (raw.FPDF_FORMFIELD_CHECKBOX, raw.FPDF_FORMFIELD_RADIOBUTTON):
        if not raw.FPDFAnnot_IsChecked(form, note):
            return ""
        name = _wide_text(raw.FPDFAnnot_GetFormFieldAlternateName, form, note)
        name = name or _wide_text(raw.FPDFAnnot_GetFormFieldName, form, note)
        value = _wide_text(raw.FPDFAnnot_GetFormFieldExportValue, form, note)
        if kind == raw.FPDF_FORMFIELD_RADIOBUTTON and value:
            return f"[x] {name}: {value}"
        return f"[x] {name}"
    if kind == raw.FPDF_FORMFIELD_LISTBOX:
        return _list_box_text(form, note)
    if kind in (raw.FPDF_FORMFIELD_TEXTFIELD, raw.FPDF_FORMFIELD_COMBOBOX):
        return _wide_text(raw.FPDFAnnot_GetFormFieldValue, form, note)
    return None


def _list_box_text(form: Any, note: Any) -> str:
    from pypdfium2 import raw

    options: list[str] = []
    for option in range(min(raw.FPDFAnnot_GetOptionCount(form, note), _MAX_OPTIONS)):
        label = _wide_text(raw.FPDFAnnot_GetOptionLabel, form, note, option)
        mark = "[x] " if raw.FPDFAnnot_IsOptionSelected(form, note, option) else ""
        options.append(mark + label)
    return ", ".join(filter(None, options))


def _wide_text(read: Callable[..., int], *arguments: Any) -> str:
    """Return the UTF-16 text that a function of PDFium writes into a buffer; it returns the bytes that it needs."""
    from pypdfium2 import raw

    size = min(read(*arguments, None, 0), _MAX_VALUE)
    if size <= 2:
        return ""
    buffer = ctypes.create_string_buffer(size)
    if (
        read(*arguments, ctypes.cast(buffer, ctypes.POINTER(raw.FPDF_WCHAR)), size)
        > size
    ):
        return ""
    return buffer.raw[: size - 2].decode("utf-16-le", "replace")
