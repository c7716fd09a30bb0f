"""A corpus on disk: passages in an Arrow file that is memory-mapped, in a fixed order, with unique ids; and filters.

The file is an Arrow stream as `datasets` writes them; `Corpus.dataset()` opens it as a `Dataset` without copying.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from itertools import accumulate, chain, compress, islice, repeat
from pathlib import Path
from typing import IO, Any, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from retrieval.passage import Passage
from retrieval.vectors import Mask
from selfrag.common.atomic import MANIFEST, check_finished, checksums, damaged, new_directory, sizes, write_json
from selfrag.common.checks import whole
from selfrag.common.errors import UserError
from selfrag.common.reading import user_path

Scalar: TypeAlias = str | int | float | bool
FILE, METADATA = "passages.arrow", "metadata.arrow"
_FORMAT = "selfrag-corpus-1"
_ROWS, _CHARACTERS = 2048, 4_000_000  # a record batch ends at either
_COLUMNS, _MOST_COLUMNS = ("id", "title", "text"), 256


def scalars(fields: Mapping[str, Any]) -> dict[str, Scalar]:
    """The values that a column can hold: non-empty texts, numbers and truth values; others are left out."""
    return {str(name): value for name, value in fields.items() if _is_scalar(value)}


def _is_scalar(value: Any) -> bool:
    if isinstance(value, int):
        return -(1 << 63) <= value < 1 << 63
    return bool(value) if isinstance(value, str) else isinstance(value, float) and math.isfinite(value)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row comes from."""

    source: str  # the file
    number: int  # line or row, from 1
    unit: str = "line"  # `line` for text files, `row` for tables without lines

    def __str__(self) -> str:
        return f"{self.source}:{self.number}" if self.unit == "line" else f"{self.source}: {self.unit} {self.number}"


@dataclass(frozen=True, slots=True)
class Row:
    """One passage of a corpus to be, its origin, and its further columns."""

    passage: Passage
    place: Place
    metadata: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CorpusManifest:
    """What a corpus directory holds."""

    passages: int  # number of passages
    digest: str  # of all ids, titles and texts in their order
    files: dict[str, int]  # bytes by relative file name
    metadata: str = ""  # digest of the file of further columns; empty where there are none

    def __post_init__(self) -> None:
        whole("passages", self.passages)


