"""What goes wrong becomes one line and an exit code."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from typing import Any

from selfrag.cli.results import ALL_FAILED, UNREAD, USER_ERROR
from selfrag.cli.settings_file import place_of
from selfrag.common.errors import AllFailedError, UserError, missing_extra
from selfrag.common.untrusted import printable

_LONG_WORD = re.compile(r"(\S{80})\S{70,}(\S{50})")
"""Such as a name that no file system takes; its middle is left out."""
_LONGEST = 600
"""Characters of an error line."""


def tell(program: str, error: Exception) -> int:
    """Write the line of an error of a user, a file, the machine or the parser, and return its code; raise any other."""
    if isinstance(error, UserError):
        code = ALL_FAILED if isinstance(error, AllFailedError) else USER_ERROR
        return fail(program, str(error), code)
    if isinstance(error, OSError) and error.errno is not None:
        return _refused(program, error)
    if isinstance(error, ModuleNotFoundError) and (missing := missing_extra(error)):
        return fail(program, str(missing))
    # the parser's own errors have it, whatever their class
    message = getattr(error, "format_message", None)
    if message is None:
        raise error
    text = message() or f"no command given; see {program} --help"
    return fail(program, _with_place(error, text))


def _with_place(error: Any, message: str) -> str:
    """Return the message of an error of the parser, behind the file or variable that brought the value."""
    context, option = getattr(error, "ctx", None), getattr(error, "param", None)
    if context is None or option is None:
        return message
    place = place_of(context, option.name)
    return message if place is None else f"{place}: {message}"


def _refused(program: str, error: OSError) -> int:
    """Say what the machine refused; an error that names no file may be the standard output's."""
    if error.filename is not None:
        return fail(program, f"{os.fsdecode(error.filename)}: {error.strerror}")
    try:
        if isinstance(error, BrokenPipeError):
            raise error
        sys.stdout.write("\n")
        sys.stdout.flush()
    except OSError:
        # or Python tries once more at its end, and complains
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return UNREAD
        return fail(program, f"the standard output cannot be written: {error.strerror}")
    return fail(program, f"a file cannot be read or written: {error.strerror}")


def fail(program: str, message: str, code: int = USER_ERROR) -> int:
    """Write one line on the error stream, and return the code."""
    line = _LONG_WORD.sub(r"\1...\2", printable(" ".join(message.split())))
    if len(line) > _LONGEST:
        line = f"{line[: _LONGEST // 2]} ... {line[-_LONGEST // 2 :]}"
    with suppress(OSError):
        sys.stderr.write(f"{program}: {line}\n")
        sys.stderr.flush()
    return code
