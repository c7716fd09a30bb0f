"""`Entailment`: does a premise entail a hypothesis? What every judge looks like. Pure; knows no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

Pair: TypeAlias = tuple[str, str]
"""Premise and hypothesis."""

Verdicts: TypeAlias = list[bool | None]


class Entailment(Protocol):
    """A judge. What it is given is untrusted, and nothing that a model writes makes it raise."""

    @property
    def name(self) -> str:
        """What reports call it, such as `t5_xxl_true_nli_mixture`."""
        ...

    def identity(self) -> Mapping[str, Any]:
        """Everything that decides its verdicts, as plain values; goes into manifests. Holds no secret."""
        ...

    def entails(self, pairs: Sequence[Pair]) -> Verdicts:
        """One verdict a pair, in order; None where there was none.

        Raises:
            EngineError: the model or server is gone.
        """
        ...
