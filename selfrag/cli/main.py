"""The `selfrag` command: assembles the commands, and turns what went wrong into one line and an exit code.

Exit codes: 0 done, 1 the doctor found something broken, 2 an error the user can act on, 130 interrupted. Errors that
are nobody's fault but ours keep their traceback. Knows no command's options.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from selfrag.cli.ask import ask
from selfrag.cli.demo import demo
from selfrag.cli.doctor import doctor
from selfrag.cli.index import app as index
from selfrag.errors import UserError

USER_ERROR = 2
INTERRUPTED = 130

app = typer.Typer(
    name="selfrag",
    help="Cited answers from a language model that retrieves on demand and criticises its own writing.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(ask)
app.command()(demo)
app.command()(doctor)
app.add_typer(index, name="index")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: arguments without the program's name; the process's own by default.

    Returns:
        The exit code.
    """
    try:
        # Without standalone mode the parser raises its errors instead of printing them as a box.
        code = app(args=argv, prog_name="selfrag", standalone_mode=False)
    except UserError as error:
        return _fail(str(error))
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except Exception as error:
        message = getattr(error, "format_message", None)  # the parser's own errors have it, whatever their class
        if message is None:
            raise
        return _fail(message() or "no command given; see selfrag --help")
    if code == INTERRUPTED:
        return _fail("interrupted", code)
    return int(code or 0)


def _fail(message: str, code: int = USER_ERROR) -> int:
    sys.stderr.write(f"selfrag: {' '.join(message.split())}\n")
    return code
