"""How items get answered: here, by one engine. Scores and writes nothing; `runner_cluster` does it elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from selfrag.decoding.driver import Answered, Broken, drive
from selfrag.decoding.sessions import Serving
from selfrag.evaluation.items import Item
from selfrag.evaluation.metrics.output import Output, output_of
from selfrag.evaluation.systems.system import System
from selfrag.evaluation.tasks.task import Task

MAX_LIVE = 64
"""Questions in flight: a kill loses at most the work on these."""


@dataclass(frozen=True, slots=True)
class Work:
    """Items that one system has to answer.

    Attributes:
        system: how they are answered.
        task: what they are.
        items: not answered yet.
        traces: keep each answer's whole trace.
    """

    system: System
    task: Task
    items: tuple[Item, ...]
    traces: bool = False


@dataclass(frozen=True, slots=True)
class Finished:
    """One item of a `Work`, answered or given up.

    Attributes:
        index: of the item in its work.
        output: None if it failed.
        error: one line on why it failed, else None.
        seconds: wall time since the item before, where it was answered; loading a model does not count.
        cached_tokens: prompt tokens that were not computed anew.
        trace: plain values, if it was to be kept.
        partial: why the answer ends early, else None; see `Answer.partial`.
    """

    index: int
    output: Output | None
    error: str | None = None
    seconds: float = 0.0
    cached_tokens: int = 0
    trace: dict[str, Any] | None = None
    partial: str | None = None


Execute: TypeAlias = Callable[[Sequence[Work]], Iterator[tuple[int, Finished]]]
"""Answers works and yields each item with the number of its work, in any order, the moment it is done.

Raises `UserError` where nothing can go on, such as a dead engine; what was yielded before is not lost.
"""


def answer_here(engine: Callable[[], Serving]) -> Execute:
    """One work after the other on one engine, which is called for only if there is something to answer."""

    def execute(works: Sequence[Work]) -> Iterator[tuple[int, Finished]]:
        for number, work in enumerate(works):
            for finished in answer(work, engine()):
                yield number, finished

    return execute


def answer(work: Work, serving: Serving) -> Iterator[Finished]:
    """The items of one work, as they finish; all live questions share the engine's batches.

    Raises:
        EngineError: the engine died.
    """
    before = time.perf_counter()
    decoders = (work.system.decoder(item, work.task) for item in work.items)
    for event in drive(decoders, serving, None, max_live=MAX_LIVE):
        now = time.perf_counter()
        if isinstance(event, Broken):
            yield Finished(event.index, None, str(event.error), now - before)
            before = now
        elif isinstance(event, Answered):
            found = event.answer
            output = output_of(found, cite_all=work.system.cites_all, marked=work.task.marked)
            trace = found.trace.as_dict() if work.traces else None
            yield Finished(event.index, output, None, now - before, found.usage.cached_tokens, trace, found.partial)
            before = now
