"""Letters for the characters of the fonts Symbol and Wingdings, which Word keeps by their place in the font."""

# ruff: noqa: RUF001 - letters that look like others are what the tables are for

from __future__ import annotations

import re

_PRIVATE_USE = re.compile("[\uf000-\uf0ff]")
_SYMBOL = {
    0x20: " !∀#∃%&∋()∗+,−./0123456789:;<=>?",
    0x40: "≅ΑΒΧΔΕΦΓΗΙϑΚΛΜΝΟΠΘΡΣΤΥςΩΞΨΖ[∴]⊥_",
    0x60: "‾αβχδεφγηιϕκλμνοπθρστυϖωξψζ{|}∼",
    0xA0: "€ϒ′≤⁄∞ƒ♣♦♥♠↔←↑→↓°±″≥×∝∂•÷≠≡≈…⏐⎯↵",
    0xC0: "ℵℑℜ℘⊗⊕∅∩∪⊃⊇⊄⊂⊆∈∉∠∇®©™∏√⋅¬∧∨⇔⇐⇑⇒⇓",
    0xE0: "◊〈®©™∑⎛⎜⎝⎡⎢⎣⎧⎨⎩⎪",
    0xF1: "〉∫⌠⎮⌡⎞⎟⎠⎤⎥⎦⎫⎬⎭",
}
"""The encoding of the font, from each of these places on."""
_WINGDINGS = {
    0x28: "☎",
    0x2A: "✉",
    0x6C: "●",
    0x6E: "■",
    0x6F: "☐",
    0x71: "☐",
    0x76: "❖",
    0xA7: "▪",
    0xA8: "☐",
    0xD8: "➢",
    0xDF: "←",
    0xE0: "→",
    0xE1: "↑",
    0xE2: "↓",
    0xF0: "⇨",
    0xFB: "✗",
    0xFC: "✓",
    0xFD: "☒",
    0xFE: "☑",
}
_WINGDINGS_2 = {0x4F: "✗", 0x50: "✓", 0x51: "☒", 0x52: "☑", 0xA3: "☐"}


def _letters(starts: dict[int, str]) -> dict[int, str]:
    letters: dict[int, str] = {}
    for start, text in starts.items():
        letters.update(enumerate(text, start))
    return letters


_FONTS = {
    "symbol": _letters(_SYMBOL),
    "wingdings": _WINGDINGS,
    "wingdings 2": _WINGDINGS_2,
}


def symbol_text(font: str, code: int) -> str | None:
    """Return the letter at a place of a font. None where the font or the place is not known.

    Args:
        font: its name.
        code: the place, also as a character of the private use area (U+F000 to U+F0FF).
    """
    letters = _FONTS.get(font.lower())
    if 0xF000 <= code <= 0xF0FF:
        code -= 0xF000
        if letters is None:
            return None
    if letters is not None:
        return letters.get(code)
    return chr(code) if 0x20 <= code < 0xD800 else None


def read_private_use(font: str, text: str) -> str:
    """Replace characters of the private use area by the letters of the font, where they are known."""
    return _PRIVATE_USE.sub(
        lambda match: symbol_text(font, ord(match[0])) or match[0], text
    )
