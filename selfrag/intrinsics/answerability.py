"""Answerability: whether the passages answer the last user turn."""

from __future__ import annotations

from dataclasses import dataclass

from selfrag.intrinsics.capability import Capability, Documents, Needs, YesNoResult
from selfrag.intrinsics.chat import LabelCodec
from selfrag.intrinsics.labels import ANSWERABLE
from selfrag.intrinsics.sentences import last_query

TASK = (
    "Do the documents hold what is needed to answer the last message of the user?"
    " Reply with one word: answerable or unanswerable."
)


@dataclass(frozen=True, slots=True)
class AnswerabilityResult(YesNoResult):
    """Whether a question can be answered. Its truth value is `is_answerable`."""

    label = key = "answerable"

    @property
    def answerable(self) -> float | None:
        """Probability of answerable; None where undefined."""
        return self.probability

    @property
    def is_answerable(self) -> bool:
        """Whether answerable is at least as probable as not; False where undefined."""
        return self.holds


class Answerability(Capability[AnswerabilityResult]):
    """Predicts whether the passages answer the last user turn (section 5 of arXiv 2504.11704)."""

    name = "answerability"
    role = ANSWERABLE.role
    summary = "can the passages answer the question?"
    needs = Needs(("user",), Documents.REQUIRED)
    chat = LabelCodec(name, ANSWERABLE, TASK, last_query)
    result_type = AnswerabilityResult
