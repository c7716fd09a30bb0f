"""A prompted judge: any chat model, in process or behind an endpoint, asked whether a text follows.

The question has two answers, scored as labels where the model's probabilities can be had. Premise and hypothesis are
laid out so that neither can pose as the question (`selfrag.intrinsics.chat.transcript`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retrieval.passage import Passage
from selfrag.evaluation.metrics.entailment.protocol import Pair, Verdicts
from selfrag.intrinsics.chat.label_codec import LabelCodec, judged_turn
from selfrag.intrinsics.contract import Completion, Executor
from selfrag.intrinsics.state import Message, State
from selfrag.reflection.labels import Label, LabelSet, Role

ENTAILMENT = LabelSet(Role.SUPPORT, (Label("entailed", 1.0, "yes"), Label("not entailed", 0.0, "no")))
TASK = (
    "Does everything that the assistant says follow from the documents alone? Answer yes if the documents state or"
    " imply all of it, and no if a part of it is missing from them or contradicts them."
)
CODEC = LabelCodec("entailment", ENTAILMENT, lambda state: TASK, judged_turn)


@dataclass(frozen=True)
class JudgeEntailment:
    """A judge on a model.

    Attributes:
        executor: runs the model.
        name: what reports call it.
        about: what decides the model's answers, for manifests: model, engine or address.
        threshold: least probability of `yes` among the two answers.
        min_coverage: least probability on the two answers together; below, there is no verdict.
    """

    executor: Executor
    name: str
    about: Mapping[str, Any]
    threshold: float = 0.5
    min_coverage: float = 0.1

    def identity(self) -> Mapping[str, Any]:
        """Kind, model, question and limits."""
        limits = {"threshold": self.threshold, "min_coverage": self.min_coverage}
        return {"kind": "judge", **self.about, "task": TASK, **limits}

    def entails(self, pairs: Sequence[Pair]) -> Verdicts:
        """None where the request failed, or what came back was neither answer."""
        requests = [CODEC.encode(_state(*pair)) for pair in pairs]
        verdicts: Verdicts = []
        for request, result in zip(requests, self.executor.run(requests), strict=True):
            judgment = CODEC.decode(request, result).findings[0].judgment if isinstance(result, Completion) else None
            known = judgment is not None and judgment.coverage >= self.min_coverage
            verdicts.append(judgment.distribution[0] >= self.threshold if judgment is not None and known else None)
        return verdicts


def _state(premise: str, hypothesis: str) -> State:
    return State((Message("assistant", hypothesis),), (Passage("premise", premise, ""),))
