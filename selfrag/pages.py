"""Pages of one file that open from disk: untrusted text made inert, style sheet, frame. No script runs on them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape
from importlib.resources import files

from selfrag.reflection.labels import GROUPS, LabelSet, Role
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


NAMES: dict[Role, str] = {
    Role.RETRIEVE: "Retrieve",
    Role.RELEVANCE: "IsRel",
    Role.SUPPORT: "IsSup",
    Role.UTILITY: "IsUse",
}
"""The paper's names of the groups."""


@dataclass(frozen=True, slots=True)
class Colours:
    """Colours of one token: (background, text) of its badge in the light and in the dark, and of its bar."""

    light: tuple[str, str]
    dark: tuple[str, str]
    bar: str


_BLUE = Colours(("#dbeafe", "#1e3a8a"), ("#1e3a8a", "#dbeafe"), "#3b82f6")
_GREY = Colours(("#e5e7eb", "#374151"), ("#374151", "#e5e7eb"), "#8b94a3")
_VIOLET = Colours(("#ede9fe", "#5b21b6"), ("#4c1d95", "#ede9fe"), "#a78bfa")
_GREEN = Colours(("#dcfce7", "#14532d"), ("#14532d", "#dcfce7"), "#22a352")
_LIME = Colours(("#ecfccb", "#3f6212"), ("#365314", "#ecfccb"), "#84b31f")
_AMBER = Colours(("#fef3c7", "#78350f"), ("#78350f", "#fef3c7"), "#dba00b")
_ORANGE = Colours(("#ffedd5", "#7c2d12"), ("#7c2d12", "#ffedd5"), "#ea6a1c")
_RED = Colours(("#fee2e2", "#7f1d1d"), ("#7f1d1d", "#fee2e2"), "#d93636")

_OF_GROUP: dict[Role, tuple[Colours, ...]] = {
    Role.RETRIEVE: (_BLUE, _GREY, _VIOLET),
    Role.RELEVANCE: (_GREEN, _ORANGE),
    Role.SUPPORT: (_GREEN, _AMBER, _RED),
    Role.UTILITY: (_RED, _ORANGE, _AMBER, _LIME, _GREEN),
}

COLOURS: dict[str, Colours] = {
    label.token: colours for labels in GROUPS for label, colours in zip(labels, _OF_GROUP[labels.role], strict=True)
}
"""Token string -> its colours."""

GROUP_OF: dict[str, LabelSet] = {label.token: labels for labels in GROUPS for label in labels}
"""Token string -> its group."""


def slug(token: str) -> str:
    """The token's name as a CSS class and an HTML id."""
    return re.sub("[^a-z0-9]+", "-", token.casefold()).strip("-")


LIGHT = {"page": "#ffffff", "ink": "#1a1d21", "dim": "#565d66", "line": "#c9ced6", "box": "#f5f6f8", "link": "#0b57b0"}
DARK = {"page": "#14171a", "ink": "#e8eaed", "dim": "#a9b0b9", "line": "#454c55", "box": "#1e2226", "link": "#8ab8ff"}

_RULES = files(__package__).joinpath("page.css").read_text(encoding="utf-8")


def style_sheet(*own: str) -> str:
    """The style sheet.

    Args:
        own: rules of one page; they come last.
    """
    badges = [
        f".t-{slug(t)} {{ background: {c.light[0]}; color: {c.light[1]} }} .b-{slug(t)} {{ fill: {c.bar} }}"
        for t, c in COLOURS.items()
    ]
    dark = [f".t-{slug(t)} {{ background: {c.dark[0]}; color: {c.dark[1]} }}" for t, c in COLOURS.items()]
    return "\n".join(
        [
            f":root {{ {_variables(LIGHT)} }}",
            _RULES.strip(),
            *badges,
            f"@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} {' '.join(dark)} }}",
            *own,
        ]
    )


def picked_out(box: str, rows: str) -> str:
    """The rule by which a radio button hides what it does not pick, without a script.

    Args:
        box: id of the button.
        rows: selector of what disappears while it is checked.
    """
    return f"body:has(#{box}:checked) {rows} {{ display: none }}"


def _variables(colours: dict[str, str]) -> str:
    return "; ".join(f"--{name}: {value}" for name, value in colours.items())


POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""Content security policy: even if some text became mark-up, no script of it could run and nothing be fetched."""


def document(title: str, style: str, body: str, *, pictures: bool = False) -> str:
    """A whole page, which runs no script and asks no address for anything.

    Args:
        title: text.
        style: the style sheet.
        body: HTML.
        pictures: whether pictures that are part of the file (`data:`) may be shown.
    """
    policy = f"{POLICY}; img-src data:" if pictures else POLICY
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>{inert(title, 160)}</title>\n<style>\n{style}\n</style></head>\n<body>{body}</body></html>\n"
    )
