"""The `critic` command: assembles the commands. Only the one that runs is imported."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from selfrag.cli.running import (
    Commands,
    add_commands,
    make_program,
    run,
    selected_command,
)

COMMANDS = {
    "sample": "Draw cases for every reflection group from pairs, with a report of counts and examples beside them.",
    "label": "Label cases by an endpoint or by gold annotations. Stopped or killed, the same command continues.",
    "agree": "Compare teachers on the cases that they share by id: agreement, Cohen's kappa and confusion by group.",
    "split": "Split labelled rows into training, development and test rows; rows of one instruction stay together.",
    "train": "Fine-tune a critic. Stopped or killed, the same command continues.",
    "eval": "Measure accuracy, macro-F1, calibration and confusion by group, beside baselines and the paper's figures.",
    "adopt": "Write the critic.json of the published critic, with the instructions of its training rows.",
    "augment": "Write reflection tokens and passages into input-output pairs: training rows for the generator.",
    "pairs": "Turn public data sets into pairs, the input of `critic augment`, and say what was left out and why.",
    "inspect": "Write a page with statistics of all rows and a sample of them, to be opened from disk.",
}
"""Commands in the order of `--help`, with their lines there."""
MODULES = {
    "critic.cli.label": "sample label agree split",
    "critic.cli.train": "train eval adopt",
    "critic.cli.augment": "augment pairs inspect",
}
"""Module of each; `eval` is a function of Python, and `evaluate` is ours."""


def _load(name: str) -> Any:
    (module,) = (module for module, names in MODULES.items() if name in names.split())
    return getattr(import_module(module), "evaluate" if name == "eval" else name)


def assembled(selected: str | None = None) -> Commands:
    """Return all commands, or only the selected one beside placeholders that `--help` lists."""
    program = make_program(
        "critic",
        "Distil a critic from a teacher, and write reflection tokens into training data.",
    )
    return add_commands(program, COMMANDS, _load, selected)


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    app = globals()["app"] = assembled()
    return app


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, by default that of the process; `selfrag.cli.running` lists the exit codes."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return run(assembled(selected_command(arguments)), "critic", arguments)
