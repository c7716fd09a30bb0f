"""What is done with any judge outside of a decode: ask it about a conversation, or rank passages by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from retrieval.passage import Passage
from selfrag.common.errors import EngineError, UserError
from selfrag.judges.conversation import Conversation, Passages, read_input
from selfrag.reflection.findings import Reflection
from selfrag.reflection.inputs import JudgeInput, Message
from selfrag.reflection.judge import NEEDS_PASSAGE, Judge, Scope
from selfrag.runtime import finish


def judge(
    judge: Judge,
    conversation: Conversation,
    passages: Passages | None = None,
    arguments: Mapping[str, str] | None = None,
    *,
    engine: Any = None,
) -> Reflection:
    """Ask a judge about one conversation.

    Args:
        judge: any.
        conversation: a question, a list of turns, or an `Answer`.
        passages: what it is judged against; for an `Answer` its citations.
        arguments: what the judge asks for, such as `requirement`.
        engine: for judges without an engine of their own, such as `TokenJudge`.

    Returns:
        Its judgments; `reason` says why there is none.

    Raises:
        UserError: the input makes no sense.
    """
    state = read_input(conversation, passages, arguments)
    if not state.messages:
        raise UserError(
            f"{judge.name}: the conversation is empty; give at least one turn"
        )
    if judge.role in NEEDS_PASSAGE and not state.filled:
        raise UserError(f"{judge.name}: there are no passages; give passages=[...]")
    (reflection,) = finish(judge.judge([state]), judge.engine or engine)
    return reflection


@dataclass(frozen=True, slots=True)
class JudgeScorer:
    """A judge of passages as a scorer for `retrieval.search`; passages of all queries share its batches."""

    judge: Judge
    engine: Any = None  # for judges without an engine of their own

    def __post_init__(self) -> None:
        if self.judge.scope is not Scope.PASSAGE:
            raise UserError(
                f"{self.judge.name} judges what is written, and a search has passages only"
            )

    def __call__(
        self, queries: Sequence[str], passages: Sequence[Sequence[Passage]], /
    ) -> list[list[float]]:
        """Return for each query a score for each passage.

        Raises:
            EngineError: a passage has no score; it says why.
        """
        inputs = []
        for query, hits in zip(queries, passages, strict=True):
            turns = (Message("user", query),)
            inputs += [JudgeInput(turns, (passage,)) for passage in hits]
        reflections = finish(self.judge.judge(inputs), self.judge.engine or self.engine)
        scores = map(self._score, reflections)
        return [list(islice(scores, len(hits))) for hits in passages]

    def _score(self, reflection: Reflection) -> float:
        for judgment in reflection.scored:
            return judgment.score
        raise EngineError(
            f"{self.judge.name} of a passage could not be read: {reflection.reason or 'undefined'}"
        )
