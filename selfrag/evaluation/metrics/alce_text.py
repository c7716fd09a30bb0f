"""The text of an answer as ALCE's evaluation reads it: its first line, with and without bracketed citations. Pure.

Source: `eval.py` and `utils.py` of ALCE (arXiv 2305.14627). Beyond it, `[1, 2]` is read as two citations.
"""

from __future__ import annotations

import re

_MARK = re.compile(r"(?<!\s)\s*+\[(\d{1,9}(?:\s*[,;]\s*\d{1,9})*)\]")


def first_line(text: str) -> str:
    """The first line that is not blank; ALCE reads no further, because few-shot models go on with another question."""
    return text.strip().partition("\n")[0].rstrip()


def evaluated(text: str) -> str:
    """What all of ALCE's figures but those of citations read: the first line, without citations."""
    return without_marks(first_line(text)).strip()


def marks(text: str) -> tuple[int, ...]:
    """Numbers cited in square brackets, in order, repetitions included."""
    return tuple(int(number) for group in _MARK.findall(text) for number in re.split(r"[,;]", group))


def lifted(text: str) -> tuple[str, tuple[tuple[int, int], ...]]:
    """The text without citations, and where in it each number stood: `(offset, number)`, in order."""
    bare, position, found = "", 0, []
    for mark in _MARK.finditer(text):
        bare += text[position : mark.start()]
        position = mark.end()
        found += [(len(bare), number) for number in marks(mark[0])]
    return bare + text[position:], tuple(found)


def without_marks(text: str) -> str:
    """The text without citations and the white space before them."""
    return _MARK.sub("", text)
