"""What flows through a flow (`FlowProgress`), the base of its stages, and the writers of answers. Sans-IO."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

from retrieval.passage import Passage
from selfrag.common.errors import DecodingError, UserError, count_of
from selfrag.common.untrusted import printable
from selfrag.decoding.answer import Answer, FlowStep, Usage, segments_of
from selfrag.decoding.beam import decode
from selfrag.decoding.policy import Action, AnswerReason, Decoding, WithoutEvidence
from selfrag.decoding.token_writer import DecodingModel
from selfrag.decoding.trace import ROOT, Decision, Node, Status, Trace
from selfrag.decoding.tree import Yielded
from selfrag.judges import layout
from selfrag.judges.external import beside
from selfrag.judges.wire import ChatPrompt, Completion, Executor, ModelRequest
from selfrag.prompting import Turn
from selfrag.reflection.findings import Reflection
from selfrag.reflection.inputs import JudgeInput, Message
from selfrag.reflection.judge import Judge
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import Role
from selfrag.reflection.requests import (
    External,
    ExternalResult,
    Failed,
    RequestResult,
    Steps,
    external_value,
)

T = TypeVar("T")
Staging: TypeAlias = Generator[Yielded, list[RequestResult], T]

ABSTENTION = "I don't know the answer"
"""The paper's fixed text (section 7.1)."""


@dataclass(frozen=True, slots=True)
class FlowProgress:
    """One conversation on its way."""

    original: JudgeInput  # the conversation as it came; never changed
    seen: JudgeInput  # what guardrails and the writer see of it
    query: str  # what is searched for
    # evidence; None where nothing was searched, so that a writer may search by itself
    passages: tuple[Passage, ...] | None = None
    evidence_given: bool = False  # whether the caller gave the evidence, perhaps none, in place of searching
    answers: tuple[Answer, ...] = ()  # written so far, best first
    steps: tuple[FlowStep, ...] = ()  # what was done
    over: Answer | None = None  # the answer that ends the flow before its last stage

    def noted(
        self,
        name: str,
        outcome: str,
        judgments: Sequence[Judgment | None] = (),
        **changes: Any,
    ) -> FlowProgress:
        """Return the progress after a stage: what changed, a line about it, and the judgments that are defined."""
        defined = tuple([judgment for judgment in judgments if judgment is not None])
        step = FlowStep(name, outcome, defined, after=bool(self.answers))
        return replace(self, steps=(*self.steps, step), **changes)

    @property
    def question(self) -> str:
        """Return the last user turn as it came."""
        return self.original.query or ""

    @property
    def evidence(self) -> tuple[Passage, ...] | None:
        """Return the passages searched for, or else those of the conversation; None where nobody has searched yet."""
        return (
            self.passages if self.passages is not None else self.seen.passages or None
        )

    def state(self, answer: Answer | None = None) -> JudgeInput:
        """Return what a judge looks at: the conversation as seen, the passages, and an answer where there is one."""
        state = JudgeInput(self.seen.messages, self.evidence or ())
        if answer is None:
            return state
        turns = (*state.messages, Message("assistant", answer.text))
        return replace(state, messages=turns, path_score=answer.path_score)


@dataclass(slots=True)
class FlowRun:
    """What the stages of one conversation share."""

    engine: Any  # the driver's; a judge on another one is asked beside it

    def ask(
        self, judge: Judge, inputs: Sequence[JudgeInput]
    ) -> Steps[list[Reflection]]:
        """Return one reflection an input."""
        (placed,) = beside([judge], self.engine)
        return (yield from placed.judge(inputs))


class Stage(ABC):
    """One step of a flow: a frozen value."""

    @abstractmethod
    def run(self, progress: FlowProgress, run: FlowRun) -> Staging[FlowProgress]:
        """Return the progress after it."""


@dataclass(frozen=True)
class JudgeStage(Stage):
    """A stage that asks a judge of what the stage needs."""

    role: ClassVar[Role]
    judge: Judge

    def __post_init__(self) -> None:
        if self.judge.role != self.role:
            raise UserError(
                f"{type(self).__name__} needs a judge of {self.role}, and {self.judge.name} judges {self.judge.role}"
            )


def begin(state: JudgeInput, evidence: Sequence[Passage] | None = None) -> FlowProgress:
    """Return the start of a flow, `evidence` in place of searches. Refuse a conversation without a question."""
    index = state.last("user")
    if index is None or not state.messages[index].content.strip():
        raise UserError(
            "the conversation has no question; its last user turn must have text"
        )
    progress = FlowProgress(state, state, state.messages[index].content)
    if evidence is None:
        return progress
    return replace(progress, passages=tuple(evidence), evidence_given=True)


def first_score(reflection: Reflection) -> Judgment | None:
    """Return the first judgment of a reflection that has a score."""
    return next(iter(reflection.scored), None)


TASK = "Answer the last message of the user."
GROUNDED = f"{TASK} Use only what the documents say. If they do not hold the answer, say that you do not know it."


class AnswerWriter(Protocol):
    """Writes answers to the conversation as seen, with the passages of the progress where it has some.

    Example:
        >>> from selfrag.intrinsics.flows import Flow, Write, run
        >>> class Oracle:
        ...     def write(self, progress, run, samples):
        ...         return [taken(progress.question, "42", ())]
        ...         yield []  # a generator, as every stage
        >>> print(*run(Flow((Write(Oracle()),)), ["What is six times seven?"], None))
        42
    """

    def write(
        self, progress: FlowProgress, run: FlowRun, samples: int
    ) -> Staging[list[Answer]]:
        """Return at least one answer, best first; at most `samples`."""


