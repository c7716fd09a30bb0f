"""A corpus on disk: passages in an Arrow file that is memory-mapped, in a fixed order, with unique ids; and filters.

The file is an Arrow stream as `datasets` writes them; `datasets.Dataset.from_file` opens it without copying.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import accumulate, repeat
from pathlib import Path
from typing import Any, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from retrieval.passage import Passage
from selfrag.common.checks import check_int
from selfrag.common.errors import UserError, count_of
from selfrag.common.finished import MANIFEST, check_finished, checksums, damaged
from selfrag.common.reading import user_path

Scalar: TypeAlias = str | int | float | bool
FILE, METADATA = "passages.arrow", "metadata.arrow"
CORPUS_FORMAT = "selfrag-corpus-1"
ROWS_IN_MEMORY = 2048
COLUMNS = ("id", "title", "text")


def scalars(fields: Mapping[str, Any]) -> tuple[dict[str, Scalar], tuple[str, ...]]:
    """Return the values that a column can hold, and the names of those that none can.

    A column holds texts, numbers and truth values, and lists of these as one text: `tea, rome`. Empty values are none.
    """
    kept: dict[str, Scalar] = {}
    dropped: list[str] = []
    for name, value in fields.items():
        if isinstance(value, list) and all(map(is_scalar, value)):
            value = ", ".join(map(str, value))
        if is_scalar(value):
            kept[str(name)] = value
        elif value not in (None, ""):
            dropped.append(str(name))
    return kept, tuple(dropped)


def is_scalar(value: Any) -> bool:
    """Return whether a column can hold a value."""
    if isinstance(value, int):
        return -(1 << 63) <= value < 1 << 63
    return (
        bool(value)
        if isinstance(value, str)
        else isinstance(value, float) and math.isfinite(value)
    )


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row comes from."""

    source: str  # the file
    number: int  # line or row, from 1
    unit: str = "line"  # `line` for text files, `row` for tables without lines

    def __str__(self) -> str:
        return f"{self.source}:{'' if self.unit == 'line' else f' {self.unit} '}{self.number}"


@dataclass(frozen=True, slots=True)
class Row:
    """One passage of a corpus to be, its origin, and its further columns."""

    passage: Passage
    place: Place
    metadata: Mapping[str, Scalar] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()  # columns whose values no index can hold


@dataclass(frozen=True, slots=True)
class CorpusManifest:
    """What a corpus directory holds."""

    passages: int  # number of passages
    digest: str  # of all ids, titles and texts in their order
    files: dict[str, int]  # bytes by relative file name
    # digest of the file of further columns; empty where there are none
    metadata: str = ""

    def __post_init__(self) -> None:
        check_int("passages", self.passages)


