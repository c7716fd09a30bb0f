"""`selfrag show`: a recorded trace as one page that opens from disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from retrieval.atomic import write_text
from retrieval.reading import read_whole
from selfrag.errors import UserError
from selfrag.viewer import traces_page


def show(
    file: Annotated[Path, typer.Argument(help="JSON file that `selfrag ask --trace` wrote")],
    *,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="HTML file; by default beside the trace")] = None,
) -> None:
    """Write a page that shows why an answer is what it is, and ranks the recorded tree again."""
    from selfrag.decoding.trace import Trace

    found = out or file.with_suffix(".html")
    if found.is_dir() or found.resolve() == file.resolve():
        raise UserError(f"--out {found} is a folder or the trace itself; name another file")
    write_text(found, traces_page({"": Trace.from_json(read_whole(file))}))
    typer.echo(f"{found}: open it in a browser")
