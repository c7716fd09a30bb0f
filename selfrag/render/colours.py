"""Names and colours of the reflection tokens, and of the page around them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from selfrag.reflection.labels import GROUPS, LabelSet, Role

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
    label.token: colours
    for labels in GROUPS
    for label, colours in zip(labels, _OF_GROUP[labels.role], strict=True)
}
"""Token string -> its colours."""

GROUP_OF: dict[str, LabelSet] = {
    label.token: labels for labels in GROUPS for label in labels
}
"""Token string -> its group."""


def slug(token: str) -> str:
    """Return the token's name as a CSS class and an HTML id."""
    return re.sub("[^a-z0-9]+", "-", token.casefold()).strip("-")


LIGHT = {
    "page": "#ffffff",
    "ink": "#1a1d21",
    "dim": "#565d66",
    "line": "#c9ced6",
    "box": "#f5f6f8",
    "link": "#0b57b0",
}
DARK = {
    "page": "#14171a",
    "ink": "#e8eaed",
    "dim": "#a9b0b9",
    "line": "#454c55",
    "box": "#1e2226",
    "link": "#8ab8ff",
}
