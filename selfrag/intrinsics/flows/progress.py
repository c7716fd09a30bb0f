"""What flows through a flow: `Progress`, the `Stage`s that change it, and the `Run` they share."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeAlias, TypeVar

from retrieval.passage import Passage
from selfrag.decoding.answer import Answer, Step, Usage
from selfrag.decoding.batcher import Service
from selfrag.decoding.reflectors import Asking
from selfrag.decoding.requests import Result
from selfrag.decoding.tree import Batch, Commit, counted
from selfrag.errors import UserError
from selfrag.intrinsics.contract import Message, Reflection, Reflector, State
from selfrag.intrinsics.reflectors.critic import is_beside, reflections, services
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import Role

T = TypeVar("T")
Staging: TypeAlias = Generator[Batch | Commit, list[Result], T]

ABSTENTION = "I don't know the answer"
"""The paper's fixed text (section 7)."""


@dataclass(frozen=True, slots=True)
class Progress:
    """One conversation on its way."""

    given: State  # the conversation as it came; never changed
    seen: State  # what gates and the writer see of it
    query: str  # what is searched for
    # evidence; None where nothing was searched, so that a writer may search by itself
    passages: tuple[Passage, ...] | None = None
    answers: tuple[Answer, ...] = ()  # written so far, best first
    steps: tuple[Step, ...] = ()  # what was done
    over: Answer | None = None  # the answer that ends the flow before its last stage

    def noted(self, name: str, outcome: str, judgments: Sequence[Judgment] = (), **changes: Any) -> Progress:
        """The progress after a stage: what changed, and a line about it."""
        step = Step(name, outcome, tuple(judgments), after=bool(self.answers))
        return replace(self, steps=(*self.steps, step), **changes)

    @property
    def question(self) -> str:
        """The last user turn as it came."""
        return self.given.query or ""

    @property
    def evidence(self) -> tuple[Passage, ...] | None:
        """The passages found, or else those that came with the conversation; None where nobody has searched yet."""
        return self.passages if self.passages is not None else self.seen.passages or None

    def state(self, answer: str | None = None) -> State:
        """What a reflector looks at: the conversation as seen, the passages, and an answer where there is one."""
        turns = self.seen.messages if answer is None else (*self.seen.messages, Message("assistant", answer))
        return State(turns, self.evidence or ())


@dataclass(slots=True)
class Run:
    """What the stages of one conversation share."""

    engine: Any  # the driver's; a reflector on another one is asked beside it
    usage: Usage = field(default_factory=Usage)  # what has been spent

    def reflect(self, reflector: Reflector, states: Sequence[State]) -> Asking[list[Reflection]]:
        """One reflection a state, counted."""
        asking = reflections(reflector, states, beside=is_beside(reflector, self.engine))
        return (yield from counted(self, asking))


class Stage:
    """One step of a flow: a frozen value."""

    def run(self, progress: Progress, run: Run) -> Staging[Progress]:
        """The progress after it."""
        raise NotImplementedError

    def services(self, engine: Any) -> Mapping[str, Service]:
        """What it asks beside the engine."""
        del engine
        return {}


@dataclass(frozen=True)
class ReflectorStage(Stage):
    """A stage that asks a reflector, which must judge what the stage needs."""

    role: ClassVar[Role]
    reflector: Reflector

    def __post_init__(self) -> None:
        name, judges = self.reflector.name, self.reflector.role
        if judges != self.role:
            raise UserError(
                f"{type(self).__name__} needs a reflector that judges {self.role}, and {name} judges {judges}"
            )

    def services(self, engine: Any) -> Mapping[str, Service]:
        """The reflector's."""
        return services([self.reflector], engine)


def begin(state: State) -> Progress:
    """The start of a flow.

    Raises:
        UserError: no user turn, or an empty last one.
    """
    index = state.last("user")
    if index is None or not state.messages[index].content.strip():
        raise UserError("the conversation has no question; its last user turn must have text")
    return Progress(state, state, state.messages[index].content)


def first_score(reflection: Reflection) -> Judgment | None:
    """The first judgment of a reflection that is defined."""
    return next((judgment for judgment in reflection.judgments if judgment.defined), None)
