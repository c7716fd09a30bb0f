"""Each question in several wordings, to measure how far figures depend on the words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from selfrag.evaluation.items import Item
from selfrag.evaluation.metrics.registry import Part

WORDINGS = (
    "{}",
    "Please answer: {}",
    "{} Please answer as well as you can.",
    "I need an answer to this: {}",
    "Here is something to answer. {}",
)
"""Around the question of an item; the first leaves it as it stands."""
_BETWEEN = "~"


def paraphrased(items: Iterable[Item], wordings: int) -> tuple[Item, ...]:
    """Return each item in the first so many `WORDINGS`; the words of a task around its question stay."""
    versions: list[Item] = []
    for item in items:
        versions.append(item)
        before, question, after = item.instruction, "", ""
        if item.query:
            before, question, after = item.instruction.partition(item.query)
        if not question:  # the words of a task cannot be told apart
            before, question = "", item.instruction
        for number, wording in enumerate(WORDINGS[1:wordings], 2):
            reworded = wording.format(question)
            versions.append(
                replace(
                    item,
                    id=f"{item.id}{_BETWEEN}{number}",
                    instruction=f"{before}{reworded}{after}",
                    query=reworded if item.query else "",
                )
            )
    return tuple(versions)


def original(name: str) -> str:
    """Return the id of the item that a paraphrase is of."""
    return name.rpartition(_BETWEEN)[0] or name


def merge_parts(
    ids: Sequence[str], parts: Sequence[Part | None]
) -> tuple[Part | None, ...]:
    """Return one part a question: the sum over its wordings, so that they are resampled together."""
    merged: dict[str, Part | None] = {}
    for name, part in zip(ids, parts, strict=True):
        question = original(name)
        known = merged.setdefault(question, None)
        if part is not None:
            above, below = known or (0.0, 0.0)
            merged[question] = above + part[0], below + part[1]
    return tuple(merged.values())
