"""Query clarification: whether to ask back, and what. Its task and typed result."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from selfrag.intrinsics.capability import Capability, Documents, Needs, Result
from selfrag.intrinsics.chat import TextCodec
from selfrag.intrinsics.contract import Reflection, State, Teachable
from selfrag.intrinsics.labels import CLEAR
from selfrag.reflection.labels import Role

NOTHING = "CLEAR"
"""What a model writes where there is nothing to ask."""

TASK = (
    "If the last message of the user is too vague or ambiguous to be answered, write one short question that asks the"
    f" user for what is missing. Otherwise write {NOTHING}."
)


@dataclass(frozen=True, slots=True)
class ClarificationResult(Result):
    """A question back to the user, or none.

    Attributes:
        question: what to ask; None if nothing need be asked, or if undefined.
        defined: whether the model decided at all.
    """

    question: str | None
    defined: bool

    @property
    def needed(self) -> bool:
        """Whether there is something to ask."""
        return self.question is not None

    def _values(self) -> dict[str, Any]:
        return {"needed": self.needed, "question": self.question, "defined": self.defined}

    def _lines(self) -> Iterable[str]:
        yield self.question or ("the question is clear" if self.defined else "undefined")


class QueryClarification(Capability[ClarificationResult]):
    """Asks back where the last user turn cannot be answered as it is."""

    name = "query_clarification"
    role = Role.CLARITY
    needs = Needs(("user",), Documents.OPTIONAL)
    summary = "is there something to ask back before answering?"

    @classmethod
    def default_codec(cls) -> Teachable:
        """A constrained JSON object."""
        return TextCodec(cls.name, "clarification", TASK, CLEAR, _label, documents=True)

    def result(self, reflection: Reflection) -> ClarificationResult:
        """The question, if there is one."""
        text = reflection.text
        asked = None if text is None or _label(reflection.state, text) == "clear" else text
        return ClarificationResult(reflection.diagnostics, asked, text is not None)


def _label(state: State, text: str) -> str:
    del state
    return "clear" if text.strip(" .\"'").casefold() == NOTHING.casefold() else "unclear"
