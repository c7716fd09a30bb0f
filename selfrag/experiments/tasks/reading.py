"""An evaluation file as items of one kind of task, read strictly. Knows the schema of `eval` files, runs nothing."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from selfrag.errors import UserError
from selfrag.experiments.items import Item, read_items
from selfrag.experiments.provenance import sha256
from selfrag.experiments.tasks.choices import choices
from selfrag.experiments.tasks.task import SHORT, Task, task_of


@dataclass(frozen=True, slots=True)
class TaskFile:
    """One file to evaluate on.

    Attributes:
        name: the file's name without its endings; what a run and a table call it.
        path: where it was read.
        sha256: of the file.
        task: what its items are.
        items: in the order of the file.
        rows: items of the whole file, before a sample was drawn.
    """

    name: str
    path: Path
    sha256: str
    task: Task
    items: tuple[Item, ...]
    rows: int


def read_task(path: Path, *, limit: int | None = None, seed: int = 0) -> TaskFile:
    """Read a file in the schema of `eval/dev`.

    Args:
        path: `.jsonl` or `.jsonl.gz`.
        limit: a seeded sample of this many items, in the order of the file.
        seed: of the sample.

    Raises:
        UserError: a row is bad, an id occurs twice, the file is empty, or its rows are of several kinds.
    """
    if limit is not None and limit < 1:
        raise UserError(f"--limit {limit}: give a number of at least 1")
    check = _Check()
    items = read_items(path, check=check)
    rows = len(items)
    if limit is not None and limit < rows:
        chosen = sorted(random.Random(seed).sample(range(rows), limit))  # noqa: S311 - no cryptography
        items = [items[i] for i in chosen]
    return TaskFile(_stem(path), path, sha256(path), task_of(items[0]), tuple(items), rows)


def read_tasks(paths: Sequence[Path], *, limit: int | None = None, seed: int = 0) -> list[TaskFile]:
    """Several files; their names must differ.

    Raises:
        UserError: as `read_task`, or two files have one name.
    """
    names = [_stem(path) for path in paths]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"two files are called {name}; rename one, as a run keeps one result a name")
    return [read_task(path, limit=limit, seed=seed) for path in paths]


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".jsonl")


class _Check:
    """What must hold for each item of a file, and between them."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._first: Task | None = None

    def __call__(self, item: Item) -> Item:
        if not item.task:
            raise UserError("key 'task' is missing; a row in the schema of eval/dev has it")
        if item.id in self._seen:
            raise UserError(f"id {item.id!r} occurs twice")
        self._seen.add(item.id)
        task = task_of(item)
        self._first = self._first or task
        if task is not self._first:
            raise UserError(f"kind {task.kind} after rows of kind {self._first.kind}; put each kind into its own file")
        if item.options:
            choices(item)
        if len({passage.id for passage in item.passages}) != len(item.passages):
            raise UserError("two passages have one id")
        # Short answers also where the file names a kind of task that `items` does not know.
        return replace(item, answers=item.references) if task is SHORT and item.answers is None else item
