"""From a file of questions to what a run asks: reading, searching, drawing. The edge where an index is opened."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from selfrag.errors import UserError
from selfrag.evaluation.presets import Given
from selfrag.evaluation.runner import Source
from selfrag.experiments.interpretation.grid import MOST_EXAMPLES
from selfrag.experiments.interpretation.questions import QUESTIONS, TOP, Relevance, choose
from selfrag.experiments.interpretation.row_facts import kinds_of, read_facts
from selfrag.experiments.interpretation.store import Questions
from selfrag.experiments.interpretation.trials import Showing


@dataclass(frozen=True, slots=True)
class Drawing:
    """Which questions, and how they are shown.

    Attributes:
        file: questions with their passages, best first, or without any; of user rows, or of a published task.
        index: directory of an index, or `demo`, for questions that bring no passages.
        limit: questions at most; None for all.
        relevance: see `relevant`; by default what the file calls gold, and what holds an answer if it calls none so.
        showing: of the passages.
        top: an answer must occur in so many passages.
    """

    file: Given
    index: str | None = None
    limit: int | None = QUESTIONS
    relevance: Relevance = "gold"
    showing: Showing = Showing()  # noqa: RUF009 - frozen value
    top: int = TOP


def draw(drawing: Drawing, *, passages: int) -> tuple[Questions, dict[str, Any]]:
    """Read the file and draw the questions.

    Args:
        drawing: which.
        passages: of the largest cut-off.

    Returns:
        The questions, and what the manifest says of the data.

    Raises:
        UserError: a row is bad, no question fits, or no question has so many passages.
    """
    given = drawing.file
    if given.preset is not None:  # whose protocols read fewer passages than a grid may show
        given = replace(given, preset=given.preset.with_passages(passages))
    source = Source([given], index=drawing.index, found=passages)
    (file,) = source.load()
    most = max((len(item.passages) for item in file.items), default=0)
    if most < passages:
        raise UserError(
            f"{given.path}: no question has {passages} passages, the most is {most}; give --cutoff or --index"
        )
    facts = read_facts(given.path) if given.preset is None else {}
    aside = [item_id for item_id, one in facts.items() if one.set_aside]
    seed, top = drawing.showing.seed, drawing.top
    chosen = choose(file.items, limit=drawing.limit, examples=MOST_EXAMPLES, seed=seed, top=top, set_aside=aside)
    kinds = kinds_of([*chosen.items, *chosen.demonstrations], facts)
    published = {"preset": file.task.preset} if file.task.preset else {}
    data = {"sha256": file.sha256, "rows": file.rows, "top": drawing.top, **published, **source.settings()}
    said = any(item.gold is not None for item in chosen.items)
    return Questions(chosen, kinds, drawing.showing, drawing.relevance if said else "answers"), data