class Corpus(Sequence[Passage]):
    """Passages by row position. Cheap to open whatever its size, and safe to read from many threads.

    Attributes:
        directory: where it lives.
        digest: fingerprint of all ids, titles and texts in their order.
        metadata: fingerprint of the further columns; empty where there are none.
        kept: bool [rows], false for passages that were removed; None where none was.
        file_of: tells the path of the file of a row; None where no files are known.
    """

    def __init__(self, directory: Path, table: Any, digest: str, metadata: str = "", further: Any = None) -> None:
        self.directory = directory
        self.digest = digest
        self.metadata = metadata
        self._further = [(further, len(table))]
        self._columns = [table.column(name) for name in _COLUMNS]
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
        manifest = check_finished(path, CorpusManifest, [_FORMAT], "corpus", [FILE])
        further = None
        try:
            table = _read(path / FILE)
            table.validate()
            if (path / METADATA).exists():
                further = _read(path / METADATA)
                further.validate()
        except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
            raise damaged("corpus", path, error) from error
        if table.schema != _schema() or len(table) != manifest.passages:
            raise damaged("corpus", path, f"{FILE} does not hold the {manifest.passages} passages of {MANIFEST}")
        if (further is None) != (not manifest.metadata) or (further is not None and len(further) != len(table)):
            raise damaged("corpus", path, f"{METADATA} does not fit its passages")
        return cls(path, table, manifest.digest, manifest.metadata, further)

    @classmethod
    def joined(cls, parts: Sequence[Corpus], kept: NDArray[np.bool_] | None) -> Corpus:
        """The passages of several corpora, one after the other; `kept` is bool [rows], false for removed passages.

        Removed passages keep their rows, and `live` leaves them out.
        """
        import pyarrow as pa

        table = pa.concat_tables(pa.table(part._columns, _schema()) for part in parts)
        joined = cls(parts[0].directory, table, parts[0].digest if len(parts) == 1 else "")
        joined._further = [further for part in parts for further in part._further]
        joined.kept = kept
        return joined

    def with_kept(self, kept: NDArray[np.bool_]) -> Corpus:
        """Return the same passages with others removed; `kept` is bool [rows], false for removed passages."""
        changed = copy(self)
        changed.kept = kept
        return changed

    def live(self) -> Iterator[Row]:
        """The passages that were not removed, with their further columns."""
        further = chain.from_iterable(
            repeat(dict[str, Scalar](), rows) if table is None else _rows_of(table) for table, rows in self._further
        )
        rows = map(Row, self, repeat(Place("passages", 1, "row")), further)
        return rows if self.kept is None else compress(rows, self.kept)

    def columns(self) -> list[str]:
        """Names of the further columns."""
        return sorted({name for table, _ in self._further if table is not None for name in table.column_names})

    def metadata_of(self, row: int) -> dict[str, Scalar]:
        """Return the further columns of a row that have a value, and its `file` where that is known."""
        file = None if self.file_of is None else self.file_of(row)
        return ({} if file is None else {"file": file}) | self.further(row)

    def further(self, row: int) -> dict[str, Scalar]:
        """The further columns of a row; those without a value are left out."""
        for table, rows in self._further:
            if row < rows:
                return {} if table is None else next(_rows_of(table.slice(row, 1)))
            row -= rows
        raise IndexError(f"row {row} beyond the last")

    def column(self, name: str) -> list[tuple[Any, int]]:
        """A column in parts: its Arrow values, or None where a part does not have it, and the number of rows."""
        if name in ("id", "title"):
            return [(self._columns[_COLUMNS.index(name)], len(self))]
        tables = [
            (table if table is not None and name in table.column_names else None, n) for table, n in self._further
        ]
        return [(None if table is None else table.column(name), rows) for table, rows in tables]

    def rows_with(self, ids: Any) -> NDArray[np.int64]:
        """Rows, rising, of passages that were not removed and whose id is one of some; reads all ids."""
        import pyarrow as pa
        from pyarrow import compute

        wanted = pa.array(ids, pa.large_string()) if isinstance(ids, list) else ids
        found: NDArray[np.bool_] = compute.is_in(self._columns[0], value_set=wanted).to_numpy()
        return np.flatnonzero(found if self.kept is None else found & self.kept)

    def check_content(self) -> None:
        """Read every passage and compare with the digest; the time grows with the corpus."""
        import pyarrow as pa

        digest = hashlib.blake2b(digest_size=16)
        try:
            for column in self._columns:
                column.validate(full=True)
            for passage in self:
                _hash(digest, (passage.id, passage.title, passage.text))
        except (pa.ArrowException, UserError, ValueError) as error:
            raise damaged("corpus", self.directory, error) from error
        if self.metadata and checksums(self.directory, [METADATA])[METADATA] != self.metadata:
            raise UserError(f"corpus {self.directory} holds other metadata than was written; build it again")
        if digest.hexdigest() != self.digest:
            raise UserError(
                f"corpus {self.directory} holds other passages than were written (by its digest); build it again"
            )

    @classmethod
    def build(cls, passages: Iterable[Passage | Row], directory: str | Path, *, others: Corpus | None = None) -> Corpus:
        """Write a corpus. Until the last passage is on disk nothing appears at `directory`.

        Args:
            passages: in the order of their rows; a `Row` knows its file and line.
            directory: a new place, or that of an older corpus, which is replaced.
            others: passages whose ids are used already.

        Raises:
            UserError: no passages, a passage without id or text, an id that occurs twice, or a full disk.
        """
        path = user_path(directory)
        check_replaceable(path, {FILE, MANIFEST})
        with new_directory(path) as partial:
            count, digest, further = _write(passages, partial, others)
            if count == 0:
                raise UserError("no passages: an empty corpus cannot be searched")
            manifest = CorpusManifest(count, digest, sizes(partial), further)
            write_json(partial / MANIFEST, {"format": _FORMAT, **asdict(manifest)})
        return cls.open(path)

    def dataset(self) -> Any:
        """The same file as a `datasets.Dataset`, memory-mapped."""
        from datasets import Dataset

        return Dataset.from_file(str(self.directory / FILE))

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
            raise IndexError(f"row {row} of a corpus of {len(self)} passages")
        chunk = bisect_right(self._ends, position)
        offset = position - (self._ends[chunk - 1] if chunk else 0)
        identifier, title, text = (column.chunk(chunk)[offset].as_py() for column in self._columns)
        return Passage(identifier, text, title)

    def __iter__(self) -> Iterator[Passage]:
        for chunks in zip(*(column.chunks for column in self._columns), strict=True):
            for identifier, title, text in zip(*(chunk.to_pylist() for chunk in chunks), strict=True):
                yield Passage(identifier, text, title)


