"""What the scripts share: a user's error in one line with exit code 2, and progress against the clock."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from selfrag.common.errors import UserError
from selfrag.common.untrusted import printable

P = ParamSpec("P")


def command(main: Callable[P, int]) -> Callable[P, int]:
    """Decorate a script's main function: a `UserError` is one line on the error stream and exit code 2."""

    @wraps(main)
    def run(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            return main(*args, **kwargs)
        except UserError as error:
            print(printable(str(error)), file=sys.stderr)
            return 2

    return run


def progress() -> Callable[[str], None]:
    """Return a function that prints lines to the error stream, each with the seconds since now."""
    start = time.perf_counter()

    def say(what: str) -> None:
        print(
            f"[{time.perf_counter() - start:6.0f} s] {what}",
            file=sys.stderr,
            flush=True,
        )

    return say
