"""Where pairs come from: a JSONL file, or a Hugging Face data set, in memory or streaming. Knows no critic.

Reading is strict: a bad row stops with its place, before anything is spent where the source can be read twice; or, if
asked for, it is counted and listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from critic.augment.augmented import Dropped
from critic.pairs import Pair, parse_pair
from critic.sources.streams import unbroken
from retrieval.errors import UserError
from selfrag.jsonl import read_jsonl

BadRows = Literal["stop", "drop"]
_AGAIN = "finished shards are kept, run the same again"


class Source(Protocol):
    """Pairs in a fixed order; may be read again from the start."""

    @property
    def name(self) -> str:
        """What the manifest calls it; no path."""
        ...

    def total(self) -> int | None:
        """Read everything once to check it and count it; None where that is as dear as the work itself."""
        ...

    def __iter__(self) -> Iterator[Pair | Dropped]: ...


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
        """Number of rows.

        Raises:
            UserError: the file cannot be read, or a row is bad and bad rows stop.
        """
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[Pair | Dropped]:
        checked = _Checked(self.path.name, self.bad_rows)
        return _limited(read_jsonl(self.path, checked), self.limit)


@dataclass(frozen=True, slots=True)
class DatasetPairs:
    """A `datasets.Dataset` or `IterableDataset`, or any other iterable of dictionaries that can be read again.

    Attributes:
        dataset: its rows, in order.
        name: what to call it.
        columns: our key -> column of the data set, for keys that are named otherwise there. A set without `id` gets
            ids from positions.
    """

    dataset: Iterable[Mapping[str, Any]]
    name: str
    columns: Mapping[str, str] = field(default_factory=dict)
    bad_rows: BadRows = "stop"
    limit: int | None = None

    def total(self) -> int | None:
        """Number of rows; None for a stream, whose bad rows are met when they come.

        Raises:
            UserError: a row is bad and bad rows stop.
        """
        return sum(1 for _ in self) if hasattr(self.dataset, "__len__") else None

    def __iter__(self) -> Iterator[Pair | Dropped]:
        return _limited(self._rows(), self.limit)

    def _rows(self) -> Iterator[Pair | Dropped]:
        checked = _Checked(self.name, self.bad_rows)
        for number, found in enumerate(unbroken(self.dataset, self.name, _AGAIN), 1):
            record = {**found, **{key: found.get(column) for key, column in self.columns.items()}}
            given = _without_nulls(record)
            given.setdefault("id", f"{self.name}-{number}")
            try:
                yield checked(given)
            except UserError as error:
                raise UserError(f"{self.name} row {number}: {error}") from error


def _without_nulls(value: Any) -> Any:
    """A row, or a part of one, without the nulls that Arrow fills gaps with."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(part) for key, part in value.items() if part is not None}
    return [_without_nulls(part) for part in value] if isinstance(value, list) else value


@dataclass(slots=True)
class _Checked:
    """Parses rows in their order; ids occur once."""

    name: str
    bad_rows: BadRows
    seen: set[str] = field(default_factory=set)
    row: int = 0

    def __call__(self, record: dict[str, Any]) -> Pair | Dropped:
        self.row += 1
        try:
            pair = parse_pair(record)
            if pair.id in self.seen:
                raise UserError(f"id {pair.id!r} occurs twice")
        except UserError as error:
            if self.bad_rows == "stop":
                raise
            return Dropped(f"{self.name}:{self.row}", "bad row", str(error).encode("utf-8", "replace").decode())
        self.seen.add(pair.id)
        return pair


def _limited(items: Iterator[Pair | Dropped], limit: int | None) -> Iterator[Pair | Dropped]:
    for number, item in enumerate(items):
        if limit is not None and number >= limit:
            return
        yield item


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
        bad_rows: `stop` at the first bad row, or `drop` and count them.
        limit: read this many rows only.

    Raises:
        UserError: there is no such file or data set, or a file is given what only data sets have.
    """
    path = Path(pairs)
    if path.is_file():
        if configuration is not None or split != "train" or streaming or columns:
            raise UserError(f"{pairs} is a file; a configuration, a split, streaming and columns are for data sets")
        return JsonlPairs(path, bad_rows, limit)
    import datasets

    try:
        if (path / "state.json").exists() or (path / "dataset_dict.json").exists():
            found = datasets.load_from_disk(pairs)
            found = found[split] if isinstance(found, dict) else found
        else:
            found = datasets.load_dataset(pairs, configuration, split=split, streaming=streaming)
    except (LookupError, ValueError, OSError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise UserError(f"no pairs at {pairs!r} (split {split!r}): {error}") from error
    name = path.name if configuration is None else f"{path.name}/{configuration}"
    return DatasetPairs(found, name, columns or {}, bad_rows, limit)
