"""Answerability: whether the passages answer the last user turn. Its input, question, and typed result."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from selfrag.intrinsics.capability import Capability, Documents, Needs, Result, spread
from selfrag.intrinsics.chat import LabelCodec
from selfrag.intrinsics.contract import Reflection, Teachable
from selfrag.intrinsics.labels import ANSWERABLE
from selfrag.intrinsics.sentences import last_query
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import Role

TASK = (
    "Do the documents hold what is needed to answer the last message of the user?"
    " Reply with one word: answerable or unanswerable."
)


@dataclass(frozen=True, slots=True)
class AnswerabilityResult(Result):
    """Whether a question can be answered. Its truth value is `is_answerable`.

    Attributes:
        judgment: over answerable and unanswerable; None where undefined.
    """

    judgment: Judgment | None

    @property
    def answerable(self) -> float | None:
        """Probability of answerable; None where undefined."""
        return None if self.judgment is None else self.judgment.probability("answerable")

    @property
    def is_answerable(self) -> bool:
        """Whether answerable is at least as probable as not; False where undefined."""
        return self.answerable is not None and self.answerable >= 0.5

    def __bool__(self) -> bool:
        return self.is_answerable

    def _values(self) -> dict[str, Any]:
        judgment = None if self.judgment is None else self.judgment.as_dict()
        return {"answerable": self.answerable, "judgment": judgment}

    def _lines(self) -> Iterable[str]:
        yield spread(self.judgment)


class Answerability(Capability[AnswerabilityResult]):
    """Predicts whether the passages answer the last user turn (section 3.4 of arXiv 2504.11704)."""

    name = "answerability"
    role = Role.ANSWERABLE
    needs = Needs(("user",), Documents.REQUIRED)
    summary = "can the passages answer the question?"

    @classmethod
    def default_codec(cls) -> Teachable:
        """One word, scored."""
        return LabelCodec(cls.name, ANSWERABLE, lambda state: TASK, last_query)

    def result(self, reflection: Reflection) -> AnswerabilityResult:
        """The judgment."""
        return AnswerabilityResult(reflection.diagnostics, next(iter(reflection.judgments), None))
