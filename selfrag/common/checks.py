"""Checks of settings: one wording for all of them, whatever was given in their place. Pure."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any
from urllib.parse import SplitResult, urlsplit

from selfrag.common.errors import UserError

MOST_BYTES = 200
"""Of a name; file systems take 255, and endings are to fit."""


def check_int(
    name: str, value: object, least: int = 1, most: int | None = None
) -> None:
    """Refuse what is no whole number within the bounds: one line with name, value and bounds. A truth value is none."""
    fits = (
        isinstance(value, int)
        and not isinstance(value, bool)
        and value >= least
        and (most is None or value <= most)
    )
    if not fits:
        bounds = f"of at least {least}"
        if most is not None:
            bounds = f"from {least} to {most}"
        raise UserError(f"{name}={value!r:.80}: give a whole number {bounds}")


def check_float(
    name: str,
    value: object,
    least: float = 0.0,
    most: float = math.inf,
    *,
    above: bool = False,
) -> None:
    """Refuse what is no finite number within the bounds, by a line with name, value and bounds; a truth value is none.

    With `above`, `least` itself will not do.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    fits = is_number and least <= value <= most and abs(value) < math.inf  # type: ignore[operator, arg-type]
    if not fits or (above and value == least):
        bounds = f"above {least:g}"
        if above and most < math.inf:
            bounds += f" and at most {most:g}"
        elif not above and most < math.inf:
            bounds = f"from {least:g} to {most:g}"
        elif not above:
            bounds = f"of at least {least:g}"
        raise UserError(f"{name}={value!r:.80}: give a number {bounds}")


def check_choice(name: str, value: object, known: Iterable[str]) -> None:
    """Refuse what is none of the known values, by a line with name, value and the known ones."""
    known = tuple(known)
    if value not in known:
        raise UserError(f"{name}={value!r:.80}: choose one of {', '.join(known)}")


def unknown_name(what: str, name: str, known: Iterable[str], listed: str) -> UserError:
    """Return the error for a name that is none of many values: those like it, and where all are listed."""
    near = get_close_matches(name[:80], list(known))
    hint = f"all are in {listed}"
    if near:
        hint = f"did you mean {' or '.join(near)}? All are in {listed}"
    return UserError(f"unknown {what} {name!r:.80}; {hint}")


def check_filename(name: str, value: object) -> None:
    """Refuse what is no plain name of one file or folder: a separator, a dot in front, too long, or not printable."""
    fits = (
        isinstance(value, str)
        and value.isprintable()
        and bool(value.strip())
        and len(value.encode()) <= MOST_BYTES
    )
    if not fits or str(value).startswith(".") or set(str(value)) & {"/", "\\"}:
        raise UserError(
            f"{name}={value!r:.80}: give a name of at most {MOST_BYTES} bytes, without / or a dot in front"
        )


def check_url(url: object, example: str = "http://127.0.0.1:8000") -> SplitResult:
    """Return the parts of an address that requests can be sent to; anything else is refused."""
    try:
        parts = (
            urlsplit(url)
            if isinstance(url, str) and url.isprintable() and " " not in url
            else None
        )
        if parts is not None:
            # Both raise a ValueError: a port beyond 65535, and a name that no name server could know.
            parts = (
                parts
                if parts.port != 0 and (parts.hostname or "").encode("idna")
                else None
            )
    except ValueError:
        parts = None
    if parts is None or parts.scheme not in ("http", "https"):
        # a password is not printed
        shown = url
        if isinstance(url, str):
            shown = url.rpartition("@")[2]
        raise UserError(
            f"url {shown!r:.80} is not a web address; give one like {example}"
        )
    return parts


def split_pair(
    option: str, text: str, form: str = "KEY=VALUE", example: str = "threshold=0.5"
) -> tuple[str, str]:
    """Return both sides of `KEY=VALUE`, without spaces around them.

    Raises:
        UserError: a side is empty; the message shows the form and the example.
    """
    key, _, value = (part.strip() for part in text.partition("="))
    if not (key and value):
        raise UserError(f"{option} {text!r:.80}: write it as {form}, such as {example}")
    return key, value


def parse_settings(pairs: Iterable[str], option: str = "--set") -> dict[str, Any]:
    """Return `["threshold=0.5", "mode=always"]` as fields; values are numbers, names, True, False or None."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, text = split_pair(option, pair)
        if key in settings:
            raise UserError(f"{option} {key} is given twice; give one of the two")
        settings[key] = parse_value(text)
    return settings


def parse_value(text: str) -> Any:
    """Return a number or another literal, or None, True or False in any case; other text stays as it is."""
    words = {"none": None, "true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return text
