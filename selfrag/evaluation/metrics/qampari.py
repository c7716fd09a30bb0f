"""Answers that are lists of entities: precision, recall, recall-5 and F1 as ALCE computes them for QAMPARI. Pure text.

The answer's first line is split at commas, and each piece must be one of the gold names once both are normalised.
Repeated pieces count each time, as in ALCE's code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from selfrag.evaluation.containment import squad_normalise
from selfrag.evaluation.items import Item
from selfrag.evaluation.metrics.alce_text import evaluated
from selfrag.evaluation.metrics.answer_sets import AnswerSets, sets_of
from selfrag.evaluation.metrics.harmonic import harmonic
from selfrag.evaluation.metrics.metric import Metric, Part, mean_of
from selfrag.evaluation.metrics.output import Output

ENOUGH = 5
"""Answers that are as good as all, for recall-5."""


@dataclass(frozen=True, slots=True)
class ListFigures:
    """Figures of one list.

    Attributes:
        listed: pieces of the list.
        precision: share of them that is right; 0 for an empty list.
        recall: share of the gold answers that is named.
        recall_5: the same, where five right answers are as good as all.
    """

    listed: int
    precision: float
    recall: float
    recall_5: float

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        return harmonic(self.precision, self.recall)

    @property
    def f1_5(self) -> float:
        """Harmonic mean of precision and recall-5."""
        return harmonic(self.precision, self.recall_5)


def listed(text: str) -> tuple[str, ...]:
    """The pieces of a list written with commas, normalised; pieces that normalise to nothing are left out."""
    line = evaluated(text).rstrip(".").rstrip(",")
    return tuple(piece for piece in map(squad_normalise, line.split(",")) if piece)


def list_figures(text: str, sets: AnswerSets) -> ListFigures:
    """Figures of an answer that is a list.

    Args:
        text: entities with commas between them.
        sets: right answers, each with its ways of being written; at least one.
    """
    said = listed(text)
    gold = [{squad_normalise(form) for form in forms} for forms in sets]
    right = sum(any(piece in forms for forms in gold) for piece in said)
    named = sum(not forms.isdisjoint(said) for forms in gold)
    return ListFigures(
        len(said),
        right / len(said) if said else 0.0,
        named / len(gold),
        min(ENOUGH, named) / min(ENOUGH, len(gold)),
    )


def _listing(name: str, figure: Callable[[ListFigures], float]) -> Metric:
    def value(item: Item, output: Output) -> float | None:
        sets = sets_of(item)
        return None if sets is None else figure(list_figures(output.text, sets))

    return Metric(f"list_{name}", mean_of(value))


def _length(item: Item, output: Output) -> Part | None:
    return None if sets_of(item) is None else (float(len(listed(output.text))), 1.0)


LISTS = (
    _listing("f1_5", lambda found: found.f1_5),
    _listing("precision", lambda found: found.precision),
    _listing("recall", lambda found: found.recall),
    _listing("recall_5", lambda found: found.recall_5),
    _listing("f1", lambda found: found.f1),
    Metric("list_length", _length, of_failure=None, unit="count"),
)
