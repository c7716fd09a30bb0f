"""`IntrinsicReflector` of an intrinsic, `FunctionReflector` of a Python function; and loading intrinsics."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from selfrag.engines.base import Engine
from selfrag.errors import UserError
from selfrag.intrinsics.capability import Capability
from selfrag.intrinsics.chat import DIALECT, TextCodec
from selfrag.intrinsics.contract import Code, Cost, Diagnostic, Finding, Reflection, Scope, State, Steps
from selfrag.intrinsics.execution.engine import EngineExecutor
from selfrag.intrinsics.library import Library, check_cards, find
from selfrag.loading import shipped_adapters
from selfrag.reflection.judgment import Judgment, Source
from selfrag.reflection.labels import LabelSet, Role

Context = Literal["segment", "answer"]


class IntrinsicReflector:
    """A `Reflector` of an intrinsic.

    Attributes:
        capability: the intrinsic on its executor.
        name: what policies, weights and traces call it.
        cost: its tier.
        context: what is judged of an answer while it is written: the new segment alone, or the segment with the
            answer before it in sight (places in earlier segments then do not count).
    """

    def __init__(
        self,
        capability: Capability[Any],
        *,
        name: str | None = None,
        cost: Cost | None = None,
        context: Context = "segment",
    ) -> None:
        """A reflector of an intrinsic.

        Args:
            capability: the intrinsic on its executor.
            name: the intrinsic's own name by default.
            cost: by default, labels of the default dialect cost one token, or a prefill where an adapter judges;
                everything else is written text.
            context: see the class.
        """
        self.capability = capability
        self.name = capability.name if name is None else name
        self.cost = _cost(capability) if cost is None else cost
        self.context: Context = context

    @property
    def role(self) -> Role:
        """Of the intrinsic's judgments."""
        return self.capability.role

    @property
    def executor(self) -> Any:
        """Where it runs."""
        return self.capability.executor

    def reflect(self, states: Sequence[State]) -> Steps[list[Reflection]]:
        """One reflection a state. Yields engine requests if the executor is over an engine; else asks and waits."""
        if not hasattr(self.capability.executor, "steps"):
            return self.run(states)
        return (yield from self.capability.steps(states))

    def run(self, states: Sequence[State]) -> list[Reflection]:
        """The same, with IO; on an executor over an engine, the engine must not be in use."""
        return self.capability.reflections(states)


def _cost(capability: Capability[Any]) -> Cost:
    if capability.codec.dialect != DIALECT or isinstance(capability.codec, TextCodec):
        return Cost.GENERATED
    return Cost.ONE_TOKEN if capability.adapter is None else Cost.PREFILL


Function = Callable[[Sequence[State]], Sequence[Sequence[float] | None]]
"""States in; for each a probability a label (they need not sum to 1), or None where there is nothing to say."""


class FunctionReflector:
    """A `Reflector` of a function, which is called beside the engine with whatever waits at the time.

    Attributes:
        name: what policies, weights and traces call it.
        labels: what is judged; its role is the reflector's.
        function: see `Function`.
        cost: its tier.
    """

    blocking = True

    def __init__(self, name: str, labels: LabelSet, function: Function, cost: Cost = Cost.PREFILL) -> None:
        self.name = name
        self.labels = labels
        self.function = function
        self.cost = cost

    @property
    def role(self) -> Role:
        """Of the labels."""
        return self.labels.role

    def reflect(self, states: Sequence[State]) -> Steps[list[Reflection]]:
        """One reflection a state; yields nothing."""
        return self.run(states)
        yield []  # a generator, as the protocol wants

    def run(self, states: Sequence[State]) -> list[Reflection]:
        """One reflection a state; what is no distribution is undefined, with why."""
        rows = list(self.function(states))
        if len(rows) != len(states):
            raise ValueError(f"{self.name} answered {len(rows)} of {len(states)} states")
        return [self._reflection(state, row) for state, row in zip(states, rows, strict=True)]

    def _reflection(self, state: State, row: Sequence[float] | None) -> Reflection:
        site = state.in_message(_scope(state), len(state.messages) - 1)
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


def _scope(state: State) -> Scope:
    return Scope.RESPONSE if state.messages[-1].role == "assistant" else Scope.QUERY


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
    library = Library(EngineExecutor(engine, tokenizer), adapters)
    return tuple(IntrinsicReflector(library[name]) for name in wanted)
