"""JAFS and the figures beside it: is a question answered exactly when it can be, and is the answer faithful? Pure.

Source: "A Library of LLM Intrinsics for RAG" (arXiv 2504.11704), sections 5.2.2 and 7.1, tables 11 and 14 to 16. The
paper measures faithfulness with RAGAS; who measures it is not this file's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from selfrag.evaluation.intervals import Estimate, mean
from selfrag.evaluation.metrics.classes import Classification, classification

ANSWERABLE, UNANSWERABLE = "answerable", "unanswerable"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one question.

    Attributes:
        answerable: whether its passages hold an answer, in truth.
        answered: whether something other than "I don't know" came out.
        faithfulness: of the answer to the passages, 0 to 1; None where nothing was answered, or nobody could say.
    """

    answerable: bool
    answered: bool
    faithfulness: float | None = None

    def __post_init__(self) -> None:
        if self.faithfulness is not None and not 0 <= self.faithfulness <= 1:
            raise ValueError(f"faithfulness {self.faithfulness} is not between 0 and 1")

    @property
    def jafs(self) -> float | None:
        """1 for abstaining rightly, the faithfulness for answering rightly, else 0; None where that is not known."""
        if self.answerable and self.answered:
            return self.faithfulness
        return float(not self.answerable and not self.answered)


@dataclass(frozen=True, slots=True)
class JointFigures:
    """Figures of one flow.

    Attributes:
        answerability: answering and abstaining as a classifier of the questions.
        responses: answers to answerable questions.
        faithfulness: their mean faithfulness, over those where it is known.
        jafs: joint answerability and faithfulness, over the questions where it is known.
        unknown: answers whose faithfulness nobody could say.
    """

    answerability: Classification
    responses: int
    faithfulness: Estimate
    jafs: Estimate
    unknown: int

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "answerability": self.answerability.as_dict(),
            "responses": self.responses,
            "faithfulness": self.faithfulness.as_dict(),
            "jafs": self.jafs.as_dict(),
            "unknown": self.unknown,
        }


def joint_figures(outcomes: Sequence[Outcome], *, seed: int = 0) -> JointFigures:
    """Figures of a flow over questions."""
    truth = [ANSWERABLE if one.answerable else UNANSWERABLE for one in outcomes]
    said = [ANSWERABLE if one.answered else UNANSWERABLE for one in outcomes]
    responses = [one for one in outcomes if one.answerable and one.answered]
    known = [one.jafs for one in outcomes if one.jafs is not None]
    return JointFigures(
        classification(truth, said, (UNANSWERABLE, ANSWERABLE), seed=seed),
        len(responses),
        mean([one.faithfulness for one in responses if one.faithfulness is not None], seed=seed),
        mean(known, seed=seed),
        len(outcomes) - len(known),
    )
