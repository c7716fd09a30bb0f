"""Text that others wrote, for people to read: nothing in it is invisible, and what is left out is said."""

from __future__ import annotations

from html import escape

from selfrag.common.untrusted import UNSEEN, printable

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


TEXT, NAME = 20_000, 200
"""Characters that are shown of a text, and of a title or an id."""


def cut(text: str, most: int = TEXT) -> str:
    """Text of others for people: nothing in it that cannot be shown, and where it is long, how much is left out."""
    left_out = len(text) - most
    return printable(text if left_out <= 0 else f"{text[:most]} ... ({left_out:,} characters more)")
