"""Uncertainty: how certain it is that the model's own answer is, or would be, right."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from selfrag.intrinsics.capability import Capability, Documents, JudgmentResult, Needs, spread
from selfrag.intrinsics.chat import LabelCodec
from selfrag.intrinsics.labels import CERTAINTY
from selfrag.intrinsics.sentences import judged_turn
from selfrag.intrinsics.state import State

SCALE = "Reply with one digit from 0 (0 to 10 percent) to 9 (90 to 100 percent)."
AFTER = f"How certain is it that the last reply of the assistant is correct? {SCALE}"
BEFORE = f"How certain is it that the assistant would answer the last message correctly? {SCALE}"


def _task(state: State) -> str:
    return AFTER if state.messages[-1].role == "assistant" else BEFORE


@dataclass(frozen=True, slots=True)
class UncertaintyResult(JudgmentResult):
    """A certainty as a distribution over the ten deciles."""

    @property
    def certainty(self) -> float | None:
        """Expectation, between 0.05 and 0.95; None where undefined."""
        return None if self.judgment is None else self.judgment.score

    @property
    def decile(self) -> float | None:
        """Middle of the most probable decile, which is what was calibrated; None where undefined."""
        return None if self.judgment is None else self.judgment.mode

    def _values(self) -> dict[str, Any]:
        return {"certainty": self.certainty, "decile": self.decile, "judgment": self.judgment}

    def _lines(self) -> Iterable[str]:
        if self.judgment is None:
            return ["certainty undefined"]
        return [f"certainty {self.certainty:.2f}, most probable decile {self.decile:.2f}", spread(self.judgment)]


class Uncertainty(Capability[UncertaintyResult]):
    """Quantifies certainty after a reply, or before it from the question alone (section 3 of arXiv 2504.11704).

    It is calibrated for the model's own answers only.
    """

    name = "uncertainty"
    role = CERTAINTY.role
    summary = "how certain is it that the answer is right?"
    needs = Needs(("assistant", "user"), Documents.OPTIONAL)
    chat = LabelCodec(name, CERTAINTY, _task, judged_turn)
    result_type = UncertaintyResult
