"""`Flow`: stages in order, as a value; the paper's four by name; and running flows over conversations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from retrieval.passage import Retriever
from selfrag.decoding.answer import Answer
from selfrag.decoding.batcher import Service
from selfrag.decoding.driver import Answered, Broken, drive
from selfrag.decoding.sessions import Serving
from selfrag.decoding.tree import Decoder
from selfrag.errors import UserError
from selfrag.intrinsics.contract import Reflector, State
from selfrag.intrinsics.conversation import Conversation, read_state
from selfrag.intrinsics.flows.progress import ABSTENTION, Run, Stage, begin
from selfrag.intrinsics.flows.stages import AnswerabilityGate, Rewrite, Search, Sees, Write
from selfrag.intrinsics.flows.writers import Writer

NAMES = ("none", "qr", "ad", "qr+ad")
"""The flows of section 7 of the paper."""


@dataclass(frozen=True, slots=True)
class Flow:
    """Stages, one after the other, until one ends the flow or none is left.

    Attributes:
        stages: in order; somewhere there must be one that writes or takes an answer.
        name: for reports.
    """

    stages: tuple[Stage, ...]
    name: str = ""

    def then(self, *stages: Stage) -> Flow:
        """The flow with more stages after it."""
        return replace(self, stages=(*self.stages, *stages))

    def __add__(self, other: Flow) -> Flow:
        name = "+".join(filter(None, (self.name, other.name)))
        return Flow((*self.stages, *other.stages), name)

    def decoder(self, state: State, engine: Any) -> Decoder:
        """The flow on one conversation, for a driver of `engine`.

        Raises:
            UserError: the conversation has no question, or no stage wrote an answer.
        """
        run, progress = Run(engine), begin(state)
        for stage in self.stages:
            progress = yield from stage.run(progress, run)
            if progress.over is not None:
                break
        answer = progress.over or next(iter(progress.answers), None)
        if answer is None:
            raise UserError(f"the flow {self.name or '(without a name)'} writes no answer; add Write(..) or Take()")
        return replace(answer, question=progress.question, usage=run.usage, steps=progress.steps)

    def services(self, engine: Any) -> dict[str, Service]:
        """What a driver needs to serve what the stages ask beside its engine."""
        return {name: serve for stage in self.stages for name, serve in stage.services(engine).items()}


def named(
    name: str,
    writer: Writer,
    *,
    rewrite: Reflector | None = None,
    answerability: Reflector | None = None,
    k: int | None = 5,
    rewrite_scope: Sees = "retrieval",
    threshold: float = 0.5,
    text: str = ABSTENTION,
) -> Flow:
    """One of the paper's flows.

    Args:
        name: `none`, `qr` (rewrite), `ad` (answerability) or `qr+ad`.
        writer: who writes.
        rewrite: for the flows with `qr`.
        answerability: for the flows with `ad`.
        k: passages of the search; None lets a writer that can search decide, which `ad` does not allow.
        rewrite_scope: see `Rewrite`; the paper's is `retrieval`: the gate and the writer see the original.
        threshold: least probability of answerable to go on.
        text: the fixed text in place of an answer.

    Raises:
        UserError: an unknown name, or a reflector or a search is missing.
    """
    wanted = name.strip().casefold().replace(" ", "")
    if wanted not in NAMES:
        raise UserError(f"unknown flow {name!r}; known: {', '.join(NAMES)}")
    stages: list[Stage] = []
    if "qr" in wanted:
        if rewrite is None:
            raise UserError(f"the flow {wanted} needs rewrite=.., such as Reflecting(QueryRewrite(executor))")
        stages.append(Rewrite(rewrite, rewrite_scope))
    if k is not None:
        stages.append(Search(k))
    if "ad" in wanted:
        if answerability is None:
            raise UserError(f"the flow {wanted} needs answerability=.., such as Reflecting(Answerability(executor))")
        if k is None:
            raise UserError(f"the flow {wanted} judges what was found; give k=5, say")
        stages.append(AnswerabilityGate(answerability, threshold, text))
    return Flow((*stages, Write(writer)), wanted)


def run(
    flow: Flow, conversations: Iterable[Conversation], engine: Serving, retriever: Retriever | None = None
) -> list[Answer | UserError]:
    """A flow over conversations that share the engine's batches.

    Args:
        flow: what to do.
        conversations: questions, lists of turns or states (with passages, where these are given).
        engine: of the driver; what runs elsewhere is asked beside it.
        retriever: for searches.

    Returns:
        For each conversation its answer, or why it has none.
    """
    states: Sequence[State] = [read_state(one) for one in conversations]
    decoders = (flow.decoder(state, engine) for state in states)
    results: dict[int, Answer | UserError] = {}
    for event in drive(decoders, engine, retriever, services=flow.services(engine)):
        if isinstance(event, Answered | Broken):
            results[event.index] = event.answer if isinstance(event, Answered) else event.error
    return [results[index] for index in range(len(states))]
