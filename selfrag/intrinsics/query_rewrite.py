"""The last user turn as a question that stands alone (rewrite), and whether to ask back, and what (clarification)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from selfrag.intrinsics.capability import Capability, Documents, Needs, Result
from selfrag.intrinsics.chat import TextCodec
from selfrag.intrinsics.contract import Reflection
from selfrag.intrinsics.labels import CHANGED, CLEAR
from selfrag.intrinsics.layout import is_word
from selfrag.intrinsics.state import State, same_question

REWRITE = (
    "Rewrite the last message of the user so that it can be understood without the conversation."
    " If it can be already, repeat it unchanged."
)


def _change(state: State, text: str) -> str:
    return "unchanged" if same_question(state.query or "", text) else "changed"


@dataclass(frozen=True, slots=True)
class RewriteResult(Result):
    """A rewritten turn."""

    original: str  # the turn as given
    text: str  # the rewrite; the original where the model wrote none
    defined: bool  # whether the model wrote one

    @classmethod
    def of(cls, reflection: Reflection) -> RewriteResult:
        """The rewrite, or the original."""
        original, text = reflection.state.query or "", reflection.text
        return cls(reflection.diagnostics, original, original if text is None else text, text is not None)

    @property
    def changed(self) -> bool:
        """Whether the rewrite says something else than the original, spacing and case aside."""
        return not same_question(self.original, self.text)

    def _values(self) -> dict[str, Any]:
        return {"rewrite": self.text, "changed": self.changed, "defined": self.defined, "original": self.original}

    def _lines(self) -> Iterable[str]:
        yield self.text
        if not self.changed:
            yield "(unchanged)" if self.defined else "(the model wrote no rewrite; this is the original)"


class QueryRewrite(Capability[RewriteResult]):
    """Makes the last user turn independent of the conversation (section 2 of arXiv 2504.11704)."""

    name = "query_rewrite"
    role = CHANGED.role
    summary = "the last question, understandable on its own"
    needs = Needs(("user",), Documents.UNUSED)
    chat = TextCodec(name, "rewritten_question", REWRITE, CHANGED, _change)
    result_type = RewriteResult


CLEAR_WORD = "CLEAR"
"""What a model writes where there is nothing to ask."""

CLARIFY = (
    "If the last message of the user is too vague or ambiguous to be answered, write one short question that asks the"
    f" user for what is missing. Otherwise write {CLEAR_WORD}."
)


def _clarity(state: State, text: str) -> str:
    return "clear" if is_word(text, CLEAR_WORD) else "unclear"


@dataclass(frozen=True, slots=True)
class ClarificationResult(Result):
    """A question back to the user, or none."""

    question: str | None  # what to ask; None if nothing need be asked, or if undefined
    defined: bool  # whether the model decided at all

    @classmethod
    def of(cls, reflection: Reflection) -> ClarificationResult:
        """The question, if there is one."""
        text = reflection.text
        asked = None if text is None or _clarity(reflection.state, text) == "clear" else text
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
    chat = TextCodec(name, "clarification", CLARIFY, CLEAR, _clarity, documents=True)
    result_type = ClarificationResult
