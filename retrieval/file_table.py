"""The table of an index that tells which file each of its passages came from.

It is a file of the index like any other: written once for a generation, with a checksum in the manifest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from retrieval.vectors import Mask, RowNumbers
from selfrag.common.errors import UserError
from selfrag.common.finished import damaged

_MOST_BYTES = 1 << 30
"""Of a table; some five million files."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file that passages of an index came from, as it was when it was read."""

    location: str  # its absolute path
    inside: str  # its path inside the folder that was named
    name: str  # start of the ids of its passages
    reading: str  # how it was read; see `retrieval.recording.reading_of`
    size: int  # bytes
    modified: int  # time of change in nanoseconds; -1 where it does not tell of a later change
    changed: int  # time of change of its bytes or its status, likewise
    digest: str  # blake2b of its bytes; empty where they are to be read again
    starts: list[int]  # its rows: the first of each run of rows
    ends: list[int]  # and the one after the last of each run

    @property
    def rows(self) -> RowNumbers:
        """Return the rows of its passages, rising."""
        runs = [
            np.arange(start, end)
            for start, end in zip(self.starts, self.ends, strict=True)
        ]
        return np.concatenate([np.zeros(0, np.int64), *runs])

    def with_rows(self, rows: RowNumbers) -> FileRecord:
        """Return the record with other rows, rising."""
        breaks = np.flatnonzero(np.diff(rows) != 1)
        starts = rows[np.concatenate([[0], breaks + 1])] if len(rows) else rows
        ends = (
            rows[np.concatenate([breaks, [len(rows) - 1]])] + 1 if len(rows) else rows
        )
        return replace(self, starts=starts.tolist(), ends=ends.tolist())


def _schema() -> Any:
    import pyarrow as pa

    text, number, numbers = pa.large_string(), pa.int64(), pa.large_list(pa.int64())
    kinds = {"str": text, "int": number, "list[int]": numbers}
    return pa.schema(
        [(name, kinds[str(kind)]) for name, kind in FileRecord.__annotations__.items()]
    )


def write_file_table(path: Path, records: Sequence[FileRecord]) -> None:
    """Write the records of all files of an index."""
    import pyarrow as pa

    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist([asdict(record) for record in records], _schema())
    with path.open("wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def read_file_table(path: Path, rows: int) -> list[FileRecord]:
    """Return the records of an index of so many rows; a table that does not fit them is refused."""
    import pyarrow as pa

    try:
        table = _map_table(path)
        table.validate(full=True)
        if any(column.null_count for column in table.columns):
            raise ValueError("a value is missing")
        records = [FileRecord(**values) for values in table.to_pylist()]
        _check_records(records, rows)
    except (
        pa.ArrowException,
        OSError,
        ValueError,
        TypeError,
        UnicodeError,
        MemoryError,
    ) as error:
        raise _damaged(path, error) from error
    return records


def _map_table(path: Path) -> Any:
    """Return the table as it is in the file, which is memory-mapped."""
    import pyarrow as pa

    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"more than {_MOST_BYTES:,} bytes")
    table = pa.ipc.open_stream(pa.memory_map(str(path))).read_all()
    if table.schema != _schema():
        raise ValueError("it has other columns")
    return table


def _damaged(path: Path, error: Exception) -> UserError:
    return damaged("index", path.parent.parent, f"{path.name} cannot be read ({error})")


class FileFinder:
    """Tells which file a passage of an index came from.

    The table is mapped at once, since a later generation of the index may delete it, and read when it is needed.
    """

    def __init__(self, path: Path) -> None:
        import pyarrow as pa

        self._path = path
        try:
            self._table = _map_table(path)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise _damaged(path, error) from error

    def __call__(self, row: int) -> str | None:
        """Return the absolute path of the file of a passage, by its row; None for one that came from no file."""
        starts, ends, files = self._runs
        run = int(np.searchsorted(starts, row, side="right")) - 1
        if run < 0 or row >= ends[run]:
            return None
        location: str = self._table["location"][int(files[run])].as_py()
        return location

    @cached_property
    def _runs(self) -> tuple[RowNumbers, RowNumbers, RowNumbers]:
        """Return for each run of rows, by its first row: that row, the one after its last, and its file."""
        import pyarrow as pa
        from pyarrow import compute

        try:
            self._table.validate(full=True)
            first, last = (
                self._table[name].combine_chunks() for name in ("starts", "ends")
            )
            starts, ends = first.flatten().to_numpy(), last.flatten().to_numpy()
            files = compute.list_parent_indices(first).to_numpy()
            if len(starts) != len(ends):
                raise ValueError("runs of rows do not fit")
        except (pa.ArrowException, ValueError, UnicodeError, MemoryError) as error:
            raise _damaged(self._path, error) from error
        order = np.argsort(starts)
        return starts[order], ends[order], files[order]


def _check_records(records: Sequence[FileRecord], rows: int) -> None:
    """Check that no row belongs to two files and that no two records share a file or a name."""
    runs = list[tuple[int, int]]()
    for record in records:
        if len(record.starts) != len(record.ends):
            raise ValueError(f"the runs of {record.inside!r:.60} do not fit")
        runs += zip(record.starts, record.ends, strict=True)
    position = 0
    for start, end in sorted(runs):
        if not position <= start < end <= rows:
            raise ValueError(f"rows {start} to {end} belong to two files, or to none")
        position = end
    for values in (
        [record.location for record in records],
        [record.name for record in records],
    ):
        if len(set(values)) < len(values):
            raise ValueError("a file is listed twice")


def move_records(records: Iterable[FileRecord], kept: Mask | None) -> list[FileRecord]:
    """Return the records after the rows that are not kept, bool [rows], were taken out.

    A file that lost passages is read again at the next sync, and one without passages is forgotten.
    """
    if kept is None:
        return list(records)
    positions = np.cumsum(kept) - 1
    moved = []
    for record in records:
        rows = record.rows
        left = rows[kept[rows]]
        if len(left) < len(rows):
            record = replace(record, digest="", modified=-1)
        if len(left):
            moved.append(record.with_rows(positions[left]))
    return moved
