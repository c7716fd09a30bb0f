"""Reflectors judge what is being written: an intrinsic, a Self-RAG model's reflection tokens, or any Python function.

`critic` hands one to the decoder (`selfrag.decoding.reflectors`). On the decoder's own engine it runs among its
requests; anywhere else it is a service beside the engine, asked once for all questions that wait.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

from retrieval.passage import Passage
from selfrag.decoding.answer import joint
from selfrag.decoding.driver import Service
from selfrag.decoding.reflectors import Asking, Critic, Moment, Verdict
from selfrag.decoding.requests import Consult, Consulted, Failed, Generate, Generated, Request, Result
from selfrag.decoding.segments import judge
from selfrag.engines.base import Engine, pump
from selfrag.errors import EngineError, UserError
from selfrag.intrinsics.capability import Capability
from selfrag.intrinsics.catalog import check_cards, find
from selfrag.intrinsics.contract import (
    DIALECT,
    Code,
    Cost,
    Diagnostic,
    Finding,
    Message,
    Reflection,
    Reflector,
    Scope,
    Site,
    State,
    Steps,
)
from selfrag.intrinsics.execution.engine import EngineExecutor
from selfrag.loading import shipped_adapters
from selfrag.prompting import Prompting, Turn
from selfrag.reflection.judgment import Judgment, Source
from selfrag.reflection.labels import ISREL, ISSUP, ISUSE, LabelSet, Role
from selfrag.reflection.vocabulary import Vocabulary
from selfrag.untrusted import printable

T = TypeVar("T")

OF_PASSAGES = frozenset({Role.RELEVANCE, Role.ANSWERABLE})
NEED_EVIDENCE = frozenset({Role.SUPPORT, Role.RELEVANCE, Role.CITATION, Role.ANSWERABLE})
JUDGING = OF_PASSAGES | NEED_EVIDENCE | {Role.UTILITY, Role.CERTAINTY, Role.COMPLIANCE}


@dataclass(frozen=True, slots=True)
class ReflectorCritic:
    """A `Critic` of a reflector."""

    reflector: Reflector  # what judges
    beside: bool  # whether it runs beside the engine
    name: str
    cost: int
    of_passages: bool  # what is written does not matter: relevance, answerability
    needs_evidence: bool  # about passages

    def judge(self, moments: Sequence[Moment]) -> Asking[list[Verdict]]:
        """One verdict a moment."""
        whole = getattr(self.reflector, "context", "segment") == "answer"
        states, starts = zip(*(_state(moment, whole=whole) for moment in moments), strict=True)
        found = yield from reflections(self.reflector, states, beside=self.beside)
        pairs = zip(found, starts, strict=True)
        return [_verdict(reflection, start, self.reflector.role) for reflection, start in pairs]


def reflections(reflector: Reflector, states: Sequence[State], *, beside: bool) -> Asking[list[Reflection]]:
    """One reflection a state, asked for in the way that fits; one that nobody served says why."""
    if not beside:
        return (yield from among(reflector.reflect(states)))
    results = yield [Consult(reflector.name, state) for state in states]
    return [_consulted(state, result) for state, result in zip(states, results, strict=True)]


def among(steps: Steps[T]) -> Asking[T]:
    """Engine requests of an executor among those of a decoder."""
    results: list[Generated | Failed] | None = None
    while True:
        try:
            batch = next(steps) if results is None else steps.send(results)
        except StopIteration as stop:
            value: T = stop.value
            return value
        requests: list[Request] = list[Request](batch)
        results = [result for result in (yield requests) if isinstance(result, Generated | Failed)]


def is_beside(reflector: Reflector, engine: Any) -> bool:
    """Whether a reflector runs on something else than `engine`: a function, another engine, a server."""
    executor = getattr(reflector, "executor", None)
    if executor is None:
        return bool(getattr(reflector, "blocking", False))
    return getattr(executor, "engine", None) is not engine


def critic(reflector: Reflector, engine: Any) -> Critic:
    """A critic for a decoder that runs on `engine`.

    Raises:
        UserError: it judges neither text nor passages, such as a query rewrite.
    """
    if reflector.role not in JUDGING:
        raise UserError(f"{reflector.name} judges {reflector.role}, which neither ranks nor gates an answer")
    return ReflectorCritic(
        reflector,
        is_beside(reflector, engine),
        reflector.name,
        int(reflector.cost),
        of_passages=reflector.role in OF_PASSAGES,
        needs_evidence=reflector.role in NEED_EVIDENCE,
    )


def services(reflectors: Iterable[Reflector], engine: Any) -> dict[str, Service]:
    """What a driver needs to serve the reflectors that run beside its engine."""
    return {one.name: _service(one) for one in reflectors if is_beside(one, engine)}


def _service(reflector: Reflector) -> Service:
    run = getattr(reflector, "run", None)
    if run is None:
        raise UserError(f"{reflector.name} runs beside the engine but has no method run(states)")
    return lambda states: run(list(states))


def _consulted(state: State, result: Result) -> Reflection:
    if isinstance(result, Consulted) and isinstance(result.value, Reflection):
        return result.value
    reason = result.reason if isinstance(result, Failed) else f"got {type(result).__name__}"
    return Reflection(state, diagnostics=(Diagnostic(Code.FAILED, printable(reason)),))


def _state(moment: Moment, *, whole: bool) -> tuple[State, int]:
    """The conversation with the segment as its last turn, and where in that turn the segment begins."""
    turns = [Message(turn.role, turn.text) for turn in moment.history]
    turns.append(Message("user", moment.question))
    start = 0
    if moment.text:
        before = moment.before + joint(moment.before, moment.text) if whole else ""
        turns.append(Message("assistant", before + moment.text))
        start = len(before)
    return State(tuple(turns), moment.passages), start


def _verdict(reflection: Reflection, start: int, role: Role) -> Verdict:
    """The defined places. Citations are weighted by sentence length; other judgments have equal weight."""
    last = len(reflection.state.messages) - 1
    places, shares = [], []
    for finding in reflection.findings:
        earlier = finding.site.message == last and finding.site.end <= start
        if finding.judgment is None or not finding.judgment.defined or earlier:
            continue
        places.append(finding.judgment)
        shares.append(float(len(finding.site.text)) if role is Role.CITATION else 1.0)
    return Verdict(tuple(places), tuple(max(share, 1.0) for share in shares))


class IntrinsicReflector:
    """A `Reflector` of an intrinsic."""

    def __init__(
        self,
        capability: Capability[Any],
        *,
        name: str | None = None,
        cost: Cost | None = None,
        context: Literal["segment", "answer"] = "segment",
    ) -> None:
        """A reflector of an intrinsic.

        Args:
            capability: the intrinsic on its executor.
            name: what policies, weights and traces call it; the intrinsic's own name by default.
            cost: by default, labels of the default dialect cost one token, or a prefill where an adapter judges;
                everything else is written text.
            context: what is judged of an answer while it is written: the new segment alone, or the segment with the
                answer before it in sight (places in earlier segments then do not count).
        """
        self.capability = capability
        self.executor: Any = capability.executor
        self.role: Role = capability.role
        self.name = capability.name if name is None else name
        self.cost = _cost(capability) if cost is None else cost
        self.context = context

    def reflect(self, states: Sequence[State]) -> Steps[list[Reflection]]:
        """One reflection a state. Yields engine requests if the executor is over an engine; else asks and waits."""
        if not hasattr(self.executor, "steps"):
            return self.run(states)
        return (yield from self.capability.steps(states))

    def run(self, states: Sequence[State]) -> list[Reflection]:
        """The same, with IO; on an executor over an engine, the engine must not be in use."""
        return self.capability.reflections(states)


def _cost(capability: Capability[Any]) -> Cost:
    if capability.codec.dialect != DIALECT or getattr(capability.codec, "writes", False):
        return Cost.GENERATED
    return Cost.ONE_TOKEN if capability.adapter is None else Cost.PREFILL


Function = Callable[[Sequence[State]], Sequence[Sequence[float] | None]]
"""States in; for each a probability a label (they need not sum to 1), or None where there is nothing to say."""


class FunctionReflector:
    """A `Reflector` of a function, which is called beside the engine with whatever waits at the time."""

    blocking = True

    def __init__(self, name: str, labels: LabelSet, function: Function, cost: Cost = Cost.PREFILL) -> None:
        """A reflector of a function.

        Args:
            name: what policies, weights and traces call it.
            labels: what is judged; its role is the reflector's.
            function: see `Function`.
            cost: its tier.
        """
        self.name = name
        self.labels = labels
        self.role: Role = labels.role
        self.function = function
        self.cost = cost

    def reflect(self, states: Sequence[State]) -> Steps[list[Reflection]]:
        """One reflection a state; yields nothing."""
        return self.run(states)
        yield []  # a generator, as the protocol wants

    def run(self, states: Sequence[State]) -> list[Reflection]:
        """One reflection a state. A value that is no distribution is undefined, and a diagnostic says why."""
        rows = list(self.function(states))
        if len(rows) != len(states):
            raise ValueError(f"{self.name} answered {len(rows)} of {len(states)} states")
        return [self._reflection(state, row) for state, row in zip(states, rows, strict=True)]

    def _reflection(self, state: State, row: Sequence[float] | None) -> Reflection:
        site = _turn(state, len(state.messages) - 1)
        if row is None:
            return Reflection(state, (Finding(site, None),))
        values = [float(value) for value in row]
        total = math.fsum(values) if all(math.isfinite(value) and value >= 0 for value in values) else 0.0
        if len(values) != len(self.labels) or total <= 0:
            note = Diagnostic(Code.INVALID, f"{len(values)} numbers that are no distribution over {len(self.labels)}")
            return Reflection(state, (Finding(site, None),), diagnostics=(note,))
        distribution = tuple(value / total for value in values)
        judgment = Judgment(self.labels, str(site), distribution, 1.0, Source.JUDGE)
        return Reflection(state, (Finding(site, judgment),))


Named: TypeAlias = Sequence[str] | Mapping[str, str | Path | None]
"""Names of intrinsics, or names with the folder of each adapter (None for the base model with a prompt)."""


def adapters_of(intrinsics: Named, model: str | Path) -> dict[str, str]:
    """Folders of the adapters to load, by intrinsic; a registered model brings those that it has.

    Raises:
        UserError: an unknown intrinsic, or an adapter that was trained with other prompts.
    """
    folders = _folders(intrinsics, model)
    check_cards(folders, DIALECT)
    return folders


def _folders(intrinsics: Named, model: str | Path) -> dict[str, str]:
    if isinstance(intrinsics, str):
        raise UserError(f"intrinsics={intrinsics!r}: give a list of names")
    names = [find(name).name for name in intrinsics]
    if isinstance(intrinsics, Mapping):
        given = zip(names, intrinsics.values(), strict=True)
        return {name: str(folder) for name, folder in given if folder is not None}
    return {name: str(folder) for name, folder in shipped_adapters(model).items() if name in names}


def on_engine(engine: Engine, tokenizer: Any, intrinsics: Named) -> tuple[IntrinsicReflector, ...]:
    """Reflectors on an engine: with an adapter where it has one of that name, else with a prompt on the base model.

    Raises:
        UserError: an adapter that was asked for is not on the engine.
    """
    loaded = engine.limits.adapters
    wanted = dict(intrinsics) if isinstance(intrinsics, Mapping) else dict.fromkeys(intrinsics)
    adapters: dict[str, str] = {}
    for given, folder in wanted.items():
        name = find(given).name
        found = next((one for one in (name, str(folder)) if one in loaded), None)
        if found is not None:
            adapters[name] = found
        elif folder is not None:
            there = ", ".join(sorted(loaded)) or "none"
            raise UserError(f"the engine has no adapter {str(folder)!r} for {name}; it has: {there}")
    executor = EngineExecutor(engine, tokenizer)
    kinds = [find(name) for name in wanted]
    return tuple(IntrinsicReflector(kind(executor, None, adapters.get(kind.name))) for kind in kinds)


@dataclass(frozen=True, slots=True)
class TokenReflector:
    """A `Reflector` of one group of reflection tokens, on the engine of the decoder, whoever wrote the answer.

    The state is laid out as in training, and the group is read where its token is due: one token a state.
    """

    prompting: Prompting  # codec, vocabulary and layout of the Self-RAG model
    labels: LabelSet = ISSUP  # `ISREL`, `ISSUP` or `ISUSE`
    passage_tokens: int = 256  # a passage's body is cut here
    name: str = ""  # what policies, weights and traces call it
    cost: ClassVar[Cost] = Cost.ONE_TOKEN  # on the decoder's own prefix

    def __post_init__(self) -> None:
        if self.labels not in (ISREL, ISSUP, ISUSE):
            raise UserError(f"{self.labels!r} is no critique; give ISREL, ISSUP or ISUSE")
        if not self.name:
            object.__setattr__(self, "name", f"token_{self.labels.role}")

    @property
    def role(self) -> Role:
        """Of the group."""
        return self.labels.role

    def reflect(self, states: Sequence[State]) -> Steps[list[Reflection]]:
        """One reflection a state: the question, its first passage and the response as one segment."""
        vocabulary = self.prompting.vocabulary
        prompts = [self._prompt(state) for state in states]
        results = yield [Generate(ids, 1, watch_ids=vocabulary.watch) for ids, _ in prompts]
        found = []
        for state, (_, site), result in zip(states, prompts, results, strict=True):
            if isinstance(result, Failed):
                note = Diagnostic(Code.FAILED, printable(result.reason))
                found.append(Reflection(state, (Finding(site, None),), diagnostics=(note,)))
                continue
            evidence = state.passages[0].id if state.passages else None
            judgment = judge(vocabulary, self.labels, result.watched[0], str(site), evidence)
            found.append(Reflection(state, (Finding(site, judgment),)))
        return found

    def _prompt(self, state: State) -> tuple[tuple[int, ...], Site]:
        """Ids up to where the token is due, and what is judged there."""
        question = state.last("user")
        if question is None:
            raise UserError(f"{self.name}: the conversation has no user turn")
        history = [Turn(message.role, message.content) for message in state.messages[:question]]
        ids = self.prompting.prompt(state.messages[question].content, history=history)
        vocabulary = self.prompting.vocabulary
        if state.passages:
            evidence = self.prompting.evidence(state.passages[0], self.passage_tokens)
            ids = (*ids, vocabulary.retrieve[0], *evidence.ids)
            if self.labels != ISREL:
                ids = (*ids, vocabulary.group(ISREL)[0])
        else:
            ids = (*ids, vocabulary.retrieve[1])
        if self.labels == ISREL:
            return ids, state.in_passage(Scope.PASSAGE, 0) if state.passages else _turn(state, question)
        last = len(state.messages) - 1
        text = state.messages[last].content if last > question else ""
        return (*ids, *self.prompting.codec.encode(text), *_supported(self.labels, vocabulary, state)), _turn(
            state, last
        )


@dataclass(frozen=True, slots=True)
class RelevanceScorer:
    """The model's own IsRel as a scorer for `retrieval.reranking`: the probability of `[Relevant]`.

    A passage costs a prefill and one token; those of all queries share the engine's batches.
    """

    prompting: Prompting  # of the Self-RAG model
    engine: Engine
    passage_tokens: int = 256  # a passage's body is cut here

    def __call__(self, queries: Sequence[str], passages: Sequence[Sequence[Passage]], /) -> list[list[float]]:
        """For each query a number from 0 to 1 for each of its passages.

        Raises:
            EngineError: the engine died or could not serve a passage; the message says why.
        """
        pairs = [(query, passage) for query, found in zip(queries, passages, strict=True) for passage in found]
        states = [State((Message("user", query),), (passage,)) for query, passage in pairs]
        reflector = TokenReflector(self.prompting, ISREL, self.passage_tokens)
        judged = iter(pump(self.engine, reflector.reflect(states)))
        return [[_relevance(next(judged)) for _ in found] for found in passages]


def _relevance(reflection: Reflection) -> float:
    judgment = reflection.findings[0].judgment
    if judgment is None:
        raise EngineError(f"IsRel of a passage could not be read: {reflection.diagnostics[0].message}")
    return judgment.probability("Relevant")


def _turn(state: State, index: int) -> Site:
    scope = Scope.RESPONSE if state.messages[index].role == "assistant" else Scope.QUERY
    return state.in_message(scope, index)


def _supported(labels: LabelSet, vocabulary: Vocabulary, state: State) -> tuple[int, ...]:
    """IsUse follows IsSup where there is evidence; the most favourable one, so that utility alone decides."""
    return (vocabulary.group(ISSUP)[0],) if labels == ISUSE and state.passages else ()
