"""The paper's retrieval: one index over the passages of all questions, searched for each of them (section 2.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from retrieval.build import index_passages
from retrieval.encoders import Encoder
from retrieval.passage import Passage
from selfrag.errors import UserError
from selfrag.evaluation.items import Item


def pooled(items: Sequence[Item], encoder: Encoder, k: int) -> tuple[Item, ...]:
    """The items with the best `k` passages of all items, by exact dense search, in place of their own.

    A passage keeps the id that the item itself has for it, so that gold ids hold. Where several passages of other items
    share an id, theirs get the item's id in front.

    Raises:
        UserError: there are fewer than `k` different passages.
    """
    owners: dict[str, tuple[str, Passage]] = {}
    named: dict[str, set[str]] = {}
    for item in items:
        for passage in item.passages:
            owners.setdefault(_content(passage), (item.id, passage))
            named.setdefault(passage.id, set()).add(_content(passage))
    if len(owners) < k:
        raise UserError(f"the questions have {len(owners)} different passages, fewer than {k}; give --cutoff")
    pool = [
        passage if len(named[passage.id]) == 1 else replace(passage, id=f"{owner}/{passage.id}")
        for owner, passage in owners.values()
    ]
    numbered = [replace(passage, id=str(number)) for number, passage in enumerate(pool)]
    with TemporaryDirectory() as folder:
        search = index_passages(numbered, Path(folder) / "index", encoder=encoder, kind="flat", language="none")
        found = search([item.query or item.instruction for item in items], k)
    return tuple(
        replace(item, passages=tuple(_as_known(item, pool[int(hit.id)], hit.score) for hit in hits))
        for item, hits in zip(items, found, strict=True)
    )


def _as_known(item: Item, passage: Passage, score: float | None) -> Passage:
    """The passage under the item's own id, if it has it."""
    content = _content(passage)
    own = next((one for one in item.passages if _content(one) == content), passage)
    return own.with_score(score)


def _content(passage: Passage) -> str:
    """What makes two passages the same, whatever their ids."""
    return " ".join(f"{passage.title}\n{passage.text}".split())
