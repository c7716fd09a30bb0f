"""An executor whose model is a function of the request, for tests of what lies above the model."""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from selfrag.judges.wire import Completion, Executor
from selfrag.reflection.requests import Failed


@dataclass
class Answering(Executor):
    """Records every request; on an engine of its own."""

    answer: Callable
    requests: list = field(default_factory=list)
    engine: Any = None
    activated: Collection = ()

    def steps(self, requests):
        self.requests += requests
        return [self.answer(request) for request in requests]
        yield []


def judging(weigh, remainder=0.0):
    """Every slot gets the probabilities that `weigh` has for its surfaces by name, `remainder` for each other one."""

    def answer(request):
        scores = []
        for slot in request.slots:
            known = weigh(request, slot)
            row = [known.get(surface.strip(), remainder) for surface in slot.surfaces]
            scores.append(tuple(math.log(p) if p > 0 else -math.inf for p in row))
        return Completion(scores=tuple(scores))

    return Answering(answer)


def scoring(**probabilities):
    """Every slot gets these probabilities for the surfaces of these names; others get nothing."""
    return judging(lambda *_: probabilities)


def writing(text):
    """Every request gets this text."""
    return Answering(lambda request: Completion(text, "stop"))


def failing(reason):
    """No request is served."""
    return Answering(lambda request: Failed(reason))


def taught(request, targets, confidence=0.9):
    """What a model writes that has learned these targets perfectly, with some doubt."""
    scores = []
    for slot in request.slots:
        weights = {t.text: t.weight for t in targets if t.prefill == slot.prefill}
        rest = (1 - confidence * sum(weights.values())) / len(slot.surfaces)
        row = [weights.get(s, 0.0) * confidence + rest for s in slot.surfaces]
        scores.append(tuple(map(math.log, row)))
    text = "" if request.slots or not targets else targets[0].text
    return Completion(text, "stop", scores=tuple(scores))
