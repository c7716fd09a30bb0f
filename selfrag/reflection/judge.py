"""`Judge`: the one protocol of whatever judges, wherever it takes part.

Reflection tokens, LoRA adapters, prompted models, endpoints, models of entailment, trained critics, words in common and
Python functions implement it (`selfrag.judges`). The decoder, guardrails, typed intrinsics, the critic that writes
training data, metrics and rerankers take it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum, StrEnum
from typing import Any, Protocol, runtime_checkable

from selfrag.common.errors import UserError
from selfrag.reflection.findings import Reflection
from selfrag.reflection.inputs import JudgeInput
from selfrag.reflection.labels import LabelSet, Role
from selfrag.reflection.requests import Steps


class Cost(IntEnum):
    """What a judge costs; cheap ones judge first, expensive ones only survivors."""

    INLINE = 0  # nothing, or tokens of the generation itself
    ONE_TOKEN = 1  # one token a label on a shared prefix
    PREFILL = 2  # a new prefill, such as a plain LoRA adapter
    GENERATED = 3  # text is written


class Scope(StrEnum):
    """What a judge looks at."""

    QUESTION = "question"  # the conversation, whatever is written
    PASSAGE = "passage"  # question and passages, so that one judgment holds for all that is written
    SEGMENT = "segment"  # what was written last, alone
    ANSWER = "answer"  # the answer so far, of which what was written last is judged
    FINISHED = "finished"  # a finished answer of this library with its trace; nothing that is being written


@runtime_checkable
class Judge(Protocol):
    """Turns inputs into judgments. Subclass it to inherit what most judges have in common.

    Example:
        >>> from selfrag.judges.asking import judge
        >>> from selfrag.judges.external import FunctionJudge
        >>> from selfrag.reflection.labels import ISUSE
        >>> def grade(inputs):
        ...     return [[0, 0, 0, 0, 1] if "." in state.text else [1, 0, 0, 0, 0] for state in inputs]
        >>> turns = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Goethe."}]
        >>> judge(FunctionJudge("sentences", ISUSE, grade), turns).lines()
        ['5 1.00: Goethe.']
    """

    name: str  # as weights, guardrails, traces and the command line call it
    labels: LabelSet  # what its judgments are over; their role says what is judged
    cost: Cost
    scope: Scope
    engine: Any = None  # the engine that its requests are for; None for the engine of whoever asks

    def judge(self, inputs: Sequence[JudgeInput]) -> Steps[list[Reflection]]:
        """Return one reflection an input, in order.

        Yields requests, if it needs any. What a model wrote wrongly or nobody served is undefined, never an exception.
        """
        ...

    @property
    def role(self) -> Role:
        """Return what is judged."""
        return self.labels.role

    def identity(self) -> Mapping[str, Any]:
        """Return everything that decides its judgments, as plain values without secrets, for manifests."""
        return {"judge": self.name}


_SCOPES = {
    Role.RELEVANCE: Scope.PASSAGE,
    Role.ANSWERABLE: Scope.PASSAGE,
    Role.RETRIEVE: Scope.QUESTION,
    Role.REWRITE: Scope.QUESTION,
    Role.CLARITY: Scope.QUESTION,
}


def usual_scope(labels: LabelSet) -> Scope:
    """Return what judges of a role look at unless they say otherwise."""
    return _SCOPES.get(labels.role, Scope.SEGMENT)


NEEDS_PASSAGE = frozenset(
    {Role.SUPPORT, Role.RELEVANCE, Role.CITATION, Role.ANSWERABLE}
)
"""Roles with nothing to judge without a passage."""
SCORING = NEEDS_PASSAGE | {Role.UTILITY, Role.CERTAINTY, Role.COMPLIANCE}
"""Roles that rank or guard an answer."""


def check_taking_part(name: str, labels: LabelSet, scope: Scope) -> None:
    """Refuse a judge that cannot take part while an answer is written."""
    if scope is Scope.FINISHED:
        raise UserError(
            f"{name} reads the certainty of a finished answer off its trace, which is not there while it is"
            " written; ask for uncertainty.prompt"
        )
    if labels.role not in SCORING:
        raise UserError(
            f"{name} judges {labels.role}, which neither ranks nor guards an answer"
        )