@dataclass(frozen=True, slots=True)
class SelfRAGWriter:
    """The segment beam of a Self-RAG model; without passages it searches by itself, for the query of the flow."""

    prompting: DecodingModel  # codec, vocabulary and layout of the model, or another model that reflects
    decoding: Decoding = field(default_factory=Decoding)  # the policy
    judges: tuple[Judge, ...] = ()  # that the policy names

    def write(
        self, progress: FlowProgress, run: FlowRun, samples: int
    ) -> Staging[list[Answer]]:
        """Return the best finished hypotheses; several samples cost no more than one."""
        *history, question = _turns(progress)
        answer = yield from decode(
            question.text,
            self.prompting,
            self.decoding,
            passages=progress.evidence,
            query=progress.query if progress.query != question.text else None,
            history=history,
            judges=beside(self.judges, run.engine),
        )
        return finished(answer, samples)


@dataclass(frozen=True, slots=True)
class ChatWriter:
    """Any chat model on an executor. It cites nothing by itself; `Cite` can do that afterwards."""

    executor: Executor  # runs the requests
    max_tokens: int = 256  # of an answer
    temperature: float = 0.0  # for several samples above 0, which engines of this library refuse and servers take
    adapter: str | None = None  # LoRA adapter, if any
    name: str = "writer"  # for messages, where it runs beside the engine
    # as in `Decoding`, where the flow searched and found nothing
    without_evidence: WithoutEvidence = "abstain"

    def write(
        self, progress: FlowProgress, run: FlowRun, samples: int
    ) -> Staging[list[Answer]]:
        """Return distinct answers, in the order written."""
        if progress.passages == () and self.without_evidence == "abstain":
            cause = AnswerReason.NOTHING_FOUND
            return [abstention(progress, ABSTENTION, str(cause), cause)]
        if samples > 1 and not self.temperature:
            raise UserError(
                f"{count_of(samples, 'samples')} at temperature 0 are one and the same; set temperature=0.7, say"
            )
        requests = [self.request(progress)] * samples
        results = yield from self._results(requests, run.engine)
        texts: dict[str, None] = {}
        reason = ""
        for result in results:
            if isinstance(result, Failed):
                reason = result.reason
            elif result.text.strip():
                texts[result.text.strip()] = None
        if not texts:
            raise DecodingError(
                f"no answer could be written: {printable(reason) or 'the model wrote nothing'}"
            )
        passages = progress.state().passages
        return [taken(progress.question, text, passages) for text in texts]

    def request(self, progress: FlowProgress) -> ModelRequest:
        """Return documents, conversation and task as one user turn."""
        state = progress.state()
        documents = [layout.plain_document(state, index) for index in state.filled]
        task = f"Task: {GROUNDED if documents else TASK}"
        prompt = layout.turn(*documents, layout.conversation(state.messages), task)
        turns = (Message("user", prompt),)
        return ModelRequest(
            state,
            ChatPrompt(turns),
            self.max_tokens,
            self.temperature,
            adapter=self.adapter,
        )

    def _results(
        self, requests: Sequence[ModelRequest], engine: Any
    ) -> Steps[list[Completion | Failed]]:
        if self.executor.engine is None or self.executor.engine is engine:
            return (yield from self.executor.steps(requests))
        results = yield [
            External(self._run, request, self.name) for request in requests
        ]
        return [external_value(result) for result in results]

    def _run(self, requests: Sequence[ModelRequest]) -> list[ExternalResult | Failed]:
        """Run requests on the executor's own engine; each is counted with its result."""
        results: list[ExternalResult | Failed] = []
        for completion in self.executor.run(requests):
            if isinstance(completion, Failed):
                results.append(completion)
            else:
                results.append(ExternalResult(completion, completion.usage))
        return results


def finished(answer: Answer, most: int) -> list[Answer]:
    """Return an answer and the other finished hypotheses of its beam, best first, each text once."""
    trace = answer.trace
    if most == 1 or trace.best is None:
        return [answer]
    ends = [
        node
        for node in trace.nodes
        if node.status is Status.FINISHED and node.id != trace.best
    ]
    answers = {answer.text: answer}
    for node in sorted(ends, key=lambda node: (-node.path_score, node.id)):
        alternative = replace(trace, best=node.id)
        text, segments = segments_of(alternative, node.id)
        answers.setdefault(
            text, replace(answer, text=text, segments=segments, trace=alternative)
        )
    return list(answers.values())[:most]


def taken(question: str, text: str, passages: Sequence[Passage]) -> Answer:
    """Return a text as an `Answer` of one segment without citation; its trace holds the passages of the writer."""
    action: Action = "retrieve" if passages else "write"
    node = Node(
        0,
        ROOT,
        1,
        "none",
        None,
        text,
        finish="given",
        ended=True,
        status=Status.FINISHED,
    )
    decision = Decision(ROOT, action, "given", passages=tuple(passages))
    trace = Trace(question, Decoding(), (node,), (decision,), 0)
    return Answer(question, *segments_of(trace, 0), Usage(), trace)


def abstention(
    progress: FlowProgress,
    text: str,
    reason: str,
    cause: AnswerReason = AnswerReason.GUARDRAIL,
) -> Answer:
    """Return a fixed text in place of an answer."""
    passages = progress.evidence or ()
    decision = Decision(
        ROOT, "abstain", reason, query=progress.query, passages=passages, cause=cause
    )
    trace = Trace(progress.question, Decoding(abstention=text), (), (decision,), None)
    return Answer(progress.question, text, (), Usage(), trace)


def _turns(progress: FlowProgress) -> list[Turn]:
    """Return the turns as seen, up to the last user turn."""
    last = progress.seen.last("user")
    if last is None:
        return []
    return [
        Turn(turn.role, turn.content) for turn in progress.seen.messages[: last + 1]
    ]
