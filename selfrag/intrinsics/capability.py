"""`Capability`: one intrinsic on one executor, typed input to typed result. The base of every intrinsic.

A new intrinsic is a subclass with a name, its needs, a codec and a result type.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain, islice
from typing import Any, ClassVar, Generic, Self, TypeVar

from selfrag.common.errors import UserError
from selfrag.common.untrusted import printable
from selfrag.decoding.answer import Answer
from selfrag.engines.base import pump
from selfrag.intrinsics.contract import (
    Code,
    Codec,
    Completion,
    Diagnostic,
    Execution,
    Executor,
    Failed,
    Reflection,
    Request,
    Steps,
    Teachable,
)
from selfrag.intrinsics.layout import one_line
from selfrag.intrinsics.state import Conversation, Passages, State, read_state
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import Role


class Documents(StrEnum):
    """Whether passages belong to the input."""

    REQUIRED = "required"
    OPTIONAL = "optional"
    UNUSED = "unused"


@dataclass(frozen=True, slots=True)
class Needs:
    """Input of an intrinsic (Table 1 of arXiv 2504.11704)."""

    ends_with: tuple[str, ...]  # roles that the last turn may have
    documents: Documents  # whether there must be passages
    arguments: tuple[str, ...] = ()  # arguments that must be there
    optional: tuple[str, ...] = ()  # arguments that may be there

    def check(self, name: str, state: State) -> None:
        """Refuse a conversation, passages or arguments that make no sense, before any model runs."""
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
        unknown = sorted(set(state.arguments) - {*self.arguments, *self.optional})
        if unknown:
            known = ", ".join((*self.arguments, *self.optional)) or "none"
            raise UserError(f"{name}: unknown argument {unknown[0]!r}; known: {known}")


R = TypeVar("R", bound="Result")


@dataclass(frozen=True, slots=True)
class Result:
    """What every typed result has."""

    diagnostics: tuple[Diagnostic, ...]  # what was wrong with the model's output; empty if nothing
    # what judged: `tokens`, `combined`, `overlap`, `bm25`, `adapter`, `activated adapter`, `prompt` or `endpoint`
    execution: str = field(default="", kw_only=True)

    @property
    def failure(self) -> str | None:
        """Why the request was not served at all, or None."""
        return next((note.message for note in self.diagnostics if note.code is Code.FAILED), None)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        notes = [{"code": str(note.code), "message": note.message, "site": note.site} for note in self.diagnostics]
        return {**_plain(self._values()), "execution": self.execution, "diagnostics": notes}

    def lines(self) -> tuple[str, ...]:
        """What a person wants to know, a line each; printable."""
        return tuple(printable(one_line(line)) for line in self._lines())

    def _values(self) -> dict[str, Any]:
        return {}

    def _lines(self) -> Iterable[str]:
        return ()


@dataclass(frozen=True, slots=True)
class JudgmentResult(Result):
    """One judgment about the whole conversation."""

    judgment: Judgment | None  # None where undefined

    @classmethod
    def of(cls, reflection: Reflection) -> Self:
        """The first judgment that is defined."""
        return cls(reflection.diagnostics, next(iter(reflection.judgments), None))

    def _lines(self) -> Iterable[str]:
        return [spread(self.judgment)]


@dataclass(frozen=True, slots=True)
class YesNoResult(JudgmentResult):
    """One judgment on whether something is so. Its truth value is `holds`."""

    label: ClassVar[str]  # label that says yes
    key: ClassVar[str]  # what its probability is called in plain values

    @property
    def probability(self) -> float | None:
        """Probability of yes; None where undefined."""
        return None if self.judgment is None else self.judgment.probability(self.label)

    @property
    def holds(self) -> bool:
        """Whether yes is at least as probable as not; False where undefined."""
        return self.probability is not None and self.probability >= 0.5

    def __bool__(self) -> bool:
        return self.holds

    def _values(self) -> dict[str, Any]:
        return {self.key: self.probability, "judgment": self.judgment}


def _plain(value: Any) -> Any:
    """Replaces objects that have `as_dict` by plain values."""
    if hasattr(value, "as_dict"):
        return value.as_dict()
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def spread(judgment: Judgment | None) -> str:
    """A distribution for people: `answerable 0.93, unanswerable 0.07`; `undefined` for none. Tiny shares left out."""
    if judgment is None:
        return "undefined"
    shares = sorted(zip(judgment.distribution, judgment.labels.names, strict=True), reverse=True)
    return ", ".join(f"{name} {share:.2f}" for share, name in shares if share >= 0.005)


class Capability(Generic[R]):
    """An intrinsic that is ready to be called."""

    name: ClassVar[str]  # such as `answerability`
    role: ClassVar[Role]  # role of its judgments
    summary: ClassVar[str]  # one line for people
    needs: ClassVar[Needs]  # what its input must be
    chat: ClassVar[Teachable]  # its codec in the default dialect
    result_type: ClassVar[type[Any]]  # whose `of` makes the typed result of a reflection

    def __init__(
        self,
        executor: Executor,
        codec: Codec | None = None,
        adapter: str | None = None,
        method: Execution | None = None,
    ) -> None:
        """An intrinsic on a model.

        Args:
            executor: where requests run.
            codec: the dialect of the adapter; the default dialect if None.
            adapter: name of the LoRA adapter on the executor; None for the codec's own, or the base model.
            method: what judges in place of the codec, such as reflection tokens.
        """
        self.executor = executor
        self.codec: Codec = self.default_codec() if codec is None else codec
        self.adapter = adapter
        self.method = method

    @property
    def execution(self) -> str:
        """What judges; see `Result.execution`."""
        if self.method is not None:
            return self.method.name
        engine = getattr(self.executor, "engine", None)
        if engine is None:
            return "endpoint"
        if self.adapter is None:
            return getattr(self.codec, "embedded", None) or "prompt"
        activated = self.adapter in getattr(engine.limits, "activated", ())
        return "activated adapter" if activated else "adapter"

    @classmethod
    def default_codec(cls) -> Teachable:
        """The codec of the default dialect."""
        return cls.chat

    def result(self, reflection: Reflection) -> R:
        """The typed result of a reflection."""
        found: R = self.result_type.of(reflection)
        return replace(found, execution=self.execution)

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
        return cls.filled(state)

    @classmethod
    def filled(cls, state: State) -> State:
        """The checked input with its arguments as the codec sends them: names as texts, defaults in their places."""
        return state

    @classmethod
    def check(cls, state: State) -> None:
        """Refuse what makes no sense; see `Needs.check`."""
        cls.needs.check(cls.name, state)

    def parts(self, state: State) -> Sequence[State]:
        """The states that are asked about one by one; the state itself, as a rule."""
        return (state,)

    def joined(self, state: State, found: Sequence[Reflection]) -> Reflection:
        """One reflection on the state from those on its parts."""
        (reflection,) = found
        return reflection

    def reflections(self, states: Sequence[State]) -> list[Reflection]:
        """One reflection a state, unchecked, in one batch."""
        if self.method is not None:
            engine: Any = getattr(self.executor, "engine", None)
            return pump(engine, self.method.steps(states))
        parts, requests = self._asked(states)
        return self._joined(states, parts, requests, self.executor.run(requests) if requests else [])

    def steps(self, states: Sequence[State]) -> Steps[list[Reflection]]:
        """The same without IO, for an executor over an engine: yields engine requests, as a decoder does."""
        if self.method is not None:
            return (yield from self.method.steps(states))
        parts, requests = self._asked(states)
        executor: Any = self.executor
        return self._joined(states, parts, requests, (yield from executor.steps(requests)) if requests else [])

    def _asked(self, states: Sequence[State]) -> tuple[list[Sequence[State]], list[Request]]:
        """The parts of each state, and the requests of all; the adapter replaces the codec's."""
        parts = [self.parts(state) for state in states]
        requests = [self.codec.encode(part) for part in chain.from_iterable(parts)]
        return parts, requests if self.adapter is None else [replace(one, adapter=self.adapter) for one in requests]

    def _joined(
        self,
        states: Sequence[State],
        parts: Sequence[Sequence[State]],
        requests: Sequence[Request],
        results: Sequence[Completion | Failed],
    ) -> list[Reflection]:
        """What came back; a request that failed is a reflection without findings and with the reason."""
        found = [
            Reflection.failed(request.state, result.reason)
            if isinstance(result, Failed)
            else self.codec.decode(request, result)
            for request, result in zip(requests, results, strict=True)
        ]
        each = iter(found)
        return [self.joined(state, list(islice(each, len(some)))) for state, some in zip(states, parts, strict=True)]

    def _run(self, states: Sequence[State]) -> list[R]:
        return [self.result(reflection) for reflection in self.reflections(states)]

    @classmethod
    def _of_answer(cls, answer: Answer, state: State) -> State:
        passages = state.passages or tuple({p.key: p for p, _ in answer.retrieved}.values())
        turns = state.messages if "assistant" in cls.needs.ends_with else state.messages[:1]
        return replace(state, messages=turns, passages=passages)
