"""`selfrag index export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selfrag.extensions.vectors.export import export_index
from selfrag.loading import index_directory


def export(
    directory: Annotated[Path, typer.Argument(help="Directory of the index.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Parquet file.")],
    vectors: Annotated[
        bool, typer.Option("--vectors", help="Also write the vectors, as a column.")
    ] = False,
) -> None:
    """Write the passages of an index to a Parquet file, with their columns."""
    count = export_index(index_directory(str(directory)), out, vectors=vectors)
    typer.echo(f"{count} passages in {out}")
