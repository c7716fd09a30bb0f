"""Running requests on an engine to their end, for callers that need nothing but the results. Knows no decoder."""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from typing import TypeVar

from selfrag.decoding.requests import Failed, Generate, Generated
from selfrag.decoding.sessions import session
from selfrag.engines.base import Engine

T = TypeVar("T")


def serve(engine: Engine, requests: Sequence[Generate]) -> list[Generated | Failed]:
    """Results of `requests`, in their order; all share the engine's batches. Leaving early aborts what still runs.

    Raises:
        EngineError: the engine died.
    """
    bell = threading.Event()
    results: list[Generated | Failed | None] = [None] * len(requests)
    with session(engine, bell.set) as own:
        waiting = {own.submit(request): position for position, request in enumerate(requests)}
        while waiting:
            done = own.step()
            for ticket, result in done:
                results[waiting.pop(ticket)] = result
            if not done:
                bell.wait()
                bell.clear()
    return [result for result in results if result is not None]


def pump(engine: Engine, steps: Generator[list[Generate], list[Generated | Failed], T]) -> T:
    """Run a computation that yields batches of requests, and return what it returns."""
    try:
        batch = next(steps)
        while True:
            batch = steps.send(serve(engine, batch))
    except StopIteration as stop:
        found: T = stop.value
        return found
