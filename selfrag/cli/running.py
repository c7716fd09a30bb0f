"""Running a command: what went wrong becomes one line and an exit code. Knows no command.

Exit codes: 0 done, 1 a command found something broken, 2 an error the user can act on, 130 interrupted, 141 the
output is not read to its end. Errors that are nobody's fault but ours keep their traceback.
"""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from types import FrameType

import typer

from selfrag.errors import UserError
from selfrag.untrusted import printable

USER_ERROR = 2
INTERRUPTED = 130
UNREAD = 141
"""As of a program that SIGPIPE ends."""
_LONG_WORD = re.compile(r"(\S{80})\S{70,}(\S{50})")
"""Such as a name that no file system takes; its middle is left out."""
_LONGEST = 600
"""Characters of an error line."""


def run(app: typer.Typer, program: str, argv: Sequence[str] | None = None) -> int:
    """Run one command of a program.

    Args:
        app: the commands.
        program: the program's name, in front of every error line.
        argv: arguments without the program's name; the process's own by default.

    Returns:
        The exit code.
    """
    if sys.stdout is None or sys.stderr is None:  # closed by whoever started the program
        return USER_ERROR if sys.stderr is None else _fail(program, "the standard output is closed; open it")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character is no reason to fail
    try:
        code = _code(app, program, sys.argv[1:] if argv is None else argv)
    except UserError as error:
        return _fail(program, str(error))
    except OSError as error:
        if error.errno is None:  # no error of the machine
            raise
        return _refused(program, error)
    except Exception as error:
        message = getattr(error, "format_message", None)  # the parser's own errors have it, whatever their class
        if message is None:
            raise
        return _fail(program, message() or f"no command given; see {program} --help")
    return _fail(program, "interrupted", code) if code == INTERRUPTED else code


def _code(app: typer.Typer, program: str, argv: Sequence[str]) -> int:
    """Runs the command; the exit code that it asks for."""
    with _interrupts() as heard:
        try:
            # Without standalone mode the parser raises its errors instead of printing them as a box.
            code = app(args=_received(argv), prog_name=program, standalone_mode=False)
            sys.stdout.flush()
        except (KeyboardInterrupt, typer.Abort):
            return INTERRUPTED
        except SystemExit as error:
            if isinstance(error.__context__, BrokenPipeError):  # rich ends the program where a pipe is closed
                raise error.__context__ from None
            raise
        except Exception:
            if heard:  # compiled code makes errors of its own of an interrupt
                return INTERRUPTED
            raise
    return int(code or 0)


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """The interrupts that arrive in the block, each of which is also raised."""
    heard: list[int] = []
    usual = signal.getsignal(signal.SIGINT)

    def interrupted(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        raise KeyboardInterrupt

    # In another thread no handler can be set, and one that somebody else has set stays.
    if usual is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield heard
        return
    signal.signal(signal.SIGINT, interrupted)
    try:
        yield heard
    finally:
        signal.signal(signal.SIGINT, usual)


def _received(argv: Sequence[str]) -> list[str]:
    """The arguments, unless an option has been given nothing: a variable of the shell that is not set, mostly.

    Raises:
        UserError: it has.
    """
    for option, value in pairwise(argv):
        if not value and option.startswith("-") and option != "--":
            raise UserError(f"{option} is empty; give a value, or leave the option out")
    return list(argv)


def _refused(program: str, error: OSError) -> int:
    """What the machine refused; an error that names no file may be the standard output's."""
    if error.filename is not None:
        return _fail(program, f"{os.fsdecode(error.filename)}: {error.strerror}")
    try:
        if isinstance(error, BrokenPipeError):
            raise error
        sys.stdout.write("\n")
        sys.stdout.flush()
    except OSError:
        with suppress(OSError, ValueError):  # or Python tries once more at its end, and complains
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return UNREAD
        return _fail(program, f"the standard output cannot be written: {error.strerror}")
    return _fail(program, f"a file cannot be read or written: {error.strerror}")


def _fail(program: str, message: str, code: int = USER_ERROR) -> int:
    """One line on the error stream."""
    line = _LONG_WORD.sub(r"\1...\2", printable(" ".join(message.split())))
    if len(line) > _LONGEST:
        line = f"{line[: _LONGEST // 2]} ... {line[-_LONGEST // 2 :]}"
    with suppress(OSError):
        sys.stderr.write(f"{program}: {line}\n")
        sys.stderr.flush()
    return code
