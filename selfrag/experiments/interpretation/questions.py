"""The questions of a run: those that can be answered from the top passages, a sample of them, and the demonstrations.

Pure. The paper takes 60 questions of which an answer occurs in the top 3 passages.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from retrieval.passage import Passage
from selfrag.errors import UserError
from selfrag.evaluation.items import Item
from selfrag.evaluation.metrics.answers import sets_of
from selfrag.evaluation.normalisation import contains_any
from selfrag.experiments.interpretation.context_ids import contexts_of
from selfrag.experiments.interpretation.template import Example

QUESTIONS, TOP = 60, 3
Relevance = Literal["gold", "answers"]


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a run asks.

    Attributes:
        items: to be asked, in the order of the file.
        demonstrations: items that serve as examples and are not asked.
        answerable: items of the file, not set aside, of which an answer occurs in the top passages.
    """

    items: tuple[Item, ...]
    demonstrations: tuple[Item, ...]
    answerable: int


def relevant(item: Item, passages: Sequence[Passage], by: Relevance) -> frozenset[str]:
    """Ids of the passages that are relevant: those that the file calls gold, or those that contain an answer.

    A file that calls none gold for this item has no say, and the answers decide.
    """
    if by == "gold" and item.gold is not None:
        return frozenset(passage.id for passage in passages if passage.id in item.gold)
    sets = sets_of(item) or ()
    return frozenset(p.id for p in passages if any(contains_any(p.text, aliases) for aliases in sets))


def choose(
    items: Sequence[Item],
    *,
    limit: int | None = QUESTIONS,
    examples: int = 2,
    seed: int = 0,
    top: int = TOP,
    set_aside: Collection[str] = (),
) -> Chosen:
    """Draw the questions and the demonstrations; which ones does not depend on the grid.

    Demonstrations are those that the file sets aside, if there are enough, else questions that are held out: of a draw
    of ten, those of which the top passages contain most answers.

    Args:
        items: of a file, each with its ranking.
        limit: questions at most; None for all.
        examples: demonstrations.
        seed: of the draw.
        top: an answer must occur in so many passages.
        set_aside: ids of items that are meant as examples, and never asked.

    Raises:
        UserError: no item can be answered from its top passages, or none is left to ask.
    """
    fit = [item for item in items if relevant(item, item.passages[:top], "answers")]
    if not fit:
        raise UserError(f"no question of which an answer occurs in its top {top} passages; check 'answers', 'passages'")
    drawn = random.Random(seed).sample(range(len(fit)), len(fit))  # noqa: S311 - no cryptography
    aside = [i for i in drawn if fit[i].id in set_aside]
    pool = sorted((aside if len(aside) >= examples else drawn)[:10], key=lambda i: -len(_shown(fit[i], top)))
    held = pool[:examples]
    asked = sorted([i for i in drawn if i not in held and i not in aside][:limit])
    if not asked:
        raise UserError(f"{len(fit)} answerable questions, {len(held)} of them examples: none is left to ask")
    return Chosen(tuple(fit[i] for i in asked), tuple(fit[i] for i in held), len(fit) - len(aside))


def example(item: Item, contexts: int, words: int | None) -> Example:
    """An item as a demonstration: its top passages, and the answers that they contain, each with its reference."""
    shown = item.passages[:contexts]
    made = contexts_of(shown, words)
    ids = {passage.id: context.id for passage, context in zip(shown, made, strict=True)}
    said = ", ".join(f"{alias} [{ids[where]}]" for alias, where in _shown(item, contexts))
    return Example(item.query or item.instruction, made, f"{said}.")


def _shown(item: Item, top: int) -> list[tuple[str, Any]]:
    """For each right answer that a top passage contains, how it is written there, and the passage's id."""
    found = []
    for aliases in sets_of(item) or ():
        places = ((alias, p.id) for p in item.passages[:top] for alias in aliases if contains_any(p.text, (alias,)))
        if (first := next(places, None)) is not None:
            found.append(first)
    return found
