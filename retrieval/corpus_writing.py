"""Writes a corpus: passages, and the further columns of their rows, whose types are known at the end only."""

from __future__ import annotations

import hashlib
import json
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from retrieval.corpus import (
    CORPUS_FORMAT,
    FILE,
    METADATA,
    ROWS_IN_MEMORY,
    Corpus,
    CorpusManifest,
    Place,
    Row,
    Scalar,
    add_to_digest,
    corpus_schema,
    map_table,
)
from retrieval.passage import Passage
from selfrag.common.atomic import new_directory, write_json
from selfrag.common.errors import UserError
from selfrag.common.finished import MANIFEST, checksums, sizes
from selfrag.common.reading import user_path


def check_replaceable(path: Path, known: set[str]) -> None:
    """Refuse to write over a place that holds something else than an older result of ours."""
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file; name a directory")
    if path.is_dir():
        foreign = sorted(
            entry.name for entry in path.iterdir() if entry.name not in known
        )
        if foreign:
            raise UserError(
                f"{path} holds other files ({', '.join(foreign[:3])}); choose a new directory"
            )


_MOST_COLUMNS = 256
_CHARACTERS = 4_000_000  # a record batch ends there, or at `ROWS_IN_MEMORY`


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
        """Take the next row."""
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
        types = {
            name: _arrow_type(kinds) for name, kinds in sorted(self._types.items())
        }
        schema = pa.schema(list(types.items()))
        with (
            self._spool,
            (self._folder / METADATA).open("wb") as sink,
            pa.ipc.new_stream(sink, schema) as writer,
        ):
            self._spool.seek(0)
            while rows := [
                json.loads(line) for line in islice(self._spool, ROWS_IN_MEMORY)
            ]:
                columns = [
                    pa.array([_as(kind, row.get(name)) for row in rows], kind)
                    for name, kind in types.items()
                ]
                writer.write_batch(pa.record_batch(columns, schema=schema))
        (self._folder / "metadata.jsonl").unlink()
        return checksums(self._folder, [METADATA])[METADATA]


def _arrow_type(kinds: set[type]) -> Any:
    import pyarrow as pa

    if kinds == {bool}:
        return pa.bool_()
    if kinds == {int}:
        return pa.int64()
    return pa.float64() if kinds <= {int, float} else pa.large_string()


def _as(kind: Any, value: Scalar | None) -> Scalar | None:
    import pyarrow as pa

    if value is None or isinstance(value, str):
        return value
    if kind == pa.large_string():
        return json.dumps(value)
    return float(value) if kind == pa.float64() else value


class _Places:
    """Where each row comes from, in 16 bytes a row: what is needed to name an id that occurs twice."""

    def __init__(self) -> None:
        self._numbers = array("q")
        # Python's own hash: salted, so that nobody can choose ids that share one
        self._hashes = array("q")
        self._starts: list[int] = []
        self._sources: list[Place] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, identifier: str, place: Place) -> None:
        """Take the next row."""
        last = self._sources[-1] if self._sources else None
        if last is None or (last.source, last.unit) != (place.source, place.unit):
            self._starts.append(len(self))
            self._sources.append(place)
        self._numbers.append(place.number)
        self._hashes.append(hash(identifier))

    def place(self, row: int) -> Place:
        """Return the place of a row."""
        source = self._sources[bisect_right(self._starts, row) - 1]
        return replace(source, number=self._numbers[row])

    def check_unique(self, file: Path, others: Corpus | None) -> None:
        """Compare the ids of rows that share a hash, and all with those of other passages; refuse two with one id."""
        hashes = np.frombuffer(self._hashes, np.int64)
        order = np.sort(hashes)
        repeated = np.unique(order[1:][order[1:] == order[:-1]])
        ids, first = map_table(file).column("id"), dict[str, int]()
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


def _write(
    passages: Iterable[Passage | Row], folder: Path, others: Corpus | None
) -> tuple[int, str, str]:
    """Write all rows and return their count, their digest, and that of their further columns."""
    import pyarrow as pa

    schema, file = corpus_schema(), folder / FILE
    digest = hashlib.blake2b(digest_size=16)
    places = _Places()
    further = _MetadataWriter(folder)
    batch: list[tuple[str, str, str]] = []
    waiting = 0
    with file.open("wb") as sink, pa.ipc.new_stream(sink, schema) as writer:

        def flush() -> None:
            columns = [
                pa.array(values, pa.large_string())
                for values in zip(*batch, strict=True)
            ]
            writer.write_batch(pa.record_batch(columns, schema=schema))
            batch.clear()

        for number, item in enumerate(passages, start=1):
            row = (
                item
                if isinstance(item, Row)
                else Row(item, Place("passages", number, "row"))
            )
            passage = row.passage
            if not passage.id.strip() or not passage.text.strip():
                raise UserError(
                    f"{row.place}: {'text' if passage.id.strip() else 'id'} is empty"
                )
            fields = passage.id, passage.title, passage.text
            places.add(passage.id, row.place)
            further.add(row.metadata)
            add_to_digest(digest, fields)
            batch.append(fields)
            waiting += sum(map(len, fields))
            if len(batch) == ROWS_IN_MEMORY or waiting > _CHARACTERS:
                flush()
                waiting = 0
        if batch:
            flush()
    places.check_unique(file, others)
    return len(places), digest.hexdigest(), further.finish()


def build_corpus(
    passages: Iterable[Passage | Row],
    directory: str | Path,
    *,
    others: Corpus | None = None,
) -> Corpus:
    """Write a corpus. Until the last passage is on disk nothing appears at `directory`.

    Args:
        passages: in the order of their rows; a `Row` knows its file and line.
        directory: a new place, or that of an older corpus, which is replaced.
        others: passages whose ids are used already.

    Raises:
        UserError: no passages, a passage without id or text, an id that occurs twice, or a full disk.
    """
    path = user_path(directory)
    check_replaceable(path, {FILE, METADATA, MANIFEST})
    with new_directory(path) as partial:
        count, digest, further = _write(passages, partial, others)
        if count == 0:
            raise UserError("no passages: an empty corpus cannot be searched")
        manifest = CorpusManifest(count, digest, sizes(partial), further)
        write_json(partial / MANIFEST, {"format": CORPUS_FORMAT, **asdict(manifest)})
    return Corpus.open(path)
