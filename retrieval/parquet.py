"""Reads Parquet files in a child process with limits of time and memory.

A few bytes of such a file can stand for gigabytes, and what its footer says of sizes may be wrong. `retrieval.
parquet_worker` decodes it and sends parts of bounded size.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfrag.common.child_process import (
    MEBIBYTE,
    ChildEndedError,
    ChildLimits,
    ChildProcess,
    ChildReply,
)
from selfrag.common.errors import UserError
from selfrag.common.reading import regular_file

VECTOR = "vector"
"""Name of the column of vectors."""
_SECONDS, _SECONDS_OF_MEBIBYTE = 10, 20
_MEMORY = 400 * MEBIBYTE
_REPLY = 160 * MEBIBYTE  # a row of 64 MiB, whose characters JSON may double


@dataclass(frozen=True, slots=True)
class VectorBlock:
    """Some vectors of a file."""

    ids: list[str] | None  # of its passages [n], where the file has ids
    vectors: NDArray[Any]  # floats [n, d]


def read_table_rows(
    path: Path, check_names: Callable[[list[str]], None]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet file.

    Args:
        path: the file.
        check_names: is called with the names of all columns before the first row.

    Raises:
        UserError: the file cannot be read, or not within its limits.
    """
    with closing(_replies(path, {"work": "rows"})) as replies:
        check_names(next(replies).values["names"])
        for reply in replies:
            columns = reply.values.get("columns", {})
            for values in zip(*columns.values(), strict=True):
                yield dict(zip(columns, values, strict=True))


def read_vector_size(path: Path) -> tuple[int, int]:
    """Return how many vectors a Parquet file has, and their length.

    Raises:
        UserError: the file cannot be read, or not within its limits.
    """
    with closing(_replies(path, {"work": "vectors", "start": 0})) as replies:
        values = next(replies).values
    return values["rows"], values["dim"]


def read_vector_blocks(path: Path, start: int) -> Iterator[VectorBlock]:
    """Yield the vectors of a Parquet file from a row on.

    Raises:
        UserError: the file cannot be read, or not within its limits.
    """
    with closing(_replies(path, {"work": "vectors", "start": start})) as replies:
        next(replies)
        for reply in replies:
            if reply.data:
                vectors = np.frombuffer(reply.data, np.dtype(reply.values["type"]))
                yield VectorBlock(
                    reply.values["ids"], vectors.reshape(reply.values["shape"])
                )


def _replies(path: Path, work: Mapping[str, Any]) -> Generator[ChildReply]:
    """Yield what a child finds in a file."""
    size = regular_file(path).stat().st_size
    seconds = _SECONDS + _SECONDS_OF_MEBIBYTE * size // MEBIBYTE
    limits = ChildLimits(seconds=seconds, memory=_MEMORY + size, reply=_REPLY)
    child = ChildProcess(f"{__package__}.parquet_worker", "reading Parquet files")
    try:
        yield from child.ask({"name": str(path), **work}, limits)
    except ChildEndedError as error:
        raise UserError(
            f"{path}: cannot be read: {error}; write it as jsonl, or split it"
        ) from error
    finally:
        child.close()
