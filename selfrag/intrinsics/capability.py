"""`Capability`: one intrinsic on one executor, typed input to typed result. The base of every intrinsic.

A new intrinsic is a subclass that names itself, says what it needs, has a default codec and reads a reflection.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from selfrag.decoding.answer import Answer
from selfrag.errors import UserError
from selfrag.intrinsics.chat import transcript
from selfrag.intrinsics.contract import Codec, Executor, Reflection, State, Steps, Teachable
from selfrag.intrinsics.conversation import Conversation, Passages, read_state
from selfrag.intrinsics.findings import Code, Diagnostic
from selfrag.intrinsics.needs import Needs
from selfrag.intrinsics.running import reflection_steps, reflections
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import Role
from selfrag.untrusted import printable

R = TypeVar("R", bound="Result")


@dataclass(frozen=True, slots=True)
class Result:
    """What every typed result has.

    Attributes:
        diagnostics: what was wrong with the model's output; empty if nothing.
    """

    diagnostics: tuple[Diagnostic, ...]

    @property
    def failure(self) -> str | None:
        """Why the request was not served at all, or None."""
        return next((note.message for note in self.diagnostics if note.code is Code.FAILED), None)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        notes = [{"code": str(note.code), "message": note.message, "site": note.site} for note in self.diagnostics]
        return {**self._values(), "diagnostics": notes}

    def lines(self) -> tuple[str, ...]:
        """What a person wants to know, a line each; printable."""
        return tuple(printable(transcript.one_line(line)) for line in self._lines())

    def _values(self) -> dict[str, Any]:
        return {}

    def _lines(self) -> Iterable[str]:
        return ()


def spread(judgment: Judgment | None) -> str:
    """A distribution for people: `answerable 0.93, unanswerable 0.07`; `undefined` for none. Tiny shares left out."""
    if judgment is None:
        return "undefined"
    shares = sorted(zip(judgment.distribution, judgment.labels.names, strict=True), reverse=True)
    return ", ".join(f"{name} {share:.2f}" for share, name in shares if share >= 0.005)


class Capability(ABC, Generic[R]):
    """An intrinsic that is ready to be called.

    Attributes:
        name: such as `answerability`.
        role: role of its judgments.
        needs: what its input must be.
        summary: one line for people.
    """

    name: ClassVar[str]
    role: ClassVar[Role]
    needs: ClassVar[Needs]
    summary: ClassVar[str]

    def __init__(self, executor: Executor, codec: Codec | None = None, adapter: str | None = None) -> None:
        """An intrinsic on a model.

        Args:
            executor: where requests run.
            codec: the dialect of the adapter; the default dialect if None.
            adapter: name of the LoRA adapter on the executor; None for the codec's own, or the base model.
        """
        self.executor = executor
        self.codec: Codec = self.default_codec() if codec is None else codec
        self.adapter = adapter

    @classmethod
    @abstractmethod
    def default_codec(cls) -> Teachable:
        """The codec of the default dialect."""

    @abstractmethod
    def result(self, reflection: Reflection) -> R:
        """The typed result of a reflection."""

    def __call__(self, conversation: Conversation, passages: Passages | None = None, **arguments: str) -> R:
        """Judge one conversation.

        Args:
            conversation: a question, a list of turns, or an `Answer` (its question alone if only that is judged).
            passages: what it is judged against; for an `Answer` its citations, or what was retrieved if it has none.
            arguments: what the intrinsic asks for, such as `requirement`.

        Raises:
            UserError: the input makes no sense, or the request could not be served.
        """
        (result,) = self._run([self.state(conversation, passages, **arguments)])
        if result.failure is not None:
            raise UserError(f"{self.name}: {result.failure}")
        return result

    def batch(self, conversations: Iterable[Conversation]) -> list[R]:
        """Judge many; they share the executor's batch. Use `state` to give passages.

        Returns:
            One result each, in order; one that could not be served has `failure` set.

        Raises:
            UserError: an input makes no sense; names its number.
        """
        states = []
        for number, conversation in enumerate(conversations, 1):
            try:
                states.append(self.state(conversation))
            except UserError as error:
                raise UserError(f"conversation {number}: {error}") from error
        return self._run(states)

    @classmethod
    def state(cls, conversation: Conversation, passages: Passages | None = None, **arguments: str) -> State:
        """The checked input; needs no model.

        Raises:
            UserError: it makes no sense.
        """
        state = read_state(conversation, passages, arguments)
        if isinstance(conversation, Answer):
            state = cls._of_answer(conversation, state)
        cls.check(state)
        return state

    @classmethod
    def check(cls, state: State) -> None:
        """Refuse what makes no sense.

        Raises:
            UserError: see `Needs.check`.
        """
        cls.needs.check(cls.name, state)

    def parts(self, state: State) -> Sequence[State]:
        """The states that are asked about one by one; the state itself, as a rule."""
        return (state,)

    def joined(self, state: State, found: Sequence[Reflection]) -> Reflection:
        """One reflection on the state from those on its parts."""
        del state
        (reflection,) = found
        return reflection

    def reflections(self, states: Sequence[State]) -> list[Reflection]:
        """One reflection a state, unchecked, in one batch."""
        parts = [tuple(self.parts(state)) for state in states]
        return self._joined(states, parts, reflections(self.codec, self.executor, _flat(parts), self.adapter))

    def steps(self, states: Sequence[State]) -> Steps[list[Reflection]]:
        """The same without IO, for an executor over an engine: yields engine requests, as a decoder does."""
        parts = [tuple(self.parts(state)) for state in states]
        executor: Any = self.executor
        found = yield from reflection_steps(self.codec, executor, _flat(parts), self.adapter)
        return self._joined(states, parts, found)

    def _joined(
        self, states: Sequence[State], parts: Sequence[Sequence[State]], found: Sequence[Reflection]
    ) -> list[Reflection]:
        each = iter(found)
        return [self.joined(state, [next(each) for _ in some]) for state, some in zip(states, parts, strict=True)]

    def _run(self, states: Sequence[State]) -> list[R]:
        return [self.result(reflection) for reflection in self.reflections(states)]

    @classmethod
    def _of_answer(cls, answer: Answer, state: State) -> State:
        passages = state.passages or tuple({p.key: p for p, _ in answer.retrieved}.values())
        turns = state.messages if "assistant" in cls.needs.ends_with else state.messages[:1]
        return State(turns, passages, state.arguments)


def _flat(parts: Sequence[Sequence[State]]) -> list[State]:
    return [state for some in parts for state in some]
