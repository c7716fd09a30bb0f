"""Requirement check: whether the last turn meets a requirement. Its question and typed result."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from selfrag.intrinsics.capability import Capability, Documents, Needs, Result, spread
from selfrag.intrinsics.chat import LabelCodec
from selfrag.intrinsics.contract import Reflection, Teachable
from selfrag.intrinsics.labels import COMPLIANCE
from selfrag.intrinsics.sentences import last_turn
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import Role

TASK = "Does the last message of the conversation meet the requirement? Reply with one word: yes or no."


@dataclass(frozen=True, slots=True)
class RequirementResult(Result):
    """Whether a requirement is met. Its truth value is `is_met`.

    Attributes:
        judgment: over yes and no; None where undefined.
    """

    judgment: Judgment | None

    @property
    def met(self) -> float | None:
        """Probability that it is met; None where undefined."""
        return None if self.judgment is None else self.judgment.score

    @property
    def is_met(self) -> bool:
        """Whether it is more probably met than not; False where undefined."""
        return self.met is not None and self.met > 0.5

    def __bool__(self) -> bool:
        return self.is_met

    def _values(self) -> dict[str, Any]:
        return {"met": self.met, "judgment": None if self.judgment is None else self.judgment.as_dict()}

    def _lines(self) -> Iterable[str]:
        yield spread(self.judgment)


class RequirementCheck(Capability[RequirementResult]):
    """Checks the last turn against the argument `requirement`."""

    name = "requirement_check"
    role = Role.COMPLIANCE
    needs = Needs(("assistant", "user"), Documents.OPTIONAL, ("requirement",))
    summary = "does the last turn meet a requirement?"

    @classmethod
    def default_codec(cls) -> Teachable:
        """One word, scored."""
        return LabelCodec(cls.name, COMPLIANCE, lambda state: TASK, last_turn, arguments=cls.needs.arguments)

    def result(self, reflection: Reflection) -> RequirementResult:
        """The judgment."""
        return RequirementResult(reflection.diagnostics, next(iter(reflection.judgments), None))
