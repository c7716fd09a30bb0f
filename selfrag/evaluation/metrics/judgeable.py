"""The records of a finished file of a run with what a judge has to see: items, outputs, texts of cited passages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any, TypeAlias

from retrieval.passage import Passage
from selfrag.errors import UserError
from selfrag.evaluation.items import Item
from selfrag.evaluation.metrics.judging import Record
from selfrag.evaluation.metrics.output import Output
from selfrag.evaluation.records import file_entry, read_manifest, read_records
from selfrag.jsonl import read_jsonl

Load: TypeAlias = Callable[[Path, str], Mapping[str, Item]]
"""Items by id, of a run's folder and the name of a file in it."""

_KEYS = ("id", "scores", "error", "text", "cited", "read", "retrieved", "segments", "usage")
"""What is read of a record: its trace may be large."""


def judgeable(folder: Path, name: str, load: Load) -> tuple[Mapping[str, Any], list[Record]]:
    """The task of a finished file of a run, as its manifest has it, and its records with their items, in order.

    Raises:
        UserError: the run has no such file or has not finished it, a record is of another item, or damaged.
    """
    entry = file_entry(read_manifest(folder), folder, name, finished=True)
    path, items = folder / f"{name}.jsonl", load(folder, name)
    records = read_records(path, _KEYS)
    for record in records:
        if record["id"] not in items:
            raise UserError(f"{path} has item {record['id']!r}, and the data file has not; give the file of the run")
    given = {record["id"]: {one.id: one for one in items[record["id"]].passages} for record in records}
    needed = {record["id"]: {*(record.get("cited") or ()), *(record.get("read") or ())} for record in records}
    bare = {key for key, ids in needed.items() if not ids <= set(given[key])}
    for key, passages in _traced(path, bare) if bare else ():
        given[key] = {**passages, **given[key]}
    found = [Record(items[one["id"]], Output.from_record(one), given[one["id"]]) for one in records]
    return entry["settings"]["task"], found


def _traced(path: Path, wanted: Set[str]) -> Iterator[tuple[str, dict[str, Passage]]]:
    """Passages in the traces of some records, where they have any; one trace is held at a time."""

    def parse(record: Mapping[str, Any]) -> tuple[str, dict[str, Passage]]:
        trace = record.get("trace") if record["id"] in wanted else None
        try:
            found = [Passage(**one) for decision in (trace or {}).get("decisions", ()) for one in decision["passages"]]
        except (TypeError, KeyError, AttributeError) as error:
            raise UserError(f"the trace of item {record['id']!r} is damaged: {error!r:.100}") from error
        return record["id"], {one.id: one for one in found}

    return read_jsonl(path, parse)
