"""Which language a text is in. Only for sources that do not say it themselves."""

from __future__ import annotations

import re
from collections.abc import Callable

from selfrag.errors import UserError, require

_ENOUGH = 2_000  # characters; more hardly change the answer


def detector(language: str) -> Callable[[str], bool]:
    """A test whether a text is in `language` (two letters, ISO 639-1), by py3langid.

    Raises:
        MissingExtraError: py3langid is not installed.
        UserError: this is no code of a language.
    """
    if not re.fullmatch("[a-z]{2,3}", language):
        raise UserError(f"{language!r} is no code of a language, such as 'en'")
    classify = require("py3langid", extra="data").classify
    return lambda text: bool(classify(text[:_ENOUGH])[0] == language)
