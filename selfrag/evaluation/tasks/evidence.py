"""Passages for items that bring none: searched once, the same for every system. Knows no system."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from retrieval.passage import Passage, Retriever
from selfrag.errors import UserError
from selfrag.evaluation.items import Item
from selfrag.evaluation.tasks.reading import TaskFile

BATCH = 256
"""Queries of one search."""


def nothing_searched(queries: Sequence[str], k: int) -> Sequence[Sequence[Passage]]:
    """A retriever for items that bring their passages: being asked is an error of whoever runs them.

    Raises:
        UserError: always.
    """
    raise UserError(f"the items bring their passages; nothing is searched ({len(queries)} queries, {k} passages)")


def with_evidence(file: TaskFile, retriever: Retriever, passages: int) -> TaskFile:
    """The file with the best `passages` of the retriever for every item that has none, searched by its question.

    Raises:
        UserError: the retriever cannot search.
    """
    return replace(file, items=searched(file.items, retriever, passages))


def searched(items: Sequence[Item], retriever: Retriever, passages: int) -> tuple[Item, ...]:
    """The same for items.

    Raises:
        UserError: the retriever cannot search.
    """
    given = list(items)
    bare = [i for i, item in enumerate(given) if not item.passages]
    for start in range(0, len(bare), BATCH):
        batch = bare[start : start + BATCH]
        found = retriever([given[i].query or given[i].instruction for i in batch], passages)
        for i, hits in zip(batch, found, strict=True):
            given[i] = replace(given[i], passages=tuple(hits))
    return tuple(given)
