"""Where pairs come from: a JSONL file, or a Hugging Face data set, in memory or streaming.

Reading is strict: a bad row stops with its place, before anything is spent where the source can be read twice; or, if
asked for, it is counted and listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeAlias

from critic.augment.algorithm import Dropped
from critic.pairs import Pair, parse_pair
from critic.sources.mixture import open_dataset
from retrieval.errors import UserError
from selfrag.jsonl import read_jsonl
from selfrag.training.public_rows import unbroken

BadRows: TypeAlias = Literal["stop", "drop"]


@dataclass(frozen=True, slots=True)
class JsonlPairs:
    """A JSONL file in the schema of `critic.pairs`, `.gz` allowed."""

    path: Path
    bad_rows: BadRows = "stop"
    limit: int | None = None

    @property
    def name(self) -> str:
        """Name of the file."""
        return self.path.name

    def total(self) -> int:
        """Number of rows, all checked.

        Raises:
            UserError: the file cannot be read, or a row is bad and bad rows stop.
        """
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[Pair | Dropped]:
        return islice(read_jsonl(self.path, _checked(self.name, self.bad_rows)), self.limit)


@dataclass(frozen=True, slots=True)
class DatasetPairs:
    """A `datasets.Dataset` or `IterableDataset`, or any other iterable of dictionaries that can be read again."""

    dataset: Iterable[Mapping[str, Any]]  # its rows, in order
    name: str  # what to call it
    # our key -> column of the data set, for keys that are named otherwise there. A set without `id` gets ids from
    # positions.
    columns: Mapping[str, str] = field(default_factory=dict)
    bad_rows: BadRows = "stop"  # `stop` at the first bad row, or `drop` and count them
    limit: int | None = None  # read this many rows only

    def total(self) -> int | None:
        """Number of rows, all checked; None for a stream, whose bad rows are met when they come.

        Raises:
            UserError: a row is bad and bad rows stop.
        """
        return sum(1 for _ in self) if hasattr(self.dataset, "__len__") else None

    def __iter__(self) -> Iterator[Pair | Dropped]:
        return islice(self._rows(), self.limit)

    def _rows(self) -> Iterator[Pair | Dropped]:
        checked = _checked(self.name, self.bad_rows)
        rows = unbroken(self.dataset, self.name, "finished shards are kept, run the same again")
        for number, found in enumerate(rows, 1):
            record = {**found, **{key: found.get(column) for key, column in self.columns.items()}}
            try:
                yield checked({"id": f"{self.name}-{number}", **_without_nulls(record)})
            except UserError as error:
                raise UserError(f"{self.name} row {number}: {error}") from error


Source: TypeAlias = JsonlPairs | DatasetPairs


def _without_nulls(value: Any) -> Any:
    """A row, or a part of one, without the nulls that Arrow fills gaps with."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(part) for key, part in value.items() if part is not None}
    return [_without_nulls(part) for part in value] if isinstance(value, list) else value


def _checked(name: str, bad_rows: BadRows) -> Callable[[dict[str, Any]], Pair | Dropped]:
    """A parser of rows in their order; ids occur once."""
    seen: set[str] = set()
    row = 0

    def parse(record: dict[str, Any]) -> Pair | Dropped:
        nonlocal row
        row += 1
        try:
            pair = parse_pair(record)
            if pair.id in seen:
                raise UserError(f"id {pair.id!r} occurs twice")
        except UserError as error:
            if bad_rows == "stop":
                raise
            return Dropped(f"{name}:{row}", "bad row", str(error).encode("utf-8", "replace").decode())
        seen.add(pair.id)
        return pair

    return parse


def open_source(
    pairs: str,
    *,
    configuration: str | None = None,
    split: str = "train",
    streaming: bool = False,
    columns: Mapping[str, str] | None = None,
    bad_rows: BadRows = "stop",
    limit: int | None = None,
) -> Source:
    """A source by name: a JSONL file, a folder that `save_to_disk` wrote, or a data set that `load_dataset` finds.

    Args:
        pairs: file, folder, or name on the hub.
        configuration: of a data set that has several.
        split: of a data set.
        streaming: do not download the data set first.
        columns: see `DatasetPairs`.
        bad_rows: see `DatasetPairs`.
        limit: see `DatasetPairs`.

    Raises:
        UserError: there is no such file or data set, or a file is given what only data sets have.
    """
    path = Path(pairs)
    if path.is_file():
        if configuration is not None or split != "train" or streaming or columns:
            raise UserError(f"{pairs} is a file; a configuration, a split, streaming and columns are for data sets")
        return JsonlPairs(path, bad_rows, limit)
    place = f"no pairs at {pairs!r} (split {split!r})"
    found = open_dataset(pairs, configuration, split, place=place, streaming=streaming)
    name = path.name if configuration is None else f"{path.name}/{configuration}"
    return DatasetPairs(found, name, columns or {}, bad_rows, limit)
