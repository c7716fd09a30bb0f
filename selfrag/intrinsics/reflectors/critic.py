"""Reflectors as the decoder's critics: moments to states, reflections to verdicts. Sans-IO.

A reflector on the decoder's own engine runs among its requests; any other one is a service beside the engine, asked
once for all questions that wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from selfrag.decoding.answer import joint
from selfrag.decoding.batcher import Service
from selfrag.decoding.reflectors import Asking, Critic, Moment, Verdict
from selfrag.decoding.requests import Consult, Consulted, Failed, Generated, Request, Result
from selfrag.errors import UserError
from selfrag.intrinsics.contract import Code, Diagnostic, Message, Reflection, Reflector, State, Steps
from selfrag.reflection.labels import Role
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

    @property
    def name(self) -> str:
        """The reflector's."""
        return self.reflector.name

    @property
    def cost(self) -> int:
        """The reflector's tier."""
        return int(self.reflector.cost)

    @property
    def of_passages(self) -> bool:
        """Relevance and answerability do not depend on what is written."""
        return self.reflector.role in OF_PASSAGES

    @property
    def needs_evidence(self) -> bool:
        """Support, relevance, citations and answerability are about passages."""
        return self.reflector.role in NEED_EVIDENCE

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
        UserError: its judgments are none of what is written or of passages, such as those of a query rewrite.
    """
    if reflector.role not in JUDGING:
        raise UserError(f"{reflector.name} judges {reflector.role}, which neither ranks nor gates an answer")
    return ReflectorCritic(reflector, is_beside(reflector, engine))


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
    """The places that are defined; citations count by the length of the sentence, everything else alike."""
    last = len(reflection.state.messages) - 1
    places, shares = [], []
    for finding in reflection.findings:
        earlier = finding.site.message == last and finding.site.end <= start
        if finding.judgment is None or not finding.judgment.defined or earlier:
            continue
        places.append(finding.judgment)
        shares.append(float(len(finding.site.text)) if role is Role.CITATION else 1.0)
    return Verdict(tuple(places), tuple(max(share, 1.0) for share in shares))