class Corpus(Sequence[Passage]):
    """Passages by row position. Cheap to open whatever its size, and safe to read from many threads.

    Attributes:
        directory: where it lives.
        digest: fingerprint of all ids, titles and texts in their order.
        metadata: fingerprint of the further columns; empty where there are none.
        kept: bool [rows], false for passages that were removed; None where none was.
        file_of: tells the path of the file of a row; None where no files are known.
    """

    def __init__(
        self,
        directory: Path,
        table: Any,
        digest: str,
        metadata: str = "",
        further: Any = None,
    ) -> None:
        self.directory = directory
        self.digest = digest
        self.metadata = metadata
        self._further = [(further, len(table))]
        self._columns = [table.column(name) for name in COLUMNS]
        self.kept: NDArray[np.bool_] | None = None
        self.file_of: Callable[[int], str | None] | None = None
        self._ends = list(accumulate(len(chunk) for chunk in self._columns[0].chunks))

    @classmethod
    def open(cls, directory: str | Path) -> Corpus:
        """Memory-map a corpus that `build` wrote.

        Raises:
            UserError: there is none, it is half-written, or the file does not fit its manifest.
        """
        import pyarrow as pa

        path = user_path(directory)
        manifest = check_finished(
            path, CorpusManifest, [CORPUS_FORMAT], "corpus", [FILE]
        )
        further = None
        try:
            table = map_table(path / FILE)
            table.validate()
            if (path / METADATA).exists():
                further = map_table(path / METADATA)
                further.validate()
        except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
            raise damaged("corpus", path, error) from error
        if table.schema != corpus_schema() or len(table) != manifest.passages:
            raise damaged(
                "corpus",
                path,
                f"{FILE} does not hold the {count_of(manifest.passages, 'passages')} of {MANIFEST}",
            )
        if (further is None) != (not manifest.metadata) or (
            further is not None and len(further) != len(table)
        ):
            raise damaged("corpus", path, f"{METADATA} does not fit its passages")
        return cls(path, table, manifest.digest, manifest.metadata, further)

    @classmethod
    def joined(cls, parts: Sequence[Corpus], kept: NDArray[np.bool_] | None) -> Corpus:
        """Return the passages of several corpora, of which some are removed: `kept` is bool [rows].

        Removed passages keep their rows, and `live` leaves them out.
        """
        import pyarrow as pa

        table = pa.concat_tables(
            pa.table(part._columns, corpus_schema()) for part in parts
        )
        joined = cls(
            parts[0].directory, table, parts[0].digest if len(parts) == 1 else ""
        )
        joined._further = [further for part in parts for further in part._further]
        joined.kept = kept
        return joined

    def with_kept(self, kept: NDArray[np.bool_]) -> Corpus:
        """Return the same passages with others removed; `kept` is bool [rows], false for removed passages."""
        changed = copy(self)
        changed.kept = kept
        return changed

    def live(self) -> Iterator[Row]:
        """Yield the passages that were not removed, with their further columns."""
        place = Place("passages", 1, "row")
        for number, (passage, values) in enumerate(
            zip(self, self._all_further(), strict=True)
        ):
            if self.kept is None or self.kept[number]:
                yield Row(passage, place, values)

    def _all_further(self) -> Iterator[dict[str, Scalar]]:
        for table, rows in self._further:
            if table is None:
                yield from repeat({}, rows)
            else:
                yield from _rows_of(table)

    def columns(self) -> list[str]:
        """Return the names of the further columns."""
        names: set[str] = set()
        for table, _ in self._further:
            if table is not None:
                names.update(table.column_names)
        return sorted(names)

    def metadata_of(self, row: int) -> dict[str, Scalar]:
        """Return the further columns of a row that have a value, and its `file` where that is known."""
        values = self.further(row)
        file = None if self.file_of is None else self.file_of(row)
        return values if file is None else {"file": file, **values}

    def further(self, row: int) -> dict[str, Scalar]:
        """Return the further columns of a row; those without a value are left out."""
        for table, rows in self._further:
            if row < rows:
                return {} if table is None else next(_rows_of(table.slice(row, 1)))
            row -= rows
        raise IndexError(f"row {row} beyond the last")

    def column(self, name: str) -> list[tuple[Any, int]]:
        """Return a column in parts: its Arrow values, or None where a part has none, and the number of rows."""
        if name in ("id", "title"):
            return [(self._columns[COLUMNS.index(name)], len(self))]
        parts: list[tuple[Any, int]] = []
        for table, rows in self._further:
            is_there = table is not None and name in table.column_names
            parts.append((table.column(name) if is_there else None, rows))
        return parts

    def rows_with(self, ids: Any) -> NDArray[np.int64]:
        """Return the rows, rising, of passages that were not removed and whose id is one of some; reads all ids."""
        import pyarrow as pa
        from pyarrow import compute

        values = pa.array(ids, pa.large_string()) if isinstance(ids, list) else ids
        matching: NDArray[np.bool_] = compute.is_in(
            self._columns[0], value_set=values
        ).to_numpy()
        return np.flatnonzero(matching if self.kept is None else matching & self.kept)

    def check_content(self) -> None:
        """Read every passage and compare with the digest; the time grows with the corpus."""
        import pyarrow as pa

        digest = hashlib.blake2b(digest_size=16)
        try:
            for column in self._columns:
                column.validate(full=True)
                if column.null_count:
                    raise ValueError("a value is missing")
            for fields in self._fields():
                add_to_digest(digest, fields)
        except (pa.ArrowException, UserError, ValueError) as error:
            raise damaged("corpus", self.directory, error) from error
        if (
            self.metadata
            and checksums(self.directory, [METADATA])[METADATA] != self.metadata
        ):
            raise UserError(
                f"corpus {self.directory} holds other metadata than was written; build it again"
            )
        if digest.hexdigest() != self.digest:
            raise UserError(
                f"corpus {self.directory} holds other passages than were written (by its digest); build it again"
            )

    def __len__(self) -> int:
        return self._ends[-1]

    @overload
    def __getitem__(self, row: int, /) -> Passage: ...

    @overload
    def __getitem__(self, row: slice, /) -> list[Passage]: ...

    def __getitem__(self, row: int | slice, /) -> Passage | list[Passage]:
        if isinstance(row, slice):
            return [self[position] for position in range(*row.indices(len(self)))]
        position = row + len(self) if row < 0 else row
        if not 0 <= position < len(self):
            raise IndexError(
                f"row {row} of a corpus of {count_of(len(self), 'passages')}"
            )
        chunk = bisect_right(self._ends, position)
        offset = position - (self._ends[chunk - 1] if chunk else 0)
        identifier, title, text = (
            column.chunk(chunk)[offset].as_py() for column in self._columns
        )
        return Passage(identifier, text, title)

    def __iter__(self) -> Iterator[Passage]:
        for identifier, title, text in self._fields():
            yield Passage(identifier, text, title)

    def _fields(self) -> Iterator[tuple[str, str, str]]:
        """Yield id, title and text of every passage."""
        for chunks in zip(*(column.chunks for column in self._columns), strict=True):
            yield from zip(*(chunk.to_pylist() for chunk in chunks), strict=True)


def corpus_schema() -> Any:
    """Return the columns of a corpus."""
    import pyarrow as pa

    return pa.schema([(name, pa.large_string()) for name in COLUMNS])


def add_to_digest(digest: hashlib.blake2b, fields: tuple[str, str, str]) -> None:
    """Continue the fingerprint of passages by one: its id, title and text."""
    for text in fields:
        data = text.encode()
        digest.update(len(data).to_bytes(8, "little") + data)


def _rows_of(table: Any) -> Iterator[dict[str, Scalar]]:
    """Yield the values of each row, those that are missing left out."""
    for batch in table.to_batches(max_chunksize=ROWS_IN_MEMORY):
        for row in batch.to_pylist():
            yield {name: value for name, value in row.items() if value is not None}


def map_table(file: Path) -> Any:
    """Return the table in a file, memory-mapped."""
    import pyarrow as pa

    return pa.ipc.open_stream(pa.memory_map(str(file))).read_all()
