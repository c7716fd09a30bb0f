"""Pages of one HTML file: style sheet, content security policy, and the frame around a body."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import Any

from selfrag.common.errors import count_of
from selfrag.common.untrusted import cut, inert
from selfrag.render.colours import COLOURS, DARK, LIGHT, slug


def style_sheet(*page_rules: str) -> str:
    """Return the style sheet, with the rules of one page last."""
    badges, dark = [], []
    for token, colours in COLOURS.items():
        badge = _badge(token, colours.light)
        badges.append(f"{badge} .b-{slug(token)} {{ fill: {colours.bar} }}")
        dark.append(_badge(token, colours.dark))
    return "\n".join(
        [
            f":root {{ {_variables(LIGHT)} }}",
            files(__package__).joinpath("page.css").read_text(encoding="utf-8").strip(),
            *badges,
            f"@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} {' '.join(dark)} }}",
            *page_rules,
        ]
    )


def _badge(token: str, colours: tuple[str, str]) -> str:
    background, text = colours
    return f".t-{slug(token)} {{ background: {background}; color: {text} }}"


def picked_out(box: str, rows: str) -> str:
    """Return the rule by which a radio button with this id hides the rows that it does not pick, without a script."""
    return f"body:has(#{box}:checked) {rows} {{ display: none }}"


def _variables(colours: dict[str, str]) -> str:
    return "; ".join(f"--{name}: {value}" for name, value in colours.items())


def page_policy(script: str = "", *, pictures: bool = False, connect: str = "") -> str:
    """Return a content security policy: even if some text became mark-up, nothing else could run or be fetched.

    Args:
        script: the text of the one script that may run.
        pictures: whether pictures that are part of the file (`data:`) may be shown.
        connect: the addresses that the script may ask, such as `'self'`; none by default.
    """
    rules = [
        "default-src 'none'",
        "style-src 'unsafe-inline'",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    if script:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        rules.append(f"script-src 'sha256-{digest}'")
    if pictures:
        rules.append("img-src data:")
    if connect:
        rules.append(f"connect-src {connect}")
    return "; ".join(rules)


MOST_VISIBLE = 6_000
"""Characters that a page shows of a text by default."""


def visible(text: str, most: int = MOST_VISIBLE) -> str:
    """Return `cut` for a page, which has many texts."""
    return cut(text, most)


def templates(package: str, folder: str) -> Any:
    """Return the templates of a package with escaping on; `visible` shows and cuts the text of others."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(package, folder),
        autoescape=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"visible": visible, "slug": slug, "count_of": count_of}
    return environment


def document(
    title: str, style: str, body: str, policy: str = "", head: str = ""
) -> str:
    """Return a page; `body` and `head` are HTML, `title` is text. Without a policy it runs no script."""
    policy = policy or page_policy()
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"{head}<title>{inert(title, 160)}</title>\n<style>\n{style}\n</style></head>\n<body>{body}</body></html>\n"
    )
