"""`selfrag index export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selfrag.interface import CommandResult, Replaced, count_of


def export(
    directory: Path,
    *,
    out: Annotated[Path, Replaced()],
    vectors: Annotated[bool, typer.Option("--with-vectors")] = False,
) -> CommandResult:
    """Write the passages of an index to a Parquet file, with their columns.

    Args:
        out: Parquet file.
        vectors: Also write the vectors, as a column.
    """
    from selfrag.extensions.vectors.export import export_index
    from selfrag.interface import index_directory

    count = export_index(index_directory(str(directory)), out, vectors=vectors)
    return CommandResult(
        {"passages": count, "file": out}, f"{count_of(count, 'passages')} in {out}"
    )
