"""Models that label rows (section 4.3 of the intrinsics paper), or check the labels that rows have (section 5.3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

from selfrag.evaluation.metrics.alce import premise
from selfrag.evaluation.metrics.nli import Entailment
from selfrag.experiments.intrinsics.subjects import Subject
from selfrag.training.intrinsics.rows import parser

Row: TypeAlias = dict[str, Any]
AT_ONCE = 64
"""Rows that are given to a model together."""
VERDICTS = {True: "faithful", False: "unfaithful", None: "NA"}


@dataclass(frozen=True, slots=True)
class Labelling:
    """Who labels and who checks; None leaves rows as they are."""

    judge: Entailment | None = None  # says of each sentence of an answer whether its passages entail it
    checker: Subject | None = None  # says which questions are answerable

    def __call__(self, intrinsic: str, rows: Iterator[Row], said: list[str]) -> Iterator[Row]:
        """The rows of an intrinsic; what the checker left out is said in `said`."""
        if intrinsic == "hallucination_detection" and self.judge is not None:
            return (row for some in _parts(rows) for row in _judged(some, self.judge))
        if intrinsic == "answerability" and self.checker is not None:
            return _agreed(rows, self.checker, said)
        return rows


def _parts(rows: Iterator[Row]) -> Iterator[list[Row]]:
    return iter(lambda: list(islice(rows, AT_ONCE)), [])


def _judged(rows: Iterable[Row], judge: Entailment) -> Iterator[Row]:
    """Rows whose sentences are faithful where all passages together entail them; NA where there was no verdict."""
    states = [parser("hallucination_detection")(row).state for row in rows]
    pairs = [
        ("\n".join(map(premise, state.passages)), state.messages[-1].content[one["begin"] : one["end"]])
        for state, row in zip(states, rows, strict=True)
        for one in row["sentences"]
    ]
    verdicts = iter(judge.entails(pairs))
    for row in rows:
        labels = [
            {"begin": one["begin"], "end": one["end"], "label": VERDICTS[next(verdicts)]} for one in row["sentences"]
        ]
        yield row | {"label_level": "sentence", "sentences": labels}


def _agreed(rows: Iterator[Row], checker: Subject, said: list[str]) -> Iterator[Row]:
    """Rows whose label the checker gives, too."""
    left = 0
    for some in _parts(rows):
        found = checker.ask("answerability", [parser("answerability")(row).state for row in some])
        for row, reflection in zip(some, found, strict=True):
            result = checker.result("answerability", reflection)
            agreed = result.answerable is not None and result.is_answerable == (row["label"] == "answerable")
            left += not agreed
            if agreed:
                yield row
    said.append(f"left out, as {checker.name} does not give their label: {left} rows")
