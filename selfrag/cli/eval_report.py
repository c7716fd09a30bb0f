"""`selfrag eval report`: finished runs compared, in the terminal and in files. Loads no model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from selfrag.cli.options import DataFolder
from selfrag.untrusted import printable


def report(
    runs: Annotated[list[Path], typer.Argument(help="run directories, or a directory of them")],
    out: Annotated[
        list[Path] | None,
        typer.Option(
            "--out",
            "-o",
            help="file to write, by its ending: .html a page with every answer's trace, .md or .csv the tables,"
            " .png, .svg or .pdf the plots; repeatable",
        ),
    ] = None,
    against: Annotated[str | None, typer.Option(help="system that the others are compared with, pair by pair")] = None,
    only: Annotated[list[str] | None, typer.Option(help="compare on this file only; repeatable")] = None,
    items: Annotated[int, typer.Option(min=0, help="items of each file on the page; failed ones come first")] = 50,
    data: DataFolder = None,
    seed: Annotated[int, typer.Option(help="of intervals and of the sample of items")] = 0,
) -> None:
    """Compare finished runs of the same items: figures with intervals, paired differences, costs, every answer."""
    from rich.console import Console

    from selfrag.evaluation.comparison import run_folders
    from selfrag.evaluation.report import check_ending, read_report, write
    from selfrag.evaluation.tables import Terminal

    files = [check_ending(one) for one in out or ()]
    page = any(one.suffix == ".html" for one in files)
    folders, shown = run_folders(runs), items if page else 0
    found = read_report(folders, against=against, only=only, items=shown, data=data, seed=seed)
    console = Console()
    console.print(Terminal(found.comparison))
    for one in files:
        sys.stdout.write(printable(f"written: {write(found, one)}\n"))
