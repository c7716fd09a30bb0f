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
    from selfrag.extensions.export.inspect_logs import InspectLog
    from selfrag.interface import read_run, run_folders, write_pieces, writing

    files: list[str] = []
    for folder in run_folders(runs):
        for name in read_run(folder, only).files:
            log = InspectLog(folder, name, data, seed)
            path = out / log.file_name
            with writing(out):
                out.mkdir(parents=True, exist_ok=True)
            check_free(ctx, [path])
            write_pieces(path, log.pieces())
            files.append(str(path))
    return CommandResult(files, "\n".join(files))
