"""`selfrag index push`: copies an index into a collection of Milvus."""

from __future__ import annotations

from pathlib import Path

from selfrag.interface import CommandResult, count_of


def push(directory: Path, address: str) -> CommandResult:
    """Copy an index into a collection of Milvus. Interrupted, it continues when the same command is run again.

    Args:
        address: The collection: milvus:FILE.db or milvus://HOST:PORT/NAME.
    """
    from selfrag.extensions.milvus.remote import push_index
    from selfrag.interface import index_directory

    written, passages = push_index(index_directory(str(directory)), address)
    value = {"passages_written": written, "passages": passages, "index": address}
    line = f"{count_of(written, 'passages')} written; {address} holds {passages}"
    return CommandResult(value, line)
