"""`selfrag index push`: copies an index into a collection of Milvus."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selfrag.cli.results import CommandResult
from selfrag.common.errors import count_of


def push(
    directory: Annotated[Path, typer.Argument(help="Directory of the index.")],
    address: Annotated[
        str,
        typer.Argument(
            help="The collection: milvus:FILE.db or milvus://HOST:PORT/NAME."
        ),
    ],
) -> CommandResult:
    """Copy an index into a collection of Milvus. Interrupted, it continues when the same command is run again."""
    from selfrag.extensions.milvus.remote import push_index
    from selfrag.loading import index_directory

    written, passages = push_index(index_directory(str(directory)), address)
    value = {"passages_written": written, "passages": passages, "index": address}
    line = f"{count_of(written, 'passages')} written; {address} holds {passages}"
    return CommandResult(value, line)
