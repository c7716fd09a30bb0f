"""Untrusted text as inert HTML: no mark-up, no control characters, no hidden characters, no unbounded length.

What a reader could not see, or what would rearrange the line, is shown by its code point.
"""

from __future__ import annotations

from html import escape

from selfrag.untrusted import UNSEEN

LONGEST = 6_000
"""Characters of one text that are shown; how many more there are is said."""


def visible(text: str, longest: int = LONGEST) -> str:
    """Plain text, every character of which can be seen; cut if it is longer than `longest`."""
    cut = text[:longest]
    shown = UNSEEN.sub(lambda match: f"\u27e8U+{ord(match[0]):04X}\u27e9", cut.replace("\r\n", "\n"))
    return shown if len(text) <= longest else f"{shown} \u2026 ({len(text) - longest:,} more characters)"


def inert(text: str, longest: int = LONGEST) -> str:
    """`visible`, for the inside of an element or of a quoted attribute."""
    return escape(visible(text, longest), quote=True)


def isolated(text: str, longest: int = LONGEST) -> str:
    """An element whose content cannot change the writing direction of what is around it."""
    return f'<bdi dir="auto">{inert(text, longest)}</bdi>'