def check_replaceable(path: Path, known: set[str]) -> None:
    """Refuse to write over a place that holds something else than an older result of ours."""
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file; name a directory")
    if path.is_dir():
        foreign = sorted(entry.name for entry in path.iterdir() if entry.name not in known)
        if foreign:
            raise UserError(f"{path} holds other files ({', '.join(foreign[:3])}); choose a new directory")


def _schema() -> Any:
    import pyarrow as pa

    return pa.schema([(name, pa.large_string()) for name in _COLUMNS])


def _hash(digest: hashlib.blake2b, fields: tuple[str, str, str]) -> None:
    """Continue the fingerprint of passages by one: its id, title and text."""
    for text in fields:
        data = text.encode()
        digest.update(len(data).to_bytes(8, "little") + data)


class _MetadataWriter:
    """Collects the metadata of rows on disk, since the type of a column is known at the end only.

    The first 256 columns are kept. Whole and other numbers in one column become floats; texts and something else become
    texts.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._spool: IO[str] | None = None
        self._types: dict[str, set[type]] = {}
        self._rows = 0

    def add(self, values: Mapping[str, Scalar]) -> None:
        """The next row."""
        if values and self._spool is None:
            self._spool = (self._folder / "metadata.jsonl").open("w+", encoding="utf-8")
            self._spool.write("{}\n" * self._rows)
        kept = {}
        for name, value in values.items():
            if name in self._types or len(self._types) < _MOST_COLUMNS:
                self._types.setdefault(name, set()).add(type(value))
                kept[name] = value
        if self._spool is not None:
            self._spool.write(json.dumps(kept) + "\n")
        self._rows += 1

    def finish(self) -> str:
        """Write the file and return its digest; empty where no row has metadata."""
        import pyarrow as pa

        if self._spool is None:
            return ""
        types = {name: _arrow_type(found) for name, found in sorted(self._types.items())}
        schema = pa.schema(list(types.items()))
        with self._spool, (self._folder / METADATA).open("wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
            self._spool.seek(0)
            while rows := [json.loads(line) for line in islice(self._spool, _ROWS)]:
                columns = [pa.array([_as(kind, row.get(name)) for row in rows], kind) for name, kind in types.items()]
                writer.write_batch(pa.record_batch(columns, schema=schema))
        (self._folder / "metadata.jsonl").unlink()
        return checksums(self._folder, [METADATA])[METADATA]


def _arrow_type(found: set[type]) -> Any:
    import pyarrow as pa

    if found == {bool}:
        return pa.bool_()
    if found <= {int, float}:
        return pa.int64() if found == {int} else pa.float64()
    return pa.large_string()


def _as(kind: Any, value: Scalar | None) -> Scalar | None:
    import pyarrow as pa

    if value is None or kind != pa.large_string() or isinstance(value, str):
        return float(value) if kind == pa.float64() and value is not None else value
    return json.dumps(value)


def _rows_of(table: Any) -> Iterator[dict[str, Scalar]]:
    """The values of each row, those that are missing left out."""
    for batch in table.to_batches(max_chunksize=_ROWS):
        for row in batch.to_pylist():
            yield {name: value for name, value in row.items() if value is not None}


class _Places:
    """Where each row comes from, in 16 bytes a row: what is needed to name an id that occurs twice."""

    def __init__(self) -> None:
        self._numbers = array("q")
        self._hashes = array("q")  # Python's own hash: salted, so that nobody can choose ids that share one
        self._starts: list[int] = []
        self._sources: list[Place] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, identifier: str, place: Place) -> None:
        """The next row."""
        last = self._sources[-1] if self._sources else None
        if last is None or (last.source, last.unit) != (place.source, place.unit):
            self._starts.append(len(self))
            self._sources.append(place)
        self._numbers.append(place.number)
        self._hashes.append(hash(identifier))

    def place(self, row: int) -> Place:
        """Of a row."""
        source = self._sources[bisect_right(self._starts, row) - 1]
        return replace(source, number=self._numbers[row])

    def check_unique(self, file: Path, others: Corpus | None) -> None:
        """Compare the ids of rows that share a hash, and all with those of other passages; refuse two with one id."""
        hashes = np.frombuffer(self._hashes, np.int64)
        order = np.sort(hashes)
        repeated = np.unique(order[1:][order[1:] == order[:-1]])
        ids, first = _read(file).column("id"), dict[str, int]()
        if others is not None and len(used := others.rows_with(ids)):
            row = ids.index(others[int(used[0])].id).as_py()
            raise UserError(
                f"{self.place(row)}: id {ids[row].as_py()!r:.80} is in the index already; give this passage another id"
            )
        for row in np.flatnonzero(np.isin(hashes, repeated)).tolist():
            identifier = ids[row].as_py()
            if identifier in first:
                raise UserError(
                    f"{self.place(row)}: id {identifier!r} is already used at {self.place(first[identifier])}; "
                    "ids must be unique"
                )
            first[identifier] = row


def _write(passages: Iterable[Passage | Row], folder: Path, others: Corpus | None) -> tuple[int, str, str]:
    """Write all rows and return their count, their digest, and that of their further columns."""
    import pyarrow as pa

    schema, file = _schema(), folder / FILE
    digest, places, further = hashlib.blake2b(digest_size=16), _Places(), _MetadataWriter(folder)
    batch: list[tuple[str, str, str]] = []
    waiting = 0
    with file.open("wb") as sink, pa.ipc.new_stream(sink, schema) as writer:

        def flush() -> None:
            columns = [pa.array(values, pa.large_string()) for values in zip(*batch, strict=True)]
            writer.write_batch(pa.record_batch(columns, schema=schema))
            batch.clear()

        for number, given in enumerate(passages, start=1):
            row = given if isinstance(given, Row) else Row(given, Place("passages", number, "row"))
            passage = row.passage
            if not passage.id.strip() or not passage.text.strip():
                raise UserError(f"{row.place}: {'text' if passage.id.strip() else 'id'} is empty")
            fields = passage.id, passage.title, passage.text
            places.add(passage.id, row.place)
            further.add(row.metadata)
            _hash(digest, fields)
            batch.append(fields)
            waiting += sum(map(len, fields))
            if len(batch) == _ROWS or waiting > _CHARACTERS:
                flush()
                waiting = 0
        if batch:
            flush()
    places.check_unique(file, others)
    return len(places), digest.hexdigest(), further.finish()


def _read(file: Path) -> Any:
    """The table in a file, memory-mapped."""
    import pyarrow as pa

    return pa.ipc.open_stream(pa.memory_map(str(file))).read_all()


OPERATORS = {
    ">=": "greater_equal",
    "<=": "less_equal",
    "!=": "not_equal",
    "=": "equal",
    ">": "greater",
    "<": "less",
    "in": "is_in",
}
_CONDITION = re.compile(r"\s*([^<>=!\s]+)\s*(>=|<=|!=|==|=|>|<|\sin\b)\s*(.*?)\s*", re.DOTALL)
_LIST = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[^,"]*?)\s*(?:,|$)', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of a column with values. A passage without a value in that column does not meet it."""

    column: str  # `id`, `title`, or a column of the metadata
    operator: str  # `=`, `!=`, `<`, `<=`, `>`, `>=` or `in`
    values: tuple[Scalar, ...]  # one value; any number for `in`


