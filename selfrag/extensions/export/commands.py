"""`selfrag eval export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selfrag.interface import CommandResult, DataFolder, Replaced, check_free


def export(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...")],
    *,
    ctx: typer.Context,
    out: Annotated[Path, Replaced(())],
    only: list[str] | None = None,
    data: DataFolder = None,
    seed: int = 0,
) -> CommandResult:
    """Write finished runs as logs of inspect-ai.

    Args:
        runs: run folders such as RUNS/selfrag-adaptive, or a folder of them
        out: folder of the exported files
        only: export this file only; repeatable
        seed: seed of the standard errors
    """
    from selfrag.extensions.export.inspect_logs import read_source, write_inspect
    from selfrag.interface import read_run, run_folders

    def check(path: Path) -> None:
        check_free(ctx, [path])

    files: list[str] = []
    for folder in run_folders(runs):
        for name in read_run(folder, only).files:
            source = read_source(folder, name, data, seed=seed)
            files.append(str(write_inspect(source, out, check)))
    return CommandResult(files, "\n".join(files))
