"""Tasks: kinds of questions with their budget, hint and metrics, and how a multiple-choice item is asked and scored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from selfrag.common.errors import UserError
from selfrag.evaluation.items import Item
from selfrag.evaluation.metrics.answers import EFFORT, LISTS
from selfrag.evaluation.metrics.citations import CITATIONS
from selfrag.evaluation.metrics.registry import METRICS, Metric

Kind = Literal["closed", "short", "long", "list"]

SET_BY_TASK = ("max_segments", "answer_tokens")
"""Fields of `Decoding` that are the budget of a task."""
LONGEST_SHORT_ANSWER = 10
"""Words; an item of an unknown kind is short if one of its answers is not longer."""


@dataclass(frozen=True, slots=True)
class Task:
    """A kind of question."""

    kind: Kind  # `closed`, `short`, `long` or `list`
    metrics: tuple[Metric, ...]  # the first is the one that systems are averaged by
    new_tokens: int  # tokens an answer may have, reflection tokens included; multiple choice writes none
    segments: int  # segments an answer may have
    hint: str  # what a model that was not trained on such questions is told; empty under published protocols
    # the preset and protocol that these settings are from, such as `popqa/paper`; empty for user files
    preset: str = ""
    marked: bool = False  # citations are numbers in brackets in the text
    # baselines write their choice instead of having the options scored
    written: bool = False

    @property
    def headline(self) -> str:
        """Return the name of the metric that systems are averaged by."""
        return self.metrics[0].name

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        names = [metric.name for metric in self.metrics]
        values = {
            "kind": self.kind,
            "new_tokens": self.new_tokens,
            "segments": self.segments,
            "metrics": names,
        }
        for key in ("preset", "marked", "written"):
            if getattr(self, key):
                values[key] = getattr(self, key)
        return values


def _metrics(*names: str) -> tuple[Metric, ...]:
    return tuple(METRICS[name] for name in names)


CLOSED = Task(
    "closed",
    _metrics("accuracy", *CITATIONS, *EFFORT),
    1,
    1,
    "Answer with one of: {choices}.",
)
SHORT = Task(
    "short",
    _metrics(
        "contains",
        "official_match",
        "exact_match",
        "f1",
        *CITATIONS,
        "citation_bears_answer",
        *EFFORT,
    ),
    50,
    1,
    "Answer with a few words only.",
)
LONG = Task(
    "long",
    _metrics(
        "long_form",
        "rouge_l",
        "answerability",
        "declines_unanswerable",
        "answers_answerable",
        *CITATIONS,
        *EFFORT,
    ),
    200,
    4,
    "Answer in a few sentences. If you cannot find the answer, say that you do not know.",
)
LIST = Task(
    "list",
    _metrics(
        "answer_recall",
        *LISTS,
        *CITATIONS,
        "citation_f1",
        "citation_bears_answer",
        *EFFORT,
    ),
    100,
    4,
    "Answer with a list of all right answers, separated by commas.",
)
BIOGRAPHY = Task(
    "long", _metrics("words", *CITATIONS, *EFFORT), 200, 4, "Answer in a few sentences."
)
"""A text about a topic that has no reference; a second model judges its facts (`factscore`)."""


def task_of(item: Item) -> Task:
    """Return the kind of an item: closed where it has options, else by its `task`, a list with several right answers.

    Else the length of its answers decides.
    """
    if item.options:
        return CLOSED
    if item.topic and not item.references:
        return BIOGRAPHY
    if (
        not any(answer.strip() for answer in item.references)
        and item.answerable is not False
    ):
        raise UserError(
            "no gold answer, no options and not unanswerable: nothing to score it by; fill 'answers'"
        )
    if item.task.startswith("short"):
        return SHORT
    if item.task.startswith("long") or item.answerable is not None:
        return LONG
    if len(item.answer_sets) > 1:
        return LIST
    shortest = min(len(answer.split()) for answer in item.references)
    return SHORT if shortest <= LONGEST_SHORT_ANSWER else LONG
