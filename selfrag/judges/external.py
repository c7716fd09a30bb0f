"""Judges that run beside the engine: any Python function, a judge on another engine, and the base of both.

The driver asks them once for all that wait at the time, within a time limit.
"""

from __future__ import annotations

import math
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeAlias

from selfrag.common.errors import count_of
from selfrag.judges.sentences import role_site
from selfrag.reflection.findings import Code, Reflection
from selfrag.reflection.inputs import JudgeInput
from selfrag.reflection.judge import Cost, Judge, Scope, usual_scope
from selfrag.reflection.judgment import Judgment, JudgmentSource
from selfrag.reflection.labels import LabelSet
from selfrag.reflection.requests import (
    PATIENCE,
    External,
    ExternalResult,
    ExternalService,
    Steps,
    failure_of,
)
from selfrag.runtime import finish


class ServiceJudge(Judge):
    """A judge whose `serve` runs beside the engine, in one thread at a time. What it raises is undefined."""

    timeout = PATIENCE  # seconds for a batch

    def __init__(self) -> None:
        """Make the lock."""
        self._lock = threading.Lock()

    @abstractmethod
    def serve(self, inputs: Sequence[JudgeInput]) -> Sequence[Reflection]:
        """Return one reflection an input."""

    def judge(self, inputs: Sequence[JudgeInput]) -> Steps[list[Reflection]]:
        """Return one reflection an input; undefined where the service failed or took too long."""
        return (yield from ask_service(self._serve, inputs, self.name, self.timeout))

    def _serve(self, inputs: Sequence[JudgeInput]) -> Sequence[Reflection]:
        with self._lock:
            return self.serve(inputs)


def ask_service(
    service: ExternalService,
    inputs: Sequence[JudgeInput],
    name: str,
    timeout: float = PATIENCE,
) -> Steps[list[Reflection]]:
    """Return what a service says about each input; undefined, with the reason, where it failed or took too long."""
    results = yield [External(service, state, name, timeout) for state in inputs]
    reflections = []
    for state, result in zip(inputs, results, strict=True):
        if isinstance(result, ExternalResult) and isinstance(result.value, Reflection):
            reflections.append(result.value)
        else:
            reflections.append(Reflection.failed(state, failure_of(result)))
    return reflections


Function: TypeAlias = Callable[[Sequence[JudgeInput]], Sequence[Sequence[float] | None]]
"""Inputs in; for each a probability a label (they need not sum to 1), or None where there is nothing to say."""


class FunctionJudge(ServiceJudge):
    """A judge of a Python function.

    Example:
        >>> from selfrag.reflection.labels import ISSUP
        >>> doubt = FunctionJudge("doubt", ISSUP, lambda inputs: [[0.0, 0.0, 1.0] for _ in inputs])
        >>> str(doubt.role)
        'issup'
    """

    def __init__(
        self,
        name: str,
        labels: LabelSet,
        function: Function,
        cost: Cost = Cost.PREFILL,
        *,
        scope: Scope | None = None,
        timeout: float = PATIENCE,
    ) -> None:
        """Judge by a function.

        Args:
            name: what policies, weights and traces call it.
            labels: what is judged.
            function: see `Function`.
            cost: expensive judges see fewer candidates.
            scope: what it looks at; by default what judges of this role do.
            timeout: seconds for a batch.
        """
        super().__init__()
        self.name = name
        self.labels = labels
        self.function = function
        self.cost = cost
        self.timeout = timeout
        self.scope = usual_scope(labels) if scope is None else scope

    def serve(self, inputs: Sequence[JudgeInput]) -> Sequence[Reflection]:
        """Return one reflection an input. A value that is no distribution is undefined, and a diagnostic says why."""
        rows = list(self.function(inputs))
        if len(rows) != len(inputs):
            raise ValueError(
                f"{self.name} answered {len(rows)} of {count_of(len(inputs), 'inputs')}"
            )
        return [
            as_reflection(state, self.labels, row)
            for state, row in zip(inputs, rows, strict=True)
        ]


def as_reflection(
    state: JudgeInput, labels: LabelSet, probabilities: Sequence[float] | None
) -> Reflection:
    """Return one judgment at `role_site`; undefined for None, or for what is no distribution."""
    if probabilities is None:
        return Reflection(state)
    values = [float(value) for value in probabilities]
    total = (
        math.fsum(values)
        if all(math.isfinite(value) and value >= 0 for value in values)
        else 0.0
    )
    if len(values) != len(labels) or total <= 0:
        reason = f"{count_of(len(values), 'numbers')} that are no distribution over {len(labels)}"
        return Reflection.failed(state, reason, Code.INVALID)
    distribution = tuple(value / total for value in values)
    site = role_site(labels.role, state)
    source = JudgmentSource.JUDGE
    return Reflection.of(
        state, site, Judgment(labels, str(site), distribution, 1.0, source)
    )


class Late(Judge):
    """A judge whose model is loaded when it is first asked: judgments that are on disk need none."""

    cost = Cost.PREFILL

    def __init__(
        self,
        name: str,
        labels: LabelSet,
        load: Callable[[], Judge],
        identity: Mapping[str, Any],
    ) -> None:
        """Judge as what `load` gives, which `identity` tells from others."""
        self.name = name
        self.labels = labels
        self.load = load
        self.scope = usual_scope(labels)
        self._identity = dict(identity)

    @cached_property
    def inner(self) -> Judge:
        """Return the loaded judge."""
        return self.load()

    @cached_property
    def engine(self) -> Any:
        """Engine of the loaded judge."""
        return self.inner.engine

    def identity(self) -> Mapping[str, Any]:
        """Return what is known without the model."""
        return self._identity

    def judge(self, inputs: Sequence[JudgeInput]) -> Steps[list[Reflection]]:
        """Return one reflection an input."""
        return (yield from self.inner.judge(inputs))


class WrappedJudge(Judge):
    """A judge that asks another one in its own way; name, labels, cost, scope and engine are those of the other."""

    def __init__(self, inner: Judge) -> None:
        """Wrap a judge."""
        self.inner = inner
        self.name = inner.name
        self.labels = inner.labels
        self.cost = inner.cost
        self.scope = inner.scope
        self.engine = inner.engine


class _Elsewhere(WrappedJudge):
    """A judge whose requests are for another engine than that of the decoder.

    Called as a service, it asks the inner judge on that engine.
    """

    def __init__(self, inner: Judge) -> None:
        super().__init__(inner)
        self.engine = None

    def __eq__(self, judge: object) -> bool:
        return isinstance(judge, _Elsewhere) and judge.inner is self.inner

    def __hash__(self) -> int:
        return id(self.inner)

    def __call__(self, inputs: Sequence[JudgeInput]) -> Sequence[Reflection]:
        return finish(self.inner.judge(inputs), self.inner.engine)

    def judge(self, inputs: Sequence[JudgeInput]) -> Steps[list[Reflection]]:
        """Return one reflection an input."""
        return (yield from ask_service(self, inputs, self.name))


def beside(judges: Iterable[Judge], engine: Any) -> tuple[Judge, ...]:
    """Return judges for a decoder that runs on `engine`: those of another engine are asked beside it."""
    placed = []
    for judge in judges:
        on_engine = judge.engine is None or judge.engine is engine
        placed.append(judge if on_engine else _Elsewhere(judge))
    return tuple(placed)
