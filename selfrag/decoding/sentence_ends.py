"""Where the first sentence of a text ends, for segments of models without reflection tokens. Pure, the same everywhere.

A full stop may belong to an abbreviation or a number, so an end is sure only when something follows: callers look one
token ahead.
"""

from __future__ import annotations

import re

STOPS = ".!?\u2026\u3002\uff01\uff1f\u0964\u061f"
"""Characters after which a sentence may end: Latin, Chinese and Japanese, Hindi, Arabic."""
_WIDE = "\u3002\uff01\uff1f\u0964\u061f"
_CLOSING = "\"'\u2019\u201d\u00bb)\\]*_"
_MARK = re.compile(f"[{STOPS}]+[{_CLOSING}]*|\n+")
_ABBREVIATIONS = frozenset(
    """al approx art bzw ca cf co corp dept dr e.g ed eds esp est etc fig gen gov hon i.e inc jr lt ltd mr mrs ms mt nr
    op p.s ph.d pp prof rep rev sen sgt sr st usw vol vs z.b""".split()  # noqa: SIM905 - a list would be longer
)
"""What is written with a full stop inside sentences; English, German and French."""
_BETWEEN_WORDS = re.compile(r"[\s(\"']")
_BREAKS = re.compile(r"[ \t]*\n\s*")
_INITIALS = re.compile(r"(?:[^\W\d]\.)*[^\W\d]")


def sentence_end(text: str) -> int | None:
    """Return the number of characters of the first sentence, with line breaks after it; None if none is sure to end.

    An end is sure if something follows it that is not its continuation.
    """
    for mark in _MARK.finditer(text):
        begin, end = mark.span()
        if mark.group()[0] == "\n":
            if text[:begin].strip() and end < len(text):
                return end
            continue
        after = text[end:]
        if not after or not _ends(text[:begin], mark.group(), after):
            continue
        breaks = _BREAKS.match(after)
        if breaks is not None:
            end += breaks.end()
        return end
    return None


def _ends(before: str, mark: str, after: str) -> bool:
    """Return whether a sentence ends at a mark, with text on both sides."""
    if mark[0] in _WIDE:
        return True
    if not after[0].isspace():
        return False  # 3.14, example.com
    following = after.lstrip()
    breaks = "\n" in after[: len(after) - len(following)]
    if following[:1].islower():
        return False
    if not following and not breaks:
        return False  # after a space the sentence may still go on
    if mark != ".":
        return True
    last = _BETWEEN_WORDS.split(before)[-1]
    is_item = last.isdigit() and last == before.strip()  # `1. Paris`
    if is_item or breaks:
        return not is_item
    return _INITIALS.fullmatch(last) is None and last.casefold() not in _ABBREVIATIONS
