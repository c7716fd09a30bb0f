"""`selfrag eval tasks`: the published tasks that can be run. What they are is the business of `selfrag.experiments`."""

from __future__ import annotations

from typing import Annotated

import typer


def tasks(
    name: Annotated[str | None, typer.Argument(help="show this one in full: wordings, budgets, settings")] = None,
) -> None:
    """The published tasks that `selfrag eval run TASK=FILE` knows, and what their public files look like."""
    from rich.console import Console
    from rich.text import Text

    from selfrag.evaluation.presets import in_full, overview, preset

    if name is None:
        Console().print(overview())
    else:
        Console().print(Text(in_full(preset(name))), soft_wrap=True)
