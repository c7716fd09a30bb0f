"""Reads the text of a PDF page as fragments with their places: its characters, and the values of fields and notes."""

from __future__ import annotations

import ctypes
import math
import re
from collections import deque
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any

from selfrag.extensions.pdf.layout import Fragment, share_row
from selfrag.extensions.pdf.line_ends import clean_text
from selfrag.extensions.pdf.raised import (
    SAME_BASELINE,
    SPACE,
    Box,
    LinePiece,
    write_pieces,
)

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
_RECENT = (
    12  # fragments that text may belong to which is drawn after that of another column
)
_UPSIDE_DOWN = 2  # quarter turns
_MAX_FONT_NAME = 128  # bytes; a longer name is left out
_BOLD = re.compile(rb"bold|black|heavy|demi|cmbx", re.IGNORECASE)
_SAMPLES = 200  # characters whose direction is looked at
_DIGIT = re.compile(r"\d")
_SPACED_WORD = re.compile(r"(?<!\S)(?:[^\W\d_a-z] ){4,}[^\W\d_a-z](?!\S)")
_VOWEL = re.compile("[AEIOUÄÖÜÀÉÈÍÓÚ]")
_DROP_CAP = re.compile("[BCDFGHJKLMNPQRSTVX]")  # no word by itself
_LARGER = 1.5  # size of a large first letter, in heights of its line
_HYPHEN_AT_LINE_END = "\x02\ufffe"  # as PDFium marks it
_UNMAPPED = "\0\ufffd\uffff"
_SWAPPED = re.compile(f"[{''.join(chr(code << 8) for code in range(33, 127))}]{{4,}}")
"""ASCII letters of a font that tells the two bytes of each in the wrong order."""
_TOKEN = re.compile(
    rf"[\t \xa0]*(?:(?P<word>[^\x00-\x20\xa0{_HYPHEN_AT_LINE_END}{_UNMAPPED}]+)|(?P<hyphen>[{_HYPHEN_AT_LINE_END}])"
    rf"|(?P<line_end>[\r\n]+)|(?P<unmapped>[{_UNMAPPED}]+))"
)
"""What may follow spaces."""
_HIDDEN = 0x02 | 0x20  # flags of fields and notes: hidden, not shown on a screen


class PageCharacters:
    """The characters of a page and their places.

    They are fetched by `map` over functions of PDFium: in a loop, the steps of Python take four times as long.

    Args:
        textpage: of PDFium.

    Attributes:
        text: the characters in the order of drawing.
        lefts: left edges of their boxes, and so on.
    """

    def __init__(self, textpage: Any) -> None:
        from pypdfium2 import raw

        pointer, number = ctypes.c_void_p, ctypes.c_int
        self._origin = _bind(
            raw.FPDFText_GetCharOrigin, None, pointer, number, pointer, pointer
        )
        self._angle = _bind(raw.FPDFText_GetCharAngle, ctypes.c_float, pointer, number)
        box = _bind(raw.FPDFText_GetLooseCharBox, None, pointer, number, pointer)
        count = textpage.count_chars()
        self._page = ctypes.cast(textpage.raw, pointer).value
        text = _read_text(textpage.raw, count)
        self.text = _SWAPPED.sub(_swap_bytes, text)
        boxes = (raw.FS_RECTF * count)()
        deque(map(box, repeat(self._page), range(count), _addresses(boxes)), maxlen=0)
        sides = memoryview(boxes).cast("B").cast("f")
        self._sides = tuple(sides[side::4].tolist() for side in (0, 3, 2, 1))
        self.lefts, self.bottoms, self.rights, self.tops = self._sides

    def turns(self, index: int) -> int:
        """Return the quarter turns of a character, clockwise."""
        angle = self._angle(self._page, index)
        return round(angle / (math.pi / 2)) % 4 if angle > 0 else 0

    def box(self, index: int, turns: int) -> Box:
        """Return the box of a character, where text with these quarter turns is made upright."""
        box = (
            self.lefts[index],
            self.bottoms[index],
            self.rights[index],
            self.tops[index],
        )
        return turn_box(box, turns) if turns else box

    def cover(self, previous: int, index: int) -> None:
        """Give the spaces between two characters of a line the box of the first."""
        for side in self._sides:
            side[previous + 1 : index] = [side[previous]] * (index - previous - 1)

    def bounds(self, first: int, end: int, turns: int) -> tuple[Box, bool]:
        """Return the box around the characters of a line, and whether all are as large and as high."""
        sides = [side[first:end] for side in self._sides]
        if turns:
            boxes = [self.box(index, turns) for index in range(first, end)]
            sides = list(map(list, zip(*boxes, strict=True)))
        lefts, bottoms, rights, tops = sides
        bottom, top = min(bottoms), max(tops)
        is_level = bottom == max(bottoms) and top == min(tops)
        return (min(lefts), bottom, max(rights), top), is_level

    def height(self, first: int, end: int, turns: int) -> float:
        """Return how high the characters of a line are together."""
        if turns:
            (_, bottom, _, top), _ = self.bounds(first, end, turns)
            return top - bottom
        return max(self.tops[first:end]) - min(self.bottoms[first:end])

    def baselines(self, first: int, end: int, turns: int) -> list[float]:
        """Return the heights at which some characters stand, likewise."""
        count = end - first
        x, y = (ctypes.c_double * count)(), (ctypes.c_double * count)()
        places = range(first, end), _addresses(x), _addresses(y)
        deque(map(self._origin, repeat(self._page), *places), maxlen=0)
        heights = list(x if turns % 2 else y)
        return [-height for height in heights] if turns in (1, 2) else heights


