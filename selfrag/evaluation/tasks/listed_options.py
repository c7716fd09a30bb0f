"""The options that are listed below a question, taken off again. Pure; knows texts only.

Options are untrusted texts that may hold line breaks and what looks like the name of another option, so the listing is
matched from its end against the options themselves and never split at names.
"""

from __future__ import annotations

import string
from collections.abc import Sequence


def unlisted(text: str, options: Sequence[str]) -> str:
    """`text` without the options listed at its end, as `A: ..`, `A. ..`, `A) ..`, `(A) ..` or with numbers from 1.

    Args:
        text: a question, with its options or without.
        options: in order.

    Returns:
        What stands before the listing; `text` as it is unless every option is listed under its own name, and nothing
        comes after them.
    """
    letters = tuple(string.ascii_uppercase[: len(options)])
    numbers = tuple(str(number) for number in range(1, len(options) + 1))
    found = (_before(text, options, names) for names in (letters, numbers) if len(names) == len(options))
    return next((before for before in found if before is not None), text)


def _before(text: str, options: Sequence[str], names: Sequence[str]) -> str | None:
    for name, option in zip(reversed(names), reversed(options), strict=True):
        text, listed = text.rstrip(), option.strip()
        if not listed or not text.endswith(listed):
            return None
        text, _, line = text.removesuffix(listed).rstrip().rpartition("\n")
        if line.strip() not in (f"{name}:", f"{name}.", f"{name})", f"({name})"):
            return None
    return text.rstrip()
