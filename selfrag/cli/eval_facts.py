"""`selfrag eval facts`: answers out to the official FactScore tool, and its decisions in. Arguments and text only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selfrag.cli.options import DataFolder
from selfrag.errors import UserError


def facts(
    run: Annotated[Path, typer.Argument(help="run directory")],
    file: Annotated[str, typer.Argument(help="name of a file of the run, whose items have a topic")],
    write: Annotated[Path | None, typer.Option(help="write the tool's input here")] = None,
    read: Annotated[Path | None, typer.Option(help="read its decisions from here: .._factscore_output.json")] = None,
    data: DataFolder = None,
) -> None:
    """Hand a run to the official FactScore tool, which needs an environment of its own, and take its figures in."""
    from selfrag.cli.eval_judge import items_loader
    from selfrag.cli.eval_show import show
    from selfrag.evaluation.metrics.factscore.handing import official_input, official_output

    if (write is None) == (read is None):
        raise UserError("give --write FILE.jsonl before the tool is run, or --read FILE_factscore_output.json after it")
    load = items_loader(data, None)
    if write is not None:
        lines = official_input(run, file, load, write)
        typer.echo(f"{lines} answers; now: python -m factscore.factscorer --input_path {write} --model_name ..")
    if read is not None:
        official_output(run, file, load, read)
        show([run], [file])