def _swap_bytes(match: re.Match[str]) -> str:
    return match[0].encode("utf-16-le").decode("utf-16-be")


def _bind(function: Any, result: Any, *arguments: Any) -> Callable[..., Any]:
    """Return a function of PDFium that takes addresses as numbers. It is quick, so it keeps the lock of Python."""
    address = ctypes.cast(function, ctypes.c_void_p).value or 0
    return ctypes.PYFUNCTYPE(result, *arguments)(address)


def _addresses(values: ctypes.Array[Any]) -> range:
    """Return the addresses of the items of an array."""
    start, size = ctypes.addressof(values), ctypes.sizeof(values._type_)
    return range(start, start + size * len(values), size)


def _read_text(textpage: Any, count: int) -> str:
    """Return the characters of a page. PDFium gives all at once, but then it leaves out some that have no letter."""
    from pypdfium2 import raw

    units = (ctypes.c_ushort * (count + 1))()
    written = raw.FPDFText_GetText(textpage, 0, count, units)
    text = bytes(units)[: 2 * count].decode("utf-16-le", "surrogatepass")
    if written == count + 1 and len(text) == count:
        return text
    return "".join(
        chr(raw.FPDFText_GetUnicode(textpage, index)) for index in range(count)
    )


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

        self._raw, self._textpage = raw, textpage.raw
        self._characters = PageCharacters(textpage)
        self._fragments: list[Fragment] = []
        self._sources: list[list[LinePiece]] = []  # pieces of each fragment
        self._pieces: list[LinePiece] = []  # of the fragment that is being read
        self._turned = 0  # their quarter turns
        self._is_bold = False
        self._tallest = 0  # position of the tallest character that begins a word
        # positions of the last two letters that stand together
        self._pair: tuple[int, int] | None = None
        self._font = ctypes.create_string_buffer(_MAX_FONT_NAME)
        # position after the last fragment that is not upside down
        self._upside_down = 0
        self.unmapped = 0
        count = len(self._characters.text)
        samples = range(0, count, count // _SAMPLES + 1)
        turns = [self._characters.turns(index) for index in samples]
        self.turns = max(range(4), key=turns.count)

    def read(self) -> list[Fragment]:
        """Return the fragments of the page."""
        previous: int | None = None  # position of the character before
        newline = False
        space: int | None = None  # position of a space before the character
        for token in _TOKEN.finditer(self._characters.text):
            kind = token.lastgroup or "word"
            first, end = token.span(kind)
            if token.start() < first:
                space = first - 1
            if kind == "line_end":
                newline = True
                continue
            if kind == "unmapped":
                self.unmapped += end - first
                if previous is not None:
                    self._characters.cover(previous, end)
                continue
            is_joined = space is None and not newline
            if previous is None:
                self._begin(first)
            elif not is_joined:
                self._separate(previous, first, space)
            if end - first > 1:
                self._pair = end - 2, end - 1
            elif previous is not None and is_joined:
                self._pair = previous, first
            text = "-" if kind == "hyphen" else token[kind]
            self._pieces.append(LinePiece(text, first, end))
            previous, space, newline = end - 1, None, kind == "hyphen"
        self._end()
        return self._fragments

    def _separate(self, previous: int, index: int, space: int | None) -> None:
        """Begin a fragment where a line or a wide gap ends; else note a space, where there is one."""
        if self._goes_on(previous, index, space):
            return
        box_of = self._characters.box
        left, bottom, right, top = box_of(previous, self._turned)
        next_left, next_bottom, next_right, next_top = box_of(index, self._turned)
        height, larger = sorted((top - bottom, next_top - next_bottom))
        overlap = min(top, next_top) - max(bottom, next_bottom)
        gap = max(next_left - right, left - next_right)
        _, low, _, high = box_of(self._tallest, self._turned)
        beside = min(high, next_top) - max(low, next_bottom)
        if (
            overlap < _SAME_LINE * height
            # lowered text reaches into the next line
            or beside < _SAME_LINE * min(high - low, next_top - next_bottom)
            or gap > _WIDE_GAP * larger  # raised text is small
            or self._characters.turns(index) != self._turned
        ):
            self._end()
            self._begin(index)
            return
        is_capital = self._is_drop_cap(height, larger, index)
        if next_top - next_bottom > high - low:
            self._tallest = index
        self._characters.cover(previous, index)
        if not is_capital:
            self._add_space(gap, height, space)

    def _goes_on(self, previous: int, index: int, space: int | None) -> bool:
        """Note a space between words that are as large and as high, as nearly all are; return whether these are."""
        characters = self._characters
        bottoms, tops = characters.bottoms, characters.tops
        bottom, top = bottoms[index], tops[index]
        is_low = bottom == bottoms[previous] == bottoms[self._tallest]
        is_high = top == tops[previous] == tops[self._tallest]
        if self._turned or not (is_low and is_high):
            return False
        height = top - bottom
        gap = characters.lefts[index] - characters.rights[previous]
        if gap < 0:
            gap = max(gap, characters.lefts[previous] - characters.rights[index])
        if gap > _WIDE_GAP * height or characters.turns(index):
            return False
        characters.cover(previous, index)
        self._add_space(gap, height, space)
        return True

    def _add_space(self, gap: float, height: float, space: int | None) -> None:
        if space is None:
            if gap > _NO_GAP * height:
                self._pieces.append(SPACE)
        elif not self._is_letter_gap(gap, height, space):
            self._pieces.append(SPACE)
            self._pair = None

    def _is_drop_cap(self, height: float, larger: float, index: int) -> bool:
        """Return whether the text so far is the large first letter of the word that begins here."""
        if larger < _LARGER * height or len(self._pieces) != 1:
            return False
        is_letter = _DROP_CAP.fullmatch(self._pieces[0].text) is not None
        return is_letter and self._characters.text[index].islower()

    def _is_letter_gap(self, gap: float, height: float, space: int) -> bool:
        """Return whether a space that PDFium made of a gap is no wider than the gaps inside the word before it."""
        if self._pair is None:
            return False
        first, second = self._pair
        box_of = self._characters.box
        before = box_of(first, self._turned)
        letter_gap = box_of(second, self._turned)[0] - before[2]
        if letter_gap < _SPACED * height or gap > _WIDEST_LETTER_GAP * letter_gap:
            return False
        return bool(self._raw.FPDFText_IsGenerated(self._textpage, space) == 1)

    def _begin(self, index: int) -> None:
        self._turned = self._characters.turns(index)
        self._tallest = index
        self._pair = None
        self._font.value = b""
        self._raw.FPDFText_GetFontInfo(
            self._textpage, index, self._font, _MAX_FONT_NAME, None
        )
        self._is_bold = _BOLD.search(self._font.value) is not None

    def _height(self, first: int, end: int) -> float:
        return self._characters.height(first, end, self._turned)

    def _end(self) -> None:
        pieces, self._pieces = self._pieces, []
        text = _joined(pieces)
        if not text:
            return
        first, end = pieces[0].first, pieces[-1].end
        box, is_level = self._characters.bounds(first, end, self._turned)
        has_digit = _DIGIT.search(text) is not None
        touched = self._touched(first) if has_digit else None
        place = len(self._fragments) if touched is None else touched
        if touched is not None:
            base = self._fragments.pop(place)
            pieces = self._sources.pop(place) + pieces
            first, is_level = pieces[0].first, False
            text = _joined(pieces)
            left, bottom, right, top = box
            box = (
                min(left, base.left),
                min(bottom, base.bottom),
                max(right, base.right),
                max(top, base.top),
            )
        if not is_level and has_digit:
            baselines = self._characters.baselines(first, end, self._turned)
            if max(baselines) - min(baselines) > SAME_BASELINE:
                text = write_pieces(pieces, baselines, self._height)
                text = clean_text(text).strip()
        text = _SPACED_WORD.sub(_close_up, text)
        fragment = Fragment(text, *box, self._turned == self.turns, self._is_bold)
        # PDFium sorts the pieces of a line from the left of the page
        if self._turned == _UPSIDE_DOWN:
            while place > self._upside_down:
                before = self._fragments[place - 1]
                if not share_row(fragment, before) or fragment.right > before.left:
                    break
                place -= 1
        else:
            self._upside_down = len(self._fragments) + 1
        self._fragments.insert(place, fragment)
        self._sources.insert(place, pieces)

    def _touched(self, index: int) -> int | None:
        """Return the place of a recent fragment that ends where a character begins, on another level."""
        left, bottom, _, top = self._characters.box(index, self._turned)
        for place in range(len(self._fragments) - 1, -1, -1)[:_RECENT]:
            base = self._fragments[place]
            if base.upright != (self._turned == self.turns):
                continue
            if abs(left - base.right) > _NO_GAP * base.height:
                continue
            last = self._sources[place][-1].end - 1
            _, low, _, high = self._characters.box(last, self._turned)
            overlap = min(top, high) - max(bottom, low)
            is_beside = overlap > _SAME_LINE * min(top - bottom, high - low)
            if is_beside and abs(bottom - low) > SAME_BASELINE:
                return place
        return None


def _joined(pieces: Sequence[LinePiece]) -> str:
    return clean_text("".join([piece.text for piece in pieces])).strip()


def _close_up(match: re.Match[str]) -> str:
    """Return `SUMMARY` for `S U M M A R Y`; what is no word, such as `A B C D E` or `M T W T F`, stays."""
    letters = match[0].replace(" ", "")
    is_list = letters == "".join(sorted(letters)) or not _VOWEL.search(letters)
    return match[0] if is_list else letters


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
        is_hidden = raw.FPDFAnnot_GetFlags(note) & _HIDDEN
        text = None if is_hidden else _note_text(page.formenv, note)
        is_placed = raw.FPDFAnnot_GetRect(note, rectangle)
        is_plain = raw.FPDFAnnot_GetSubtype(note) in (
            raw.FPDF_ANNOT_LINK,
            raw.FPDF_ANNOT_POPUP,
        )
        raw.FPDFPage_CloseAnnot(note)
        if text and is_placed:
            box = rectangle.left, rectangle.bottom, rectangle.right, rectangle.top
            notes.append((text, box))
        if text is None and not is_plain:
            remaining += 1
        else:
            raw.FPDFPage_RemoveAnnot(page, index)
    notes.reverse()
    flat = remaining and raw.FPDFPage_Flatten(page, raw.FLAT_NORMALDISPLAY)
    return notes, flat == raw.FLATTEN_SUCCESS


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
