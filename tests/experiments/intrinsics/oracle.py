"""An executor that knows the gold of some rows, and one that always says the first label. No model."""

from __future__ import annotations

import math
from collections.abc import Sequence

from selfrag.intrinsics.contract import Completion, Request
from selfrag.training.intrinsics.job import teachable
from selfrag.training.intrinsics.rows import Labelled, gold_of


class Oracle:
    """Answers requests about the rows it knows as a perfect model would; 0.9 of the probability on the gold."""

    def __init__(self, intrinsic: str, rows: Sequence[Labelled]) -> None:
        codec = teachable(intrinsic)
        self._known = {}
        for row in rows:
            request = codec.encode(row.state)
            self._known[row.state.messages, row.state.passages] = codec.teach(request, gold_of(row, request))

    def run(self, requests: Sequence[Request]) -> list[Completion]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Request) -> Completion:
        targets = self._known[request.state.messages, request.state.passages]
        scores = []
        for slot in request.slots:
            wanted = {target.text for target in targets if target.prefill == slot.prefill}
            shares = [0.9 / len(wanted) if one in wanted else 0.1 / len(slot.surfaces) for one in slot.surfaces]
            scores.append(tuple(math.log(share) for share in shares))
        return Completion("" if request.slots else targets[0].text, "stop", scores=tuple(scores))


class First:
    """Always the first surface; writes nothing that can be read."""

    def run(self, requests: Sequence[Request]) -> list[Completion]:
        return [
            Completion(
                "no JSON at all",
                "stop",
                scores=tuple(
                    tuple(math.log(0.9 if at == 0 else 0.01) for at in range(len(s.surfaces))) for s in r.slots
                ),
            )
            for r in requests
        ]


class Deaf:
    """Scores nothing."""

    def run(self, requests: Sequence[Request]) -> list[Completion]:
        return [Completion(scores=tuple(None for _ in request.slots)) for request in requests]
