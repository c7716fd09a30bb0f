"""Requirement check: whether the last turn meets a requirement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from selfrag.intrinsics.capability import Capability, Documents, JudgmentResult, Needs
from selfrag.intrinsics.chat import LabelCodec
from selfrag.intrinsics.labels import COMPLIANCE
from selfrag.intrinsics.sentences import last_turn

TASK = "Does the last message of the conversation meet the requirement? Reply with one word: yes or no."


@dataclass(frozen=True, slots=True)
class RequirementResult(JudgmentResult):
    """Whether a requirement is met. Its truth value is `is_met`."""

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
        return {"met": self.met, "judgment": self.judgment}


class RequirementCheck(Capability[RequirementResult]):
    """Checks the last turn against the argument `requirement`."""

    name = "requirement_check"
    role = COMPLIANCE.role
    summary = "does the last turn meet a requirement?"
    needs = Needs(("assistant", "user"), Documents.OPTIONAL, ("requirement",))
    chat = LabelCodec(name, COMPLIANCE, TASK, last_turn, arguments=needs.arguments)
    result_type = RequirementResult
