"""Requirement check: whether the last turn meets a requirement."""

from __future__ import annotations

from dataclasses import dataclass

from selfrag.intrinsics.capability import Capability, Documents, Needs, YesNoResult
from selfrag.intrinsics.chat import LabelCodec
from selfrag.intrinsics.labels import COMPLIANCE
from selfrag.intrinsics.sentences import last_turn

TASK = "Does the last message of the conversation meet the requirement? Reply with one word: yes or no."


@dataclass(frozen=True, slots=True)
class RequirementResult(YesNoResult):
    """Whether a requirement is met. Its truth value is `is_met`."""

    label, key = "yes", "met"

    @property
    def met(self) -> float | None:
        """Probability that it is met; None where undefined."""
        return self.probability

    @property
    def is_met(self) -> bool:
        """Whether it is at least as probably met as not; False where undefined."""
        return self.holds


class RequirementCheck(Capability[RequirementResult]):
    """Checks the last turn against the argument `requirement`."""

    name = "requirement_check"
    role = COMPLIANCE.role
    summary = "does the last turn meet a requirement?"
    needs = Needs(("assistant", "user"), Documents.OPTIONAL, ("requirement",))
    chat = LabelCodec(name, COMPLIANCE, TASK, last_turn, arguments=needs.arguments)
    result_type = RequirementResult
