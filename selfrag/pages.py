"""Pages of one file that open from disk: untrusted text made inert, style sheet, frame. No script runs on them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape

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

_RULES = """
* { box-sizing: border-box }
html { color-scheme: light dark }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, sans-serif }
main, header, footer { max-width: 66rem; margin: 0 auto; padding: 0 1rem }
h1 { font-size: 1.6rem; margin-bottom: .3rem } h2 { font-size: 1.25rem; margin-top: 2.2rem } h3 { font-size: 1rem }
a { color: var(--link) }
nav ul { display: flex; flex-wrap: wrap; gap: .2rem 1rem; padding: 0; list-style: none }
.figures { display: flex; flex-wrap: wrap; gap: 1rem 2rem } figure { margin: 0 }
.skip { position: absolute; left: -99rem } .skip:focus { left: 1rem; top: .5rem; background: var(--page) }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px }
.dim { color: var(--dim) } code, pre { font: .9em/1.4 ui-monospace, monospace; overflow-wrap: anywhere }
.scroll { overflow-x: auto } table { border-collapse: collapse; font-size: .92rem }
caption { text-align: left; color: var(--dim); padding: .2rem 0 }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .6rem; text-align: right; vertical-align: top }
th:first-child, td.text { text-align: left; overflow-wrap: anywhere; min-width: 8rem }
tr.total th, tr.total td { border-top: 2px solid var(--ink) }
tr.chosen { font-weight: 700 }
svg { max-width: 100%; height: auto } svg text { font: 12px system-ui, sans-serif } .ink { fill: var(--ink) }
.on { fill: #000; font-weight: 700 } .bar { stroke: var(--page); stroke-width: 1 } .plain { fill: #5b8def }
fieldset { border: 1px solid var(--line); border-radius: .4rem; display: flex; flex-wrap: wrap; gap: .3rem .9rem }
article { border: 1px solid var(--line); border-radius: .5rem; margin: 1rem 0; padding: .6rem .9rem; contain: content;
  overflow: hidden }
article h3 { margin: 0 0 .4rem; overflow-wrap: anywhere }
.instruction, .target, .body { white-space: pre-wrap; overflow-wrap: anywhere }
.instruction { background: var(--box); border-radius: .4rem; padding: .5rem .7rem; margin: 0 0 .5rem }
.token { border-radius: .3rem; padding: 0 .3rem; font-weight: 600; font-size: .88em; white-space: nowrap;
  border: 1px solid currentColor }
details { border-left: 3px solid var(--line); margin: .3rem 0; padding-left: .6rem }
summary { cursor: pointer; color: var(--dim); overflow-wrap: anywhere } details.passage { background: var(--box) }
.problem { border-left: 4px solid #d93636; padding-left: .6rem }
@media print { fieldset, nav ul { display: flex; flex-wrap: wrap; gap: .2rem 1rem; padding: 0; list-style: none }
.figures { display: flex; flex-wrap: wrap; gap: 1rem 2rem } figure { margin: 0 }
.skip { display: none } article { break-inside: avoid } }
@media (prefers-reduced-motion: no-preference) { html { scroll-behavior: smooth } }
"""


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
