"""`Capability`: an intrinsic, typed input to typed result, over any judge. The base of every intrinsic.

A new intrinsic is a subclass with a name, labels, its needs, a codec and a result type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import chain, islice
from typing import Any, ClassVar, Generic, Self, TypeVar

from selfrag.common.errors import UserError, count_of
from selfrag.common.untrusted import printable
from selfrag.decoding.answer import Answer
from selfrag.judges.conversation import Conversation, Passages, read_input
from selfrag.judges.layout import one_line
from selfrag.judges.prompted import PromptedJudge
from selfrag.judges.wire import Codec, Executor, Teachable
from selfrag.reflection.findings import Code, Diagnostic, Reflection, spread
from selfrag.reflection.inputs import JudgeInput
from selfrag.reflection.judge import Cost, Judge, Scope
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.requests import Steps
from selfrag.runtime import finish


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

    def check(self, name: str, state: JudgeInput) -> None:
        """Refuse a conversation, passages or arguments that make no sense, before any model runs."""
        if not state.messages:
            raise UserError(
                f"{name}: the conversation is empty; give at least one turn"
            )
        last = state.messages[-1]
        if last.role not in self.ends_with:
            roles = " or ".join(self.ends_with)
            hint = (
                "; add the reply that is to be judged"
                if self.ends_with == ("assistant",)
                else ""
            )
            raise UserError(
                f"{name}: the last turn must be of role {roles}, not {last.role!r}{hint}"
            )
        if not last.content.strip():
            what = "response" if last.role == "assistant" else "question"
            raise UserError(
                f"{name}: the {what} is empty; the last turn must have text"
            )
        if self.documents is Documents.REQUIRED and not state.filled:
            count = len(state.passages)
            why = {0: "there are no passages", 1: "the passage is empty"}.get(
                count, f"all {count_of(count, 'passages', 'are')} empty"
            )
            raise UserError(f"{name}: {why}; give passages=[...]")
        for argument in self.arguments:
            value = state.arguments.get(argument)
            if not isinstance(value, str) or not value.strip():
                raise UserError(
                    f"{name}: the argument {argument!r} is missing; give {argument}='...'"
                )
        unknown = sorted(set(state.arguments) - {*self.arguments, *self.optional})
        if unknown:
            known = ", ".join((*self.arguments, *self.optional)) or "none"
            raise UserError(f"{name}: unknown argument {unknown[0]!r}; known: {known}")


R = TypeVar("R", bound="Result")


@dataclass(frozen=True, slots=True)
class Result:
    """What every typed result has."""

    # what was wrong with the model's output; empty if nothing
    diagnostics: tuple[Diagnostic, ...]
    # who judged: `tokens`, `combined`, `overlap`, `adapter`, `prompt`, `endpoint`, or the name of another judge
    judge: str = field(default="", kw_only=True)

    @property
    def failure(self) -> str | None:
        """Return why the request was not served at all, or None."""
        return next(
            (note.message for note in self.diagnostics if note.code is Code.FAILED),
            None,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        notes = [note.as_dict() for note in self.diagnostics]
        return {**_plain(self._values()), "judge": self.judge, "diagnostics": notes}

    def lines(self) -> tuple[str, ...]:
        """Return what a person wants to know, a line each; printable."""
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
        """Return the first judgment that is defined."""
        return cls(reflection.diagnostics, next(iter(reflection.judgments), None))

    def _lines(self) -> Iterable[str]:
        return [spread(self.judgment)]


@dataclass(frozen=True, slots=True)
class YesNoResult(JudgmentResult):
    """One judgment on whether something is so. Its truth value is `holds`."""

    label: ClassVar[str]  # label that says yes
    key: ClassVar[str]  # what its probability is called in plain values
    favourable: ClassVar[bool] = True  # whether yes is the better answer

    @property
    def probability(self) -> float | None:
        """Probability of yes; None where undefined."""
        if self.judgment is None:
            return None
        if self.label in self.judgment.labels.names:
            return self.judgment.probability(self.label)
        # labels of another judge, which are read by their values
        score = self.judgment.score
        return score if self.favourable else 1.0 - score

    @property
    def holds(self) -> bool:
        """Return whether yes is at least as probable as not; False where undefined."""
        return self.probability is not None and self.probability >= 0.5

    def __bool__(self) -> bool:
        return self.holds

    def _values(self) -> dict[str, Any]:
        return {self.key: self.probability, "judgment": self.judgment}


def _plain(value: Any) -> Any:
    """Replace objects that have `as_dict` by plain values."""
    if hasattr(value, "as_dict"):
        return value.as_dict()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_plain, value))
    return value


class Capability(Judge, Generic[R]):
    """An intrinsic: a typed task over any judge of its role, and a judge itself."""

    name: str = ""  # such as `answerability`; an instance may have another one
    summary: ClassVar[str]  # one line for people
    needs: ClassVar[Needs]  # what its input must be
    chat: ClassVar[Teachable]  # its codec in the default dialect
    # whose `of` makes the typed result of a reflection
    result_type: ClassVar[type[Any]]

    def __init__(
        self,
        judge: Judge,
        *,
        name: str | None = None,
        arguments: Mapping[str, str] | None = None,
        scope: Scope | None = None,
        cost: Cost | None = None,
    ) -> None:
        """Make an intrinsic that is judged by `judge`.

        Args:
            judge: who judges. A prompt or an adapter is asked by `on`.
            name: what policies, weights and traces call it; the intrinsic's own name by default.
            arguments: what the intrinsic asks for, such as `requirement`, for every input that brings none.
            scope: what it looks at of an answer while it is written; by default what judges of its role do.
            cost: by default that of the judge.

        Raises:
            UserError: the judge judges something else.
        """
        if not isinstance(judge, Judge):
            raise UserError(
                f"{self.name} needs a judge; a model is asked by {type(self).__name__}.on(executor)"
            )
        if judge.role != self.labels.role:
            raise UserError(
                f"{self.name} needs a judge of {self.labels.role}, and {judge.name} judges {judge.role}"
            )
        self.by = judge
        self.arguments = dict(arguments or {})
        self.name = self.name if name is None else name
        self.cost = judge.cost if cost is None else cost
        self.scope = judge.scope if scope is None else scope

    @classmethod
    def on(
        cls,
        executor: Executor,
        codec: Codec | None = None,
        adapter: str | None = None,
        **settings: Any,
    ) -> Self:
        """Return the intrinsic of a model, asked by a prompt or an adapter.

        Args:
            executor: where requests run.
            codec: the dialect of the adapter; the default dialect if None.
            adapter: name of the LoRA adapter on the executor; None for the codec's own, or the base model.
            settings: those of an instance, such as `arguments`.
        """
        return cls(
            PromptedJudge(
                executor, cls.chat if codec is None else codec, cls.labels, adapter
            ),
            **settings,
        )

    @cached_property
    def engine(self) -> Any:
        """Engine of the judge."""
        return self.by.engine

    def identity(self) -> Mapping[str, Any]:
        """Return everything that decides its judgments."""
        return {
            **self.by.identity(),
            "intrinsic": type(self).name,
            "arguments": self.arguments,
        }

    def result(self, reflection: Reflection) -> R:
        """Return the typed result of a reflection."""
        result: R = self.result_type.of(reflection)
        return replace(result, judge=self.by.name)

    def __call__(
        self,
        conversation: Conversation,
        passages: Passages | None = None,
        **arguments: str,
    ) -> R:
        """Judge one conversation.

        Args:
            conversation: a question, a list of turns, or an `Answer` (its question alone if only that is judged).
            passages: what it is judged against; for an `Answer` its citations, or what was retrieved if it has none.
            arguments: what the intrinsic asks for, such as `requirement`.

        Raises:
            UserError: the input makes no sense, or the request could not be served.
        """
        (result,) = self._run(
            [self.state(conversation, passages, **(self.arguments | arguments))]
        )
        if result.failure is not None:
            raise UserError(f"{self.name}: {result.failure}")
        return result

    def batch(self, conversations: Iterable[Conversation]) -> list[R]:
        """Judge many; they share the batches of the engine. Use `state` to give passages.

        Returns:
            One result each, in order; one that could not be served has `failure` set.

        Raises:
            UserError: an input makes no sense; names its number.
        """
        states = []
        for number, conversation in enumerate(conversations, 1):
            try:
                states.append(self.state(conversation, **self.arguments))
            except UserError as error:
                raise UserError(f"conversation {number}: {error}") from error
        return self._run(states)

    @classmethod
    def state(
        cls,
        conversation: Conversation,
        passages: Passages | None = None,
        **arguments: str,
    ) -> JudgeInput:
        """Return the checked input; needs no model.

        Raises:
            UserError: it makes no sense.
        """
        state = read_input(conversation, passages, arguments)
        if isinstance(conversation, Answer):
            state = cls._of_answer(conversation, state)
        cls.check(state)
        return cls.filled(state)

    @classmethod
    def filled(cls, state: JudgeInput) -> JudgeInput:
        """Return the checked input with its arguments as the codec sends them: names as texts, defaults in place."""
        return state

    @classmethod
    def check(cls, state: JudgeInput) -> None:
        """Refuse what makes no sense; see `Needs.check`."""
        cls.needs.check(cls.name, state)

    def parts(self, state: JudgeInput) -> Sequence[JudgeInput]:
        """Return the inputs that are asked about one by one; the input itself, as a rule."""
        return (state,)

    def merged(
        self, state: JudgeInput, reflections: Sequence[Reflection]
    ) -> Reflection:
        """Return one reflection on the input from those on its parts."""
        (reflection,) = reflections
        return reflection

    def judge(self, inputs: Sequence[JudgeInput]) -> Steps[list[Reflection]]:
        """Return one reflection an input, unchecked, in one batch."""
        inputs = [self._with_arguments(state) for state in inputs]
        parts = [self.parts(state) for state in inputs]
        batch = list(chain.from_iterable(parts))
        reflections = iter((yield from self.by.judge(batch)) if batch else ())
        return [
            self.merged(state, list(islice(reflections, len(of_state))))
            for state, of_state in zip(inputs, parts, strict=True)
        ]

    def reflections(self, inputs: Sequence[JudgeInput]) -> list[Reflection]:
        """Return one reflection an input; runs the judge."""
        return finish(self.judge(inputs), self.engine)

    def _with_arguments(self, state: JudgeInput) -> JudgeInput:
        for name in self.needs.arguments:
            if not (state.arguments or self.arguments).get(name):
                raise UserError(
                    f"{self.name} needs {name!r}; give arguments={{{name!r}: ..}} to the intrinsic"
                )
        if state.arguments or not self.arguments:
            return state
        return self.filled(replace(state, arguments=self.arguments))

    def _run(self, inputs: Sequence[JudgeInput]) -> list[R]:
        return [self.result(reflection) for reflection in self.reflections(inputs)]

    @classmethod
    def _of_answer(cls, answer: Answer, state: JudgeInput) -> JudgeInput:
        turns = state.messages
        passages = state.passages
        if not passages:
            passages = tuple(
                {passage.key: passage for passage, _ in answer.retrieved}.values()
            )
        if "assistant" not in cls.needs.ends_with:
            turns = turns[:1]
        return replace(state, messages=turns, passages=passages)
