"""Query rewrite: the last user turn as a question that stands alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from selfrag.intrinsics.capability import Capability, Documents, Needs, Result
from selfrag.intrinsics.chat import TextCodec
from selfrag.intrinsics.contract import Reflection
from selfrag.intrinsics.labels import CHANGED
from selfrag.intrinsics.state import State, same_question

TASK = (
    "Rewrite the last message of the user so that it can be understood without the conversation."
    " If it can be already, repeat it unchanged."
)


def _label(state: State, text: str) -> str:
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
    chat = TextCodec(name, "rewritten_question", TASK, CHANGED, _label)
    result_type = RewriteResult
