"""`selfrag data`: development files from public originals."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selfrag.cli.running import Commands

app = Commands(
    name="data", help="Make the public development files that figures are measured on.", no_args_is_help=True
)


@app.command("list")
def list_sets() -> None:
    """List the files that can be made, their licences, and where the originals are."""
    from selfrag.evaluation.public_data import public_sets

    for name, one in public_sets().items():
        typer.echo(f"{name:16} {one.about} ({one.licence})")
        for original in one.originals:
            typer.echo(f"{'':16} {original.url}")


@app.command("make")
def make_sets(
    names: Annotated[list[str], typer.Argument(help="files to make, of `selfrag data list`")],
    out: Annotated[Path, typer.Option("--out", "-o", help="folder for them")],
    *,
    originals: Annotated[
        Path | None, typer.Option("--from", help="folder with the originals; else they are downloaded")
    ] = None,
) -> None:
    """Make files in our schema, equal byte for byte to those that were measured."""
    from selfrag.evaluation.public_data import make

    for name in names:
        typer.echo(f"{make(name, out, originals)}")
