"""The `critic` command: the list of its commands, each imported when it is asked for. Knows no command's options."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from selfrag.cli.running import Commands, run

COMMANDS: dict[str, str] = {
    "sample": "critic.cli.sample:sample",
    "label": "critic.cli.label:label",
    "agree": "critic.cli.agree:agree",
    "train": "critic.cli.train:train",
    "eval": "critic.cli.eval:evaluate",
    "augment": "critic.cli.augment:augment",
    "pairs": "critic.cli.pairs:pairs",
    "inspect": "critic.cli.inspect:inspect",
}
"""Name of a command -> `module:function`, or `module:app` for a group, in the order of `--help`."""


class _OnDemand(TyperGroup):
    """A group that imports a command's module when the command is run or listed."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        target = getattr(importlib.import_module(module), attribute)
        if not isinstance(target, typer.Typer):
            function, target = target, Commands(add_completion=False)
            target.command(cmd_name)(function)
        command = typer.main.get_command(target)
        command.name = cmd_name
        return command


app = Commands(name="critic", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, cls=_OnDemand)


@app.callback()
def _critic() -> None:
    """Distil a critic from a teacher, and write reflection tokens into training data."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: arguments without the program's name; the process's own by default.

    Returns:
        The exit code; `selfrag.cli.running` lists them.
    """
    return run(app, "critic", argv)
