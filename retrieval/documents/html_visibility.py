"""Decides by the markup of an element whether it is left out of a page: hidden, furniture, controls, or no text at all.

Style sheets and scripts are not run, so text that a class or a script hides is read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum, auto
from typing import TypeAlias

HtmlAttributes: TypeAlias = Mapping[str, str]
"""Values by name, in lower case."""


class Omission(Enum):
    """Why an element is left out."""

    NO_TEXT = auto()  # scripts, styles, templates, embedded objects and controls
    HIDDEN = auto()  # hidden by an attribute or an inline style
    ARIA_HIDDEN = auto()  # hidden from screen readers, but often shown
    NOSCRIPT = auto()  # for browsers that run no scripts
    # navigation, header and footer of the page, notices about cookies
    FURNITURE = auto()


_NO_TEXT_NAMES = (
    "script style iframe frame object embed canvas audio video applet select datalist textarea input "
    "noframes noembed rp meter progress defs symbol metadata desc "
)
_NO_TEXT = frozenset(_NO_TEXT_NAMES.split())
_FURNITURE_ROLES = frozenset(
    ("navigation", "banner", "contentinfo", "search", "menu", "menubar", "toolbar")
)
_DIALOG_ROLES = frozenset(("dialog", "alertdialog"))
_PAGE_FURNITURE = frozenset(("footer", "aside"))
"""Furniture outside the content of a page; inside they belong to it. For `header` see `html.py`."""
_CONTENT = frozenset(("main", "article", "section"))
_ROOTS = frozenset(("html", "body", "main", "article"))
_LABELLING_BUTTON = ("aria-expanded", "aria-controls")
_STYLE_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_MAX_STYLE = 10_000  # characters of an inline style, and of a class, that are looked at
_COOKIES = re.compile(
    r"(?:^|[\s_-])(?:cookies?|gdpr|consent)[\s_-]?"
    r"(?:alert|banner|bar|box|consent|dialog|info|law|layer|message|modal|note|notice|notification|overlay|popup|wall"
    r"|warning)"
    r"|onetrust|cookiebot|cookieconsent|didomi|usercentrics|truste-|qc-cmp|sp_message|klaro|borlabs-cookie|iubenda-cs",
    re.IGNORECASE,
)
_NAMED_FURNITURE = re.compile(
    r"(?:^|\s)(?:bread-?crumbs?|pagination|pager|skip-?links?|(?:social|share)[_-](?:buttons?|links?|bar|icons?|media)"
    r"|(?:(?:site|page|global|main|primary|top)[_-])?(?:footer|nav|navbar|navigation)"
    r"|(?:site|global|main|primary|top|mega|nav)[_-]?menu|widget-area|newsletter-signup)(?:\s|$)",
    re.IGNORECASE,
)
"""Names of ids and classes that many pages give their furniture. Those that also name content are not here."""
_STRUCK = frozenset(("del", "s", "strike"))
_ANCHOR = re.compile(
    r"(?:^|\s)(?:headerlink|hash-link|header-anchor|heading-link|anchorjs-link|permalink)(?:\s|$)"
)


def is_content(tag: str, attributes: HtmlAttributes) -> bool:
    """Tell whether an element holds the content of a page, so that headers in it are not those of the page."""
    return tag in _CONTENT or attributes.get("role") in _CONTENT


def omission_of(
    tag: str, attributes: HtmlAttributes, *, in_content: bool, labels: bool
) -> Omission | None:
    """Return why an element is left out, or None if it is read.

    Args:
        tag: its name in lower case.
        attributes: its attributes.
        in_content: whether an element around it holds the content of the page.
        labels: whether an element around it is a heading or a label, in which a button is text.
    """
    if tag in _NO_TEXT and not _is_formula(tag, attributes):
        return Omission.NO_TEXT
    if tag == "noscript":
        return Omission.NOSCRIPT
    if tag == "template" and not attributes.keys() & {"shadowrootmode", "shadowroot"}:
        return Omission.NO_TEXT
    if (
        tag == "button"
        and not labels
        and not any(name in attributes for name in _LABELLING_BUTTON)
    ):
        return Omission.NO_TEXT
    if not attributes and tag != "dialog":
        return (
            Omission.FURNITURE if _is_furniture(tag, attributes, in_content) else None
        )
    if _is_hidden(tag, attributes):
        return Omission.HIDDEN
    if attributes.get("aria-hidden", "").strip().lower() == "true":
        return Omission.ARIA_HIDDEN
    return Omission.FURNITURE if _is_furniture(tag, attributes, in_content) else None


def _is_formula(tag: str, attributes: HtmlAttributes) -> bool:
    return tag == "script" and attributes.get("type", "").startswith("math/tex")


def _is_hidden(tag: str, attributes: HtmlAttributes) -> bool:
    """Tell whether an attribute or an inline style hides an element. What a reader can unfold is not hidden."""
    if "hidden" in attributes:
        return (
            attributes["hidden"].lower() != "until-found"
            and attributes.get("role") != "tabpanel"
        )
    if "popover" in attributes or (tag == "dialog" and "open" not in attributes):
        return True
    values = _inline_style(attributes)
    return (
        values.get("display") == "none"
        or values.get("visibility") in ("hidden", "collapse")
        or values.get("content-visibility") == "hidden"
        or values.get("font-size") in ("0", "0px", "0em", "0pt", "0%")
    )


def is_struck(tag: str, attributes: HtmlAttributes) -> bool:
    """Tell whether an element or its inline style strikes its text through."""
    if "decoration" not in attributes.get("style", "").lower():
        return tag in _STRUCK
    style = _inline_style(attributes)
    decoration = style.get("text-decoration-line", style.get("text-decoration"))
    if decoration is None:
        return tag in _STRUCK
    return "line-through" in decoration


def _inline_style(attributes: HtmlAttributes) -> dict[str, str]:
    """Return the properties of the inline style of an element."""
    style = attributes.get("style")
    if not style:
        return {}
    values: dict[str, str] = {}
    for declaration in _STYLE_COMMENT.sub("", style[:_MAX_STYLE].lower()).split(";"):
        name, _, value = declaration.partition(":")
        values[name.strip()] = value.replace("!important", "").strip()
    return values


def _is_furniture(tag: str, attributes: HtmlAttributes, in_content: bool) -> bool:
    if tag in ("nav", "search"):
        return True
    if tag in _PAGE_FURNITURE and not in_content:
        return True
    role = attributes.get("role", "").strip().lower()
    if role in _FURNITURE_ROLES or (role == "complementary" and not in_content):
        return True
    if role in _DIALOG_ROLES and attributes.get("aria-modal") == "true":
        return True
    names = f"{attributes.get('id', '')} {attributes.get('class', '')}"[:_MAX_STYLE]
    if len(names) < 2 or tag in _ROOTS:
        return False
    if not in_content and _NAMED_FURNITURE.search(names):
        return True
    return _COOKIES.search(names) is not None or (
        tag == "a" and _ANCHOR.search(names) is not None
    )
