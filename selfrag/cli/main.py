"""The `selfrag` command: assembles the commands."""

from __future__ import annotations

from collections.abc import Sequence

from selfrag.cli.ask import ask
from selfrag.cli.demo import demo
from selfrag.cli.doctor import doctor
from selfrag.cli.eval import app as evaluate
from selfrag.cli.index import app as index
from selfrag.cli.interpret import app as interpret
from selfrag.cli.intrinsic import intrinsic
from selfrag.cli.running import Commands, run
from selfrag.cli.serve import serve
from selfrag.cli.show import show
from selfrag.cli.sweep import ablate, sweep
from selfrag.cli.train import app as train

app = Commands(
    name="selfrag",
    help="Cited answers from a language model that retrieves on demand and criticises its own writing.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(ask)
app.command()(demo)
app.command()(serve)
app.command()(show)
app.command()(doctor)
app.command()(intrinsic)
app.command()(sweep)
app.command()(ablate)
app.add_typer(index, name="index")
app.add_typer(train, name="train")
app.add_typer(evaluate, name="eval")
app.add_typer(interpret, name="interpret")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: arguments without the program's name; the process's own by default.

    Returns:
        The exit code; `selfrag.cli.running` lists them.
    """
    return run(app, "selfrag", argv)
