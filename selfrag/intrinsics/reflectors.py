"""Reflectors judge what is being written: an intrinsic, a Self-RAG model's reflection tokens, or any Python function.

`critic` hands one to the decoder (`selfrag.decoding.reflectors`). On the decoder's own engine it runs among its
requests; anywhere else it is a service beside the engine, asked once for all questions that wait.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, cast

from selfrag.common.errors import UserError
from selfrag.decoding.answer import joint
from selfrag.decoding.reflectors import Asking, Critic, Moment, Verdict
from selfrag.decoding.requests import Consult, Consulted, Failed, Result
from selfrag.engines.base import Engine
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
    State,
    Steps,
)
from selfrag.intrinsics.execution.engine import EngineExecutor
from selfrag.intrinsics.execution.tokens import TraceCertainty
from selfrag.intrinsics.model_library import EXECUTIONS, Library, by_default, prompting_of, split_name
from selfrag.intrinsics.sentences import judged_turn
from selfrag.loading import shipped_adapters, shipped_weights
from selfrag.prompting import Prompting
from selfrag.reflection.judgment import Judgment, Source
from selfrag.reflection.labels import LabelSet, Role
from selfrag.runtime.driver import Service

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
        """One verdict a moment; refuses a reflector that judges finished answers only."""
        if isinstance(getattr(getattr(self.reflector, "capability", None), "method", None), TraceCertainty):
            raise UserError(
                f"{self.name} reads the certainty of a finished answer off its trace, which is not there while it is"
                " written; ask for uncertainty.prompt"
            )
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
    found = [consulted(result, Reflection) for result in results]
    pairs = zip(states, found, strict=True)
    return [Reflection.failed(state, one.reason) if isinstance(one, Failed) else one for state, one in pairs]


def among(steps: Steps[T]) -> Asking[T]:
    """Engine requests of an executor among those of a decoder, which answers generations alone by generations."""
    return cast("Asking[T]", steps)


def is_beside(reflector: Reflector, engine: Any) -> bool:
    """Whether a reflector runs on something else than `engine`: a function, another engine, a server."""
    executor = getattr(reflector, "executor", None)
    if executor is None:
        return bool(getattr(reflector, "blocking", False))
    return getattr(executor, "engine", None) is not engine


def critic(reflector: Reflector, engine: Any) -> Critic:
    """A critic for a decoder that runs on `engine`; refuses what judges neither text nor passages."""
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


def consulted(result: Result, kind: type[T]) -> T | Failed:
    """The value of this kind that a service gave, or why there is none."""
    if isinstance(result, Consulted) and isinstance(result.value, kind):
        return result.value
    return result if isinstance(result, Failed) else Failed(f"got {type(result).__name__}")


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
        arguments: Mapping[str, str] | None = None,
    ) -> None:
        """A reflector of an intrinsic.

        Args:
            capability: the intrinsic on its executor.
            name: what policies, weights and traces call it; the intrinsic's own name by default.
            cost: by default that of the execution. Labels of the default dialect cost one token, or a prefill where an
                adapter judges; everything else is written text.
            context: what is judged of an answer while it is written: the new segment alone, or the segment with the
                answer before it in sight (places in earlier segments then do not count).
            arguments: what the intrinsic asks for, such as `requirement`, for every state.

        Raises:
            UserError: an argument that the intrinsic needs is missing.
        """
        self.arguments = dict(arguments or {})
        if missing := [one for one in capability.needs.arguments if not self.arguments.get(one)]:
            raise UserError(f"{capability.name} needs {missing[0]!r}; give it to IntrinsicReflector by arguments=")
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
        return (yield from self.capability.steps([self._filled(state) for state in states]))

    def run(self, states: Sequence[State]) -> list[Reflection]:
        """The same, with IO; on an executor over an engine, the engine must not be in use."""
        return self.capability.reflections([self._filled(state) for state in states])

    def _filled(self, state: State) -> State:
        if not self.arguments:
            return state
        return self.capability.filled(replace(state, arguments=self.arguments))


def _cost(capability: Capability[Any]) -> Cost:
    if capability.method is not None:
        return capability.method.cost
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
        site = judged_turn(state)
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
"""Names of intrinsics such as `answerability` or `answerability.overlap`, or intrinsics with what judges each: the name
of an execution, the folder of an adapter, or None for the base model with a prompt."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """One of the intrinsics that a caller named."""

    name: str  # as it was named, with the execution if there was one
    intrinsic: str
    execution: str | None  # None for the default
    folder: str | None  # of an adapter, or its name on a server


def _wanted(intrinsics: Named) -> list[_Wanted]:
    if isinstance(intrinsics, str):
        raise UserError(f"intrinsics={intrinsics!r}: give a list of names")
    found = []
    for given in intrinsics:
        name, execution = split_name(given)
        folder = None
        if isinstance(intrinsics, Mapping):
            value = intrinsics[given]
            execution = "prompt" if value is None else str(value) if value in EXECUTIONS else "adapter"
            folder = str(value) if execution == "adapter" and value != "adapter" else None
        found.append(_Wanted(given if "." in given else name, name, execution, folder))
    return found


def adapters_of(intrinsics: Named, model: str | Path) -> dict[str, str]:
    """Folders of the adapters to load on a model with reflection tokens, by intrinsic, as far as their cards fit.

    A registered model brings those that it has; they are loaded where an adapter judges.
    """
    wanted, shipped, learned = _wanted(intrinsics), shipped_adapters(model), shipped_weights(model)
    folders = {one.intrinsic: one.folder for one in wanted if one.folder is not None}
    for one in wanted:
        execution = one.execution or by_default(
            one.intrinsic, tokens=True, adapter=True, learned=one.intrinsic in learned
        )
        if execution == "adapter" and one.intrinsic in shipped:
            folders.setdefault(one.intrinsic, str(shipped[one.intrinsic]))
    check_cards(folders, None)
    return folders


def on_engine(
    engine: Engine, tokenizer: Any, intrinsics: Named, model: str | Path = "", prompting: Prompting | None = None
) -> tuple[IntrinsicReflector, ...]:
    """Reflectors on an engine, each by the execution that was named, or by the model's default.

    The engine has the adapters that `adapters_of` named. A registered `model` may bring weights of tokens and words.
    """
    loaded, wanted = engine.limits.adapters, _wanted(intrinsics)
    adapters: dict[str, str] = {}
    for one in wanted:
        adapter = next((name for name in (one.intrinsic, one.folder) if name in loaded), None)
        if adapter is not None:
            if adapters.setdefault(one.intrinsic, adapter) != adapter:
                raise UserError(f"{one.intrinsic} has two adapters; name one of them")
        elif one.folder is not None:
            there = ", ".join(sorted(loaded)) or "none"
            raise UserError(f"the engine has no adapter {one.folder!r} for {one.intrinsic}; it has: {there}")
    prompting = prompting_of(tokenizer) if prompting is None else prompting
    executor = EngineExecutor(engine, tokenizer)
    library = Library(executor, adapters, prompting=prompting, weights=shipped_weights(model))
    return tuple(IntrinsicReflector(library.get(find(one.intrinsic), one.execution), name=one.name) for one in wanted)
