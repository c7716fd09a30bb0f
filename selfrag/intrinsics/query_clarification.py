"""Query clarification: whether to ask back, and what."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from selfrag.intrinsics.capability import Capability, Documents, Needs, Result
from selfrag.intrinsics.chat import TextCodec
from selfrag.intrinsics.contract import Reflection
from selfrag.intrinsics.labels import CLEAR
from selfrag.intrinsics.layout import is_word
from selfrag.intrinsics.state import State

NOTHING = "CLEAR"
"""What a model writes where there is nothing to ask."""

TASK = (
    "If the last message of the user is too vague or ambiguous to be answered, write one short question that asks the"
    f" user for what is missing. Otherwise write {NOTHING}."
)


def _label(state: State, text: str) -> str:
    return "clear" if is_word(text, NOTHING) else "unclear"


@dataclass(frozen=True, slots=True)
class ClarificationResult(Result):
    """A question back to the user, or none."""

    question: str | None  # what to ask; None if nothing need be asked, or if undefined
    defined: bool  # whether the model decided at all

    @classmethod
    def of(cls, reflection: Reflection) -> ClarificationResult:
        """The question, if there is one."""
        text = reflection.text
        asked = None if text is None or _label(reflection.state, text) == "clear" else text
        return cls(reflection.diagnostics, asked, text is not None)

    @property
    def needed(self) -> bool:
        """Whether there is something to ask."""
        return self.question is not None

    def _values(self) -> dict[str, Any]:
        return {"needed": self.needed, "question": self.question, "defined": self.defined}

    def _lines(self) -> Iterable[str]:
        return [self.question or ("the question is clear" if self.defined else "undefined")]


class QueryClarification(Capability[ClarificationResult]):
    """Writes a question back to the user if the last turn cannot be answered as it is."""

    name = "query_clarification"
    role = CLEAR.role
    summary = "is there something to ask back before answering?"
    needs = Needs(("user",), Documents.OPTIONAL)
    chat = TextCodec(name, "clarification", TASK, CLEAR, _label, documents=True)
    result_type = ClarificationResult
