"""The `critic` command: assembles the commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from critic.cli.augment import augment, inspect, pairs
from critic.cli.label import agree, label, sample, split
from critic.cli.train import adopt, evaluate, train
from selfrag.cli.running import make_program, run

COMMANDS: dict[str, Callable[..., None]] = {
    "sample": sample,
    "label": label,
    "agree": agree,
    "split": split,
    "train": train,
    "eval": evaluate,
    "adopt": adopt,
    "augment": augment,
    "pairs": pairs,
    "inspect": inspect,
}
"""In the order of `--help`."""

app = make_program(
    "critic",
    "Distil a critic from a teacher, and write reflection tokens into training data.",
)
for _name, _command in COMMANDS.items():
    app.command(_name)(_command)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; `selfrag.cli.running` lists the exit codes."""
    return run(app, "critic", argv)
