"""The hallucination intrinsic as a judge of entailment: a text follows if each sentence of it is faithful."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from retrieval.passage import Passage
from selfrag.evaluation.metrics.entailment.protocol import Pair, Verdicts
from selfrag.intrinsics.hallucination_detection import HallucinationDetection, HallucinationResult
from selfrag.intrinsics.state import Message, State

FAITHFUL = 1.0
"""Value of the label that means full support."""


@dataclass(frozen=True)
class FaithfulEntailment:
    """An intrinsic on its executor.

    Attributes:
        intrinsic: with or without an adapter.
        model: the model it runs on, for reports.
        files: checksums of model and adapter, where they are known.
    """

    intrinsic: HallucinationDetection
    model: str
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Intrinsic and model."""
        return f"{self.intrinsic.name} on {self.model.rstrip('/').rpartition('/')[2]}"

    def identity(self) -> Mapping[str, Any]:
        """Kind, model, adapter and dialect."""
        return {
            "kind": "intrinsic",
            "model": self.model,
            "files": dict(self.files),
            "adapter": self.intrinsic.adapter,
            "dialect": self.intrinsic.codec.dialect,
        }

    def entails(self, pairs: Sequence[Pair]) -> Verdicts:
        """Sentences that claim nothing do not count; None where no sentence or not every one could be judged."""
        states = [State((Message("assistant", said),), (Passage("premise", known, ""),)) for known, said in pairs]
        return [_all(self.intrinsic.result(found)) for found in self.intrinsic.reflections(states)]


def _all(result: HallucinationResult) -> bool | None:
    claiming = [one for one in result.sentences if one.judgment is None or one.judgment.defined]
    degrees = [one.degree for one in claiming]
    if not degrees or None in degrees:
        return None
    return all(degree == FAITHFUL for degree in degrees)