def parse_condition(text: str) -> Condition:
    """A condition such as `year>=2020`, `lang=en`, `title != "A, B"` or `source in [news, wiki]`.

    Values are JSON where they can be (numbers, true, false, quoted texts), else texts as they stand.
    """
    found = _CONDITION.fullmatch(text)
    if found is None or not found[3]:
        raise UserError(f"where={text!r:.80}: give a condition such as year>=2020 or 'source in [news, wiki]'")
    column, operator, value = found[1], found[2].strip().replace("==", "="), found[3]
    if operator != "in":
        return Condition(column, operator, (_value(value),))
    if not (value.startswith("[") and value.endswith("]")):
        raise UserError(f"where={text!r:.80}: give the values in brackets, such as {column} in [a, b]")
    return Condition(column, operator, tuple(_value(one[1]) for one in _LIST.finditer(value[1:-1]) if one[1]))


def _value(text: str) -> Scalar:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    fits = isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value))
    return value if fits and (not isinstance(value, int) or abs(value) < 1 << 63) else text


def allowed_rows(corpus: Corpus, conditions: Sequence[Condition | str]) -> Mask:
    """Which passages meet all of some conditions, bool [rows]."""
    parsed = [parse_condition(one) if isinstance(one, str) else one for one in conditions]
    masks = [_mask(corpus, condition) for condition in parsed]
    return reduce(np.logical_and, masks, np.ones(len(corpus), bool))


