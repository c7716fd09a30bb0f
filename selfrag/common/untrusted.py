"""Text that others wrote, made harmless: one function for each purpose, and no other module has one.

- `printable`: for whatever leaves, by any door: a terminal, a log, a page, a reply. `cut` is the same for a text of any
  length, `clean` for decoded JSON, `inert` for HTML;
- `unmarked`: for a server that tokenises what it is sent;
- `replace_surrogates`: for a file in UTF-8.

Markdown is escaped by `selfrag.render.tables.escape`, which begins with `printable`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ud800-\udfff\ufdd0-\ufdef\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
    "|\r(?!\n)"
    "|(?<=[\u200c\u200d\ufe0e\ufe0f])[\u200c\u200d\ufe0e\ufe0f]"
)
"""What a reader cannot see, or what rearranges a line. Tabs and line feeds are none.

Controls, halves of characters, marks of writing direction, separators of lines, invisible characters, tags and the
variation selectors that only hide data. One joiner (U+200C, U+200D) stays where it stands, since many scripts cannot be
written without them, and so does one of the selectors for text and emoji (U+FE0E, U+FE0F); a row of them is no writing.
"""

_OPEN, _CLOSE = "<\u226e\ufe64\uff1c", ">\u226f\ufe65\uff1e"
_LEFT, _RIGHT = "\\[\ufe47\uff3b", "\\]\ufe48\uff3d"
_BAR = "|\uff5c"

_MARKER = re.compile(
    # <s>, </s>, <|im_end|>, <\uff5cUser\uff5c>, <think>, <0x0A>; but no sentence tag of a dialect, such as <c12>
    rf"[{_OPEN}](?! |[cri][0-9]++>)(?=[^{_OPEN}{_CLOSE}]*+(?:[{_CLOSE}]|\Z))"
    # [INST], [PAD], [Utility:5]; but no citation [1], [2, 3], no JSON, no heading [Document 7]
    rf"|[{_LEFT}](?! |Document |[{{\"]|[0-9 ,;.:\u2013-]*+[{_RIGHT}])(?=[^{_LEFT}{_RIGHT}]*+(?:[{_RIGHT}]|\Z))"
    rf"|[{_OPEN}](?=[{_BAR}])"  # <|
    # ]~b], [e~[, >>TITLE<<, |NEWLINE|, also with characters between that some tokenizers drop
    rf"|[{_LEFT}{_RIGHT}](?=[^ {_LEFT}{_RIGHT}~\uff5e]*+[~\uff5e])"
    rf"|[{_CLOSE}](?=[^\w {_OPEN}{_CLOSE}]*+[{_CLOSE}](?! )[^{_OPEN}{_CLOSE}]*+[{_OPEN}])"
    rf"|[{_BAR}](?=[^ \t\n{_BAR}{_OPEN}{_CLOSE}]++[{_BAR}])"
)


_CLOSING = re.compile(rf"[{_CLOSE}{_RIGHT}]")


def replace_surrogates(text: str) -> str:
    """Return the text with lone surrogates replaced by U+FFFD, so that it can be written as UTF-8.

    Python makes them of bytes on a command line that are no UTF-8, and of escapes in JSON.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def printable(text: str) -> str:
    """Return the text with U+FFFD for every character of `UNSEEN`; offsets into it stay."""
    return UNSEEN.sub("\ufffd", text)


def unmarked(text: str, own: Iterable[str] = ()) -> str:
    r"""Return the text with a space after every bracket that may open a control token, as in `< |im_end|>`, `[ INST]`.

    For servers that tokenise what they are sent, whatever their model: it goes by the form of markers, not by names.
    Brackets that Unicode folds into others count (`\uff1c`), and so does one that nothing closes before the text ends,
    since what follows may come from elsewhere. A space stays under every normalisation; invisible characters do not.
    Markers that no bracket opens, such as `eng_Latn`, are not known.

    Args:
        text: of others, or with text of others in it. Lone surrogates become U+FFFD.
        own: markers that the caller's own wording has, such as `<guardian>`, which stay.
    """
    kept = tuple(own)

    def spaced(match: re.Match[str]) -> str:
        stays = bool(kept) and match.string.startswith(kept, match.start())
        if stays:
            return match[0]
        return f"{match[0]} "

    return _MARKER.sub(spaced, replace_surrogates(text))


def markers(text: str) -> frozenset[str]:
    """Return what `unmarked` would change in a text, each with the bracket that closes it."""
    marked = set()
    for match in _MARKER.finditer(text):
        end = _CLOSING.search(text, match.end())
        if end is not None:
            marked.add(text[match.start() : end.end()])
    return frozenset(marked)


MOST_CUT = 20_000
"""Characters that `cut` keeps of a text by default."""
NAME = 200
"""Characters that are shown of a title or an id."""


def cut(text: str, most: int = MOST_CUT) -> str:
    """Text of others for people: nothing in it that cannot be shown, and where it is long, how much is left out."""
    return printable(shorten(text, most))


def clean(value: Any, most: int | None = None) -> Any:
    """Return decoded JSON with every text `printable`, names of fields too; with `most`, no text is longer."""
    if isinstance(value, str):
        return printable(value) if most is None else cut(value, most)
    if isinstance(value, Mapping):
        return {clean(name, most): clean(part, most) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [clean(part, most) for part in value]
    return value


def inert(text: str, most: int = MOST_CUT) -> str:
    """Return `cut` for the inside of an element or of a quoted attribute."""
    return escape(cut(text, most))


_SINGULAR_VERBS = {"are": "is", "were": "was", "have": "has", "do": "does"}


def count_of(number: float, nouns: str, verb: str = "", form: str = "") -> str:
    """Return a number with its noun, and perhaps a verb, that agree: `1 search is`; both are given in the plural."""
    if number == 1:
        verb = _SINGULAR_VERBS.get(verb, verb and f"{verb}s")
        if nouns.endswith("ies"):
            nouns = f"{nouns[:-3]}y"
        elif nouns.endswith(("ches", "shes", "sses", "xes")):
            nouns = nouns[:-2]
        else:
            nouns = nouns.removesuffix("s")
    return f"{number:{form}} {nouns} {verb}".rstrip()


def shorten(text: str, most: int) -> str:
    """Return the beginning of a text, and how many characters are left out of one that is longer than `most`."""
    if len(text) <= most:
        return text
    return (
        f"{text[:most]} ... ({count_of(len(text) - most, 'more characters', form=',')})"
    )
