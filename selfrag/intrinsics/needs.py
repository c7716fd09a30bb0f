"""What an intrinsic needs of its input, and the refusals of the typed front door. Knows no dialect."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from selfrag.errors import UserError
from selfrag.intrinsics.state import State


class Documents(StrEnum):
    """Whether passages belong to the input."""

    REQUIRED = "required"
    OPTIONAL = "optional"
    UNUSED = "unused"


@dataclass(frozen=True, slots=True)
class Needs:
    """Input of an intrinsic (Table 1 of arXiv 2504.11704).

    Attributes:
        ends_with: roles that the last turn may have.
        documents: whether there must be passages.
        arguments: arguments that must be there.
    """

    ends_with: tuple[str, ...]
    documents: Documents
    arguments: tuple[str, ...] = ()

    def check(self, name: str, state: State) -> None:
        """Refuse what makes no sense, before any model is asked.

        Raises:
            UserError: no turn, wrong last role, empty last turn, no passage with text, or a missing or unknown
                argument.
        """
        if not state.messages:
            raise UserError(f"{name}: the conversation is empty; give at least one turn")
        last = state.messages[-1]
        if last.role not in self.ends_with:
            wanted = " or ".join(self.ends_with)
            hint = "; add the reply that is to be judged" if self.ends_with == ("assistant",) else ""
            raise UserError(f"{name}: the last turn must be of role {wanted}, not {last.role!r}{hint}")
        if not last.content.strip():
            what = "response" if last.role == "assistant" else "question"
            raise UserError(f"{name}: the {what} is empty; the last turn must have text")
        if self.documents is Documents.REQUIRED and not any(passage.text.strip() for passage in state.passages):
            count = len(state.passages)
            why = {0: "there are no passages", 1: "the passage is empty"}.get(count, f"all {count} passages are empty")
            raise UserError(f"{name}: {why}; give passages=[...]")
        for argument in self.arguments:
            value = state.arguments.get(argument)
            if not isinstance(value, str) or not value.strip():
                raise UserError(f"{name}: the argument {argument!r} is missing; give {argument}='...'")
        unknown = sorted(set(state.arguments) - set(self.arguments))
        if unknown:
            known = ", ".join(self.arguments) or "none"
            raise UserError(f"{name}: unknown argument {unknown[0]!r}; known: {known}")