def _mask(corpus: Corpus, condition: Condition) -> Mask:
    from pyarrow import compute

    if condition.operator not in OPERATORS:
        raise UserError(f"operator={condition.operator!r:.40}: choose one of {', '.join(OPERATORS)}")
    parts = corpus.column(condition.column)
    if all(column is None for column, _ in parts):
        known = ", ".join(["id", "title", *corpus.columns()])
        raise UserError(f"where: no column {condition.column!r:.80}; the columns are: {known:.400}")
    masks = []
    for column, rows in parts:
        if column is None or not condition.values:
            masks.append(np.zeros(rows, bool))
            continue
        column, values = _comparable(column, condition)
        if condition.operator == "in":
            met = compute.is_in(column, value_set=values)
        else:
            met = getattr(compute, OPERATORS[condition.operator])(column, values[0])
        masks.append(met.fill_null(False).to_numpy())
    return np.concatenate(masks)


def _comparable(column: Any, condition: Condition) -> tuple[Any, Any]:
    """A column and the values of a condition in one type; texts that are numbers are compared as numbers."""
    import pyarrow as pa

    values = condition.values
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    is_text = pa.types.is_large_string(column.type)
    try:
        if is_text and numeric and condition.column not in ("id", "title"):
            try:
                return column.cast(pa.float64()), pa.array(map(float, values), pa.float64())
            except pa.ArrowInvalid:
                if condition.operator not in ("=", "!=", "in"):
                    raise
        if is_text:
            return column, pa.array([one if isinstance(one, str) else json.dumps(one) for one in values], column.type)
        if numeric != (not pa.types.is_boolean(column.type)):
            raise pa.ArrowInvalid("another type")
        if numeric:
            wanted = pa.float64() if any(isinstance(value, float) for value in values) else column.type
            return column.cast(wanted, safe=False), pa.array(values, wanted)
        return column, pa.array(values, column.type)
    except (pa.ArrowException, TypeError, ValueError) as error:
        held = "texts" if is_text else "truth values" if pa.types.is_boolean(column.type) else "numbers"
        compared = f"{condition.operator} cannot compare them with {', '.join(map(str, values)):.60}"
        raise UserError(f"where: column {condition.column!r:.60} holds {held}; {compared}") from error
