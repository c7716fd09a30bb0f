"""Numbers of lists as Word files and web pages show them: `4`, `d`, `IV`."""

from __future__ import annotations

_ROMAN = (
    (1000, "m"),
    (900, "cm"),
    (500, "d"),
    (400, "cd"),
    (100, "c"),
    (90, "xc"),
    (50, "l"),
    (40, "xl"),
    (10, "x"),
    (9, "ix"),
    (5, "v"),
    (4, "iv"),
    (1, "i"),
)
_CHINESE = "〇一二三四五六七八九"


def format_number(value: int, kind: str) -> str:
    """Return a number as a list shows it, such as `iv` or `d`; decimal where the kind is not known.

    After `z`, Word goes on with `aa`, `bb` (`lowerLetter`), and web pages with `aa`, `ab` (`lowerAlpha`).
    """
    match kind:
        case "lowerLetter" | "upperLetter" if 1 <= value <= 780:
            text = chr(ord("a") + (value - 1) % 26) * ((value - 1) // 26 + 1)
        case "lowerAlpha" | "upperAlpha" if value >= 1:
            text = _alphabetic(value)
        case "lowerRoman" | "upperRoman" if 1 <= value <= 3999:
            text = _roman(value)
        case (
            "chineseCounting"
            | "chineseCountingThousand"
            | "japaneseCounting"
            | "ideographDigital"
        ) if 0 < value < 100:
            text = _chinese(value)
        case "decimalZero":
            text = f"{value:02d}"
        case "none" | "bullet":
            text = ""
        case _:
            text = str(value)
    return text.upper() if kind.startswith("upper") else text


def _alphabetic(value: int) -> str:
    letters = ""
    while value:
        value, place = divmod(value - 1, 26)
        letters = chr(ord("a") + place) + letters
    return letters


def _roman(value: int) -> str:
    letters = ""
    for size, sign in _ROMAN:
        letters += sign * (value // size)
        value %= size
    return letters


def _chinese(value: int) -> str:
    tens, ones = divmod(value, 10)
    text = ""
    if tens > 1:
        text = _CHINESE[tens]
    if tens:
        text += "十"
    if ones:
        text += _CHINESE[ones]
    return text
