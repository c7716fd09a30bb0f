"""The `critic` command: assembles the commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from critic.cli.agree import agree
from critic.cli.augment import augment
from critic.cli.eval import evaluate
from critic.cli.inspect import inspect
from critic.cli.label import label
from critic.cli.pairs import pairs
from critic.cli.sample import sample
from critic.cli.train import train
from selfrag.cli.commands import Commands
from selfrag.cli.running import run

COMMANDS: dict[str, Callable[..., None]] = {
    "sample": sample,
    "label": label,
    "agree": agree,
    "train": train,
    "eval": evaluate,
    "augment": augment,
    "pairs": pairs,
    "inspect": inspect,
}
"""In the order of `--help`."""

app = Commands(
    name="critic",
    help="Distil a critic from a teacher, and write reflection tokens into training data.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for _name, _command in COMMANDS.items():
    app.command(_name)(_command)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: arguments without the program's name; the process's own by default.

    Returns:
        The exit code; `selfrag.cli.running` lists them.
    """
    return run(app, "critic", argv)
