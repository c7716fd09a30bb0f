"""An executor whose model is a function of the request, for tests of what lies above the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from selfrag.judges.wire import Completion, Executor, ModelRequest, Slot, Target
from selfrag.reflection.requests import Failed, Steps


@dataclass
class Answering(Executor):
    """Records every request; on an engine of its own."""

    answer: Callable[[ModelRequest], Completion | Failed]
    requests: list[ModelRequest] = field(default_factory=list)
    engine: Any = None
    activated: Collection[str] = ()

    def steps(
        self, requests: Sequence[ModelRequest]
    ) -> Steps[list[Completion | Failed]]:
        self.requests += requests
        return [self.answer(request) for request in requests]
        yield []


def judging(
    weigh: Callable[[ModelRequest, Slot], Mapping[str, float]], remainder: float = 0.0
) -> Answering:
    """Every slot gets the probabilities that `weigh` has for its surfaces by name, `remainder` for each other one."""

    def answer(request: ModelRequest) -> Completion:
        rows = [
            [weigh(request, slot).get(s.strip(), remainder) for s in slot.surfaces]
            for slot in request.slots
        ]
        return Completion(
            scores=tuple(
                tuple(math.log(p) if p > 0 else -math.inf for p in row) for row in rows
            )
        )

    return Answering(answer)


def scoring(**probabilities: float) -> Answering:
    """Every slot gets these probabilities for the surfaces of these names; others get nothing."""
    return judging(lambda *_: probabilities)


def writing(text: str) -> Answering:
    """Every request gets this text."""
    return Answering(lambda request: Completion(text, "stop"))


def failing(reason: str) -> Answering:
    """No request is served."""
    return Answering(lambda request: Failed(reason))


def taught(
    request: ModelRequest, targets: Sequence[Target], confidence: float = 0.9
) -> Completion:
    """What a model writes that has learned these targets perfectly, with some doubt."""
    scores = []
    for slot in request.slots:
        weights = {t.text: t.weight for t in targets if t.prefill == slot.prefill}
        remainder = (1 - confidence * sum(weights.values())) / len(slot.surfaces)
        scores.append(
            tuple(
                math.log(weights.get(s, 0.0) * confidence + remainder)
                for s in slot.surfaces
            )
        )
    texts = [t.text for t in targets if not request.slots]
    return Completion(texts[0] if texts else "", "stop", scores=tuple(scores))
