"""Evaluation files as items of one kind of task, read strictly: rows of users, or the public file of a preset."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, cast

from retrieval.passage import Passage, Retriever
from selfrag.common.checks import check_filename, check_int
from selfrag.common.errors import UserError, count_of
from selfrag.common.jsonl import write_jsonl
from selfrag.common.provenance import sha256
from selfrag.common.public_fields import PublicRecord
from selfrag.evaluation.items import Item, choices, full_record, item_of, read_items
from selfrag.evaluation.metrics.registry import metrics
from selfrag.evaluation.presets import Given, Preset, passages_of
from selfrag.evaluation.task import SHORT, Task, task_of


@dataclass(frozen=True, slots=True)
class TaskFile:
    """One file to evaluate on."""

    name: str  # the published task, or the file's name without its endings; what a run and a table call it
    path: Path  # where it was read
    sha256: str  # of the file
    task: Task  # what its items are
    items: tuple[Item, ...]  # in the order of the file
    rows: int  # items of the whole file, before a sample was drawn


def _read_published(
    path: Path, preset: Preset, protocol: str, *, searched: bool
) -> list[Item]:
    """Read the items of the public file of a task; the protocol decides the wording and how many passages are kept."""
    protocol_rules = preset.protocol(protocol)
    rows: dict[str, int] = {}

    def parse(record: PublicRecord) -> Item:
        item = preset.schema.item(record)
        place = len(rows) + 1
        name = item.id or f"row-{place}"
        if name in rows:
            raise UserError(f"id {name!r} occurs twice, first in row {rows[name]}")
        rows[name] = place
        passages = passages_of(record, needed=not searched)[: protocol_rules.passages]
        item = replace(item, id=name, passages=passages, task=preset.schema.name)
        return _check_options(protocol_rules.wording.worded(item))

    return read_items(path, parse)


def read_task(
    source: Path | Given,
    *,
    limit: int | None = None,
    seed: int = 0,
    searched: bool = False,
) -> TaskFile:
    """Read a file of user rows, or of a published task.

    Args:
        source: rows in JSON Lines or one array, or the columns question and answer as `.csv` or `.tsv`; plain or `.gz`.
        limit: a seeded sample of this many items, in the order of the file.
        seed: of the sample.
        searched: passages are searched for rows without any; else a row of a published task must have some, and one
            of user rows if others of its file do.

    Raises:
        UserError: a row is bad, an id occurs twice, the file is empty, its rows are of several kinds, or a metric that
            it names is unknown; names `file:line` where it can.
    """
    if limit is not None:
        check_int("limit", limit)
    preset_file = source if isinstance(source, Given) else Given(source)
    if preset_file.preset is None:
        check = _Check(searched)
        numbers = count(1)
        items = read_items(
            preset_file.path,
            lambda row: check(item_of(full_record(row, next(numbers)))),
        )
        task = check.task
    else:
        items = _read_published(
            preset_file.path,
            preset_file.preset,
            preset_file.protocol,
            searched=searched,
        )
        task = preset_file.preset.task(preset_file.protocol)
    rows = len(items)
    if limit is not None and limit < rows:
        chosen = sorted(random.Random(seed).sample(range(rows), limit))  # noqa: S311 - no cryptography
        items = [items[i] for i in chosen]
    return TaskFile(
        preset_file.name,
        preset_file.path,
        sha256(preset_file.path),
        task,
        tuple(items),
        rows,
    )


def save_rows(rows: Iterable[Mapping[str, Any]], path: str | Path) -> TaskFile:
    """Write questions and answers as a file to evaluate on, and read it.

    Args:
        rows: a Hugging Face data set, a pandas frame or a list of dictionaries with `question` and `answer` or
            `answers`, or rows in the schema of files.
        path: where the file is written; it ends with `.jsonl`.

    Raises:
        UserError: a row is bad, or there is none.
    """
    target = Path(path)
    if target.suffix != ".jsonl":
        raise UserError(f"{path}: the file of rows must end with .jsonl")
    if isinstance(rows, Mapping):
        raise UserError(
            f"the data set has the splits {', '.join(map(str, rows))}; give one of them"
        )
    is_frame = hasattr(rows, "columns") and hasattr(rows, "to_dict")
    listed: Iterable[Any] = cast(Any, rows).to_dict("records") if is_frame else rows
    records = []
    for number, row in enumerate(listed, 1):
        if not isinstance(row, Mapping):
            raise UserError(
                f"row {number}: a row must be a mapping, not {type(row).__name__}"
            )
        values = {}
        for name, cell in row.items():
            value = _as_json(cell)
            if value is not None:
                values[str(name)] = value
        try:
            records.append(dict(full_record(values, number)))
        except UserError as error:
            raise UserError(f"row {number}: {error}") from error
    write_jsonl(target, records)
    return read_task(target)


def _as_json(cell: Any) -> Any:
    """Return a value of a data frame as JSON has it: lists for arrays, None for what is missing."""
    if hasattr(cell, "tolist"):
        cell = cell.tolist()
    if isinstance(cell, float) and math.isnan(cell):
        return None
    return cell


def read_tasks(
    sources: Sequence[Path | Given],
    *,
    limit: int | None = None,
    seed: int = 0,
    searched: bool = False,
) -> list[TaskFile]:
    """Read several files; their names must differ."""
    files = [
        source if isinstance(source, Given) else Given(source) for source in sources
    ]
    names = [file.name for file in files]
    for name in names:
        check_filename("the name of a file", name)
        if names.count(name) > 1:
            raise UserError(
                f"two files are called {name}; rename one, as a run keeps one result a name"
            )
    return [
        read_task(file, limit=limit, seed=seed, searched=searched) for file in files
    ]


def _check_options(item: Item) -> Item:
    """Return the same item, whose options can be told apart, if it has any."""
    if item.options:
        choices(item)
    return item


def _check_texts(item: Item) -> None:
    """Refuse a blank text, which every answer contains and every premise entails."""
    gold = () if item.answerable is False else item.references
    for key, texts in (("answers", gold), ("claims", item.claims)):
        if not all(map(str.strip, texts)):
            raise UserError(f"{key!r} has a blank text; fill it or take it out")


class _Check:
    """What must hold for each item of a file of user rows, and between them."""

    def __init__(self, searched: bool) -> None:
        self._searched = searched
        self._evidence = False
        self._ids: set[str] = set()
        self._first: Task | None = None
        self._metrics: tuple[str, ...] = ()

    @property
    def task(self) -> Task:
        """Return the kind of the items, with the metrics that the file names."""
        if self._first is None:
            raise UserError("no rows")
        if not self._metrics:
            return self._first
        return replace(self._first, metrics=metrics(self._metrics))

    def __call__(self, item: Item) -> Item:
        if item.id in self._ids:
            raise UserError(f"id {item.id!r} occurs twice")
        self._ids.add(item.id)
        task = task_of(item)
        _check_texts(item)
        self._first = self._first or task
        if task is not self._first:
            raise UserError(
                f"kind {task.kind} after rows of kind {self._first.kind}; put each kind into its own file"
            )
        self._check_metrics(item)
        _check_options(item)
        if len({passage.id for passage in item.passages}) != len(item.passages):
            raise UserError("two passages have one id")
        self._check_evidence(item)
        # the file names a kind of task that `items` does not know
        if task is SHORT and item.answers is None:
            return replace(item, answers=item.references)
        return item

    def _check_evidence(self, item: Item) -> None:
        """Refuse a row that lacks passages where the others have some, or the other way round."""
        if self._searched:
            return
        if len(self._ids) == 1:
            self._evidence = bool(item.passages)
        elif bool(item.passages) != self._evidence:
            has, others = "passages", "have none"
            if self._evidence:
                has, others = "no passages", "have some"
            raise UserError(
                f"{has}, though the rows before it {others}; fill 'passages', or give --index to search"
            )

    def _check_metrics(self, item: Item) -> None:
        """Keep the metrics of the first row; further rows may repeat them or say nothing."""
        if len(self._ids) == 1 and item.metrics:
            metrics(item.metrics)
            self._metrics = item.metrics
        elif item.metrics and item.metrics != self._metrics:
            raise UserError(
                f"'metrics' differ from those of the first row, {', '.join(self._metrics) or 'none'}"
            )


BATCH = 256
"""Queries of one search."""


def nothing_searched(queries: Sequence[str], k: int) -> Sequence[Sequence[Passage]]:
    """Refuse to search for items that bring their passages: being asked is an error of whoever runs them."""
    raise UserError(
        f"the items bring their passages; nothing is searched ({count_of(len(queries), 'queries')},"
        f" {count_of(k, 'passages')})"
    )


def searched(
    items: Sequence[Item], retriever: Retriever, passages: int
) -> tuple[Item, ...]:
    """Return the items with the best `passages` of the retriever for each that has none, searched by its question."""
    filled = list(items)
    bare = [place for place, item in enumerate(items) if not item.passages]
    for start in range(0, len(bare), BATCH):
        batch = bare[start : start + BATCH]
        queries = [items[place].query or items[place].instruction for place in batch]
        for place, hits in zip(batch, retriever(queries, passages), strict=True):
            filled[place] = replace(items[place], passages=tuple(hits))
    return tuple(filled)
