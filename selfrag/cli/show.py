"""`selfrag show`: a page that shows why an answer is what it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selfrag.cli.results import CommandResult
from selfrag.cli.running import Replaced, check_free
from selfrag.common.errors import UserError
from selfrag.common.reading import read_whole


def show(
    file: Path, *, ctx: typer.Context, out: Annotated[Path | None, Replaced()] = None
) -> CommandResult:
    """Write a page that shows why an answer is what it is, and ranks the recorded tree again.

    Args:
        file: JSON file that `selfrag ask --trace` wrote
        out: HTML file; by default beside the trace
    """
    from selfrag.common.atomic import write_text
    from selfrag.decoding.trace import Trace
    from selfrag.viewer.traces import traces_page

    page = out or file.with_suffix(".html")
    if page.is_dir() or page.resolve() == file.resolve():
        raise UserError(
            f"--out {page} is a folder or the trace itself; name another file"
        )
    if out is None:
        check_free(ctx, [page])
    text = read_whole(file)
    try:
        trace = Trace.from_json(text)
    except UserError as error:
        raise UserError(f"{file}: {error}") from error
    write_text(page, traces_page({"": trace}))
    return CommandResult({"page": page}, f"{page}: open it in a browser")
