"""How long until the first segment of an answer is final, one question at a time? `first_segment.py --engine onnx`.

The time inside the engine, of the same requests, is taken in the same run. What is left is that of this library: the
decoder, the driver and the tokenizer. Passages are given, so nothing is searched.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from scripts.benchmarks.measure import Report
from scripts.benchmarks.workload import FORMS, Item, items_of
from scripts.command import command
from selfrag.decoding.beam import decode
from selfrag.engines import load_engine
from selfrag.loading import load_tokenizer, resolve_model
from selfrag.prompting import Prompting
from selfrag.reflection.requests import Generate
from selfrag.runtime import SegmentFinal, drive
from selfrag.runtime.sessions import Serving, Ticket, TicketResult


class TimedEngine:
    """An engine, and the seconds that it has worked."""

    def __init__(self, engine: Serving) -> None:
        self._engine = engine
        self.seconds = 0.0

    def submit(self, request: Generate) -> Ticket:
        """Queue a request."""
        start = time.perf_counter()
        ticket = self._engine.submit(request)
        self.seconds += time.perf_counter() - start
        return ticket

    def step(self) -> Sequence[TicketResult]:
        """Do some work."""
        start = time.perf_counter()
        results = self._engine.step()
        self.seconds += time.perf_counter() - start
        return results

    def abort(self, tickets: Iterable[Ticket]) -> None:
        """Forget requests."""
        self._engine.abort(tickets)


def time_first_segment(
    prompting: Prompting, engine: TimedEngine, item: Item
) -> tuple[float, float]:
    """Return the seconds until the first segment is final, and those of the engine among them."""
    policy = FORMS["long"].policy
    decoder = decode(item.instruction, prompting, policy, passages=item.passages)
    before, start = engine.seconds, time.perf_counter()
    for event in drive([decoder], engine, None):
        if isinstance(event, SegmentFinal):
            return time.perf_counter() - start, engine.seconds - before
    raise RuntimeError(f"{item.instruction!r} has no segment")


def medians(times: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Return medians of what `time_first_segment` gave, in seconds and as ratios."""
    totals, insides = np.array(times).T
    ratios = totals / insides
    return {
        "seconds": float(np.median(totals)),
        "engine seconds": float(np.median(insides)),
        "ratio": float(np.median(ratios)),
        "largest ratio": float(ratios.max()),
        "rest, seconds": float(np.median(totals - insides)),
    }


@command
def main(
    *,
    engine: list[str] = ["onnx"],  # noqa: B006 - of the command line alone
    model: str = "demo",
    dtype: str = "float32",
    data: Path | None = None,
    questions: int = 20,
    passages: int = 5,
    out: Path | None = None,
) -> None:
    """Print a line for each engine: medians over the questions.

    Args:
        engine: name of an engine; repeatable, and vllm comes last.
        model: checkpoint directory, hub name or `demo`.
        dtype: number format of the weights.
        data: rows with instruction and passages; else made from the demo corpus.
        questions: to answer.
        passages: of each question.
        out: JSON file with everything measured.
    """
    report = Report(out)
    path = resolve_model(model)
    prompting = Prompting.from_tokenizer(load_tokenizer(path))
    items = items_of(data, questions + 2, passages)
    for name in engine:
        loaded = load_engine(name, path, dtype=dtype)
        timed = TimedEngine(loaded)
        # in a thread of its own: vLLM pins the main thread to one core of a CPU
        with ThreadPoolExecutor(1) as thread:
            runs = thread.map(partial(time_first_segment, prompting, timed), items)
            times = list(runs)[2:]  # the first steps of an engine are slow
        loaded.close()
        report.add(engine=name, dtype=dtype, questions=len(times), **medians(times))
    report.print()


if __name__ == "__main__":
    main()
