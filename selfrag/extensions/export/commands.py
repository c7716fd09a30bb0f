"""`selfrag eval export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from selfrag.cli.options import DataFolder
from selfrag.cli.results import CommandResult


def export(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="run folders such as RUNS/selfrag-adaptive, or a folder of them",
            metavar="RUN...",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="folder of the exported files")
    ],
    to: Annotated[
        Literal["inspect", "lm-eval"],
        typer.Option(
            help="inspect for inspect-ai logs, lm-eval for its results and samples"
        ),
    ] = "inspect",
    only: Annotated[
        list[str] | None, typer.Option(help="export this file only; repeatable")
    ] = None,
    data: DataFolder = None,
    seed: Annotated[int, typer.Option(help="seed of the standard errors")] = 0,
) -> CommandResult:
    """Write finished runs in the format of another evaluation tool."""
    from selfrag.evaluation.comparison import read_run, run_folders
    from selfrag.extensions.export.formats import (
        read_source,
        write_inspect,
        write_lm_eval,
    )

    files: list[str] = []
    for folder in run_folders(runs):
        sources = [
            read_source(folder, name, data, seed=seed)
            for name in read_run(folder, only).files
        ]
        if to == "lm-eval":
            files.append(str(write_lm_eval(sources, out)))
        else:
            files += [str(write_inspect(source, out)) for source in sources]
    return CommandResult(files, "\n".join(files))
