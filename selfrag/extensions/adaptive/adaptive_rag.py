"""Adaptive-RAG (Jeong et al. 2024, arXiv 2403.14403): the question alone says how much to search."""

from __future__ import annotations

from dataclasses import dataclass, replace

from selfrag.extensions.adaptive.ircot import IRCoT
from selfrag.extensions.adaptive.method import Always, Never, RetrievalMethod
from selfrag.extensions.adaptive.reader import QuestionWork, judge_all, opened
from selfrag.interface import (
    Decoder,
    SiteKind,
    Slot,
    Steps,
    UserError,
    generation_error,
)

LABELS = ("A", "B", "C")
"""Classes of questions: no search, one search, several searches."""


@dataclass(frozen=True, slots=True)
class AdaptiveRAG(RetrievalMethod):
    """Settings.

    Attributes:
        steps: those of IRCoT, which answers by several searches.
        judge: a trained classifier with the labels A, B and C, such as `MODULE:NAME`; by default the model itself.
    """

    steps: int = 8
    judge: str = ""
    tuned = "steps"
    grid = (1, 2, 4, 8)

    def decoder(self, work: QuestionWork) -> Decoder:
        """Classify the question, and answer it by the method of its class."""
        label = yield from self.label(work)
        several = IRCoT(steps=self.steps)
        methods: dict[str, RetrievalMethod] = {
            "A": Never(),
            "B": Always(),
            "C": several,
        }
        return (yield from methods[label].decoder(work))

    def label(self, work: QuestionWork) -> Steps[str]:
        """Return the most probable class of the question."""
        if self.judge:
            (judgment,) = yield from judge_all(opened(self.judge), [work.state])
            if judgment.label not in LABELS:
                raise UserError(
                    f"{self.judge} says {judgment.label!r}; adaptive-rag needs a judge that says A, B or C"
                )
            return judgment.label
        site = work.state.in_message(SiteKind.QUERY, 0)
        request = work.request(work.fill("complexity"), 0)
        labelled = replace(request, slots=(Slot(LABELS, site),))
        (completion,) = yield from work.ask([labelled])
        scores = completion.scores[0]
        if scores is None:
            raise generation_error("the model gave the question none of A, B and C")
        return LABELS[scores.index(max(scores))]
