"""Pages of one HTML file: style sheet, content security policy, and the frame around a body."""

from __future__ import annotations

from importlib.resources import files

from selfrag.render.colours import COLOURS, DARK, LIGHT, slug
from selfrag.render.text import inert


def style_sheet(*own: str) -> str:
    """The style sheet, with the rules of one page last."""
    badges = [
        f".t-{slug(t)} {{ background: {c.light[0]}; color: {c.light[1]} }} .b-{slug(t)} {{ fill: {c.bar} }}"
        for t, c in COLOURS.items()
    ]
    dark = [f".t-{slug(t)} {{ background: {c.dark[0]}; color: {c.dark[1]} }}" for t, c in COLOURS.items()]
    return "\n".join(
        [
            f":root {{ {_variables(LIGHT)} }}",
            files(__package__).joinpath("page.css").read_text(encoding="utf-8").strip(),
            *badges,
            f"@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} {' '.join(dark)} }}",
            *own,
        ]
    )


def picked_out(box: str, rows: str) -> str:
    """The rule by which a radio button with this id hides the rows that it does not pick, without a script."""
    return f"body:has(#{box}:checked) {rows} {{ display: none }}"


def _variables(colours: dict[str, str]) -> str:
    return "; ".join(f"--{name}: {value}" for name, value in colours.items())


POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""Content security policy: even if some text became mark-up, no script of it could run and nothing be fetched."""


def document(title: str, style: str, body: str, *, pictures: bool = False) -> str:
    """A whole page, which runs no script and asks no address for anything; `body` is HTML, `title` is text.

    With `pictures` those that are part of the file (`data:`) may be shown.
    """
    policy = f"{POLICY}; img-src data:" if pictures else POLICY
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>{inert(title, 160)}</title>\n<style>\n{style}\n</style></head>\n<body>{body}</body></html>\n"
    )
