"""Tables of finished runs on a terminal, as commands on runs print them at their end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def show(runs: Sequence[Path], only: Sequence[str] | None = None, against: str | None = None) -> None:
    """Print the comparison of runs.

    Args:
        runs: run directories.
        only: names of files; all by default.
        against: run that the others are compared with.

    Raises:
        UserError: runs that cannot be read or compared.
    """
    from rich.console import Console

    from selfrag.evaluation.comparison import compare, read_runs
    from selfrag.evaluation.tables import Terminal

    Console().print(Terminal(compare(read_runs(runs, only), against=against)))
