"""`critic inspect`: training rows in, one HTML page out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from critic.inspect import inspect_rows, render
from retrieval.atomic import write_text


def inspect(
    rows: Annotated[list[Path], typer.Argument(help="JSON lines of training rows, or a folder of critic augment.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="HTML file to write.")],
    count: Annotated[int, typer.Option("--rows", "-n", help="Rows to show.")] = 40,
    seed: Annotated[int, typer.Option(help="Of the sample.")] = 0,
    provenance: Annotated[
        list[Path] | None, typer.Option("--provenance", "-p", help="JSON lines that say how the rows were made.")
    ] = None,
) -> None:
    """Write a page with statistics of all rows and a sample of them, to be opened from disk."""
    from tqdm import tqdm

    files = [path / "rows.jsonl" if path.is_dir() else path for path in rows]
    beside = [path / "provenance.jsonl" for path in rows if (path / "provenance.jsonl").is_file()]
    inspection = inspect_rows(
        files,
        count=count,
        seed=seed,
        provenance=[*(provenance or []), *beside],
        progress=lambda stream: iter(tqdm(stream, unit=" rows", delay=1, disable=None)),
    )
    write_text(out, render(inspection))
    shown = len(inspection.sample)
    explained = f", {len(inspection.provenance)} with provenance" if inspection.recorded else ""
    typer.echo(f"{shown} of {inspection.statistics.total.rows} rows{explained} in {out}")
