"""`selfrag eval export`: run directories in, files of other tools out. Formats: `selfrag.evaluation.exporting`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from selfrag.cli.options import DataFolder
from selfrag.untrusted import printable


def export(
    runs: Annotated[
        list[Path],
        typer.Argument(help="run directories such as RUNS/selfrag-adaptive, or a directory of them", metavar="RUN..."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="folder of the exported files")],
    to: Annotated[
        Literal["inspect", "lm-eval"], typer.Option(help="eval logs of inspect-ai, or results and samples of lm-eval")
    ] = "inspect",
    only: Annotated[list[str] | None, typer.Option(help="this file of the runs; repeatable")] = None,
    data: DataFolder = None,
    seed: Annotated[int, typer.Option(help="of the standard errors")] = 0,
) -> None:
    """Write finished runs in the format of another evaluation tool."""
    from selfrag.evaluation.comparison import read_run, run_folders
    from selfrag.evaluation.exporting import read_source, write_inspect, write_lm_eval

    for folder in run_folders(runs):
        sources = [read_source(folder, name, data, seed=seed) for name in read_run(folder, only).files]
        written = [write_lm_eval(sources, out)] if to == "lm-eval" else [write_inspect(one, out) for one in sources]
        typer.echo(printable("\n".join(map(str, written))))
