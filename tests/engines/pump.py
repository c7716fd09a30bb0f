"""Drive an engine until given requests are answered: what tests of engines share."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from selfrag.decoding.requests import Failed, Generate, Generated
from selfrag.engines.base import Engine


def serve(engine: Engine, requests: Sequence[Generate], *, seconds: float = 120.0) -> list[Generated | Failed]:
    """Results of `requests`, in their order, all submitted at once."""
    tickets = [engine.submit(request) for request in requests]
    results: dict[int, Generated | Failed] = {}
    deadline = time.monotonic() + seconds
    while missing := set(tickets) - set(results):
        assert time.monotonic() < deadline, f"{len(missing)} requests unanswered after {seconds} s"
        results.update(engine.step())
    return [results[ticket] for ticket in tickets]


def generated(engine: Engine, request: Generate) -> Generated:
    """The result of one request that must succeed."""
    [result] = serve(engine, [request])
    assert isinstance(result, Generated), result
    return result


def prompt(length: int, start: int = 0) -> tuple[int, ...]:
    """Ordinary token ids; prompts of different `start` share no prefix."""
    return tuple(random.Random(start).choices(range(3, 250), k=length))
