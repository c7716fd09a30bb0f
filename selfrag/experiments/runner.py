"""Runs a system over files: every item once, streamed to disk, whatever fails on the way. Loads no model itself.

A killed run goes on where it was; an item that cannot be answered is recorded with its error and counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from selfrag.decoding.answer import Answer
from selfrag.decoding.driver import Answered, Broken, Serving, drive
from selfrag.decoding.tree import Decoder
from selfrag.experiments.items import Item
from selfrag.experiments.metrics.metric import Part
from selfrag.experiments.metrics.output import Output, output_of
from selfrag.experiments.runner_manifest import RunDirectory
from selfrag.experiments.runner_records import RecordFile, Spent
from selfrag.experiments.systems.system import System
from selfrag.experiments.tasks.reading import TaskFile
from selfrag.experiments.tasks.task import Task

MAX_LIVE = 64
"""Questions in flight: a kill loses at most the work on these."""


@dataclass(frozen=True, slots=True)
class Run:
    """One system over some files.

    Attributes:
        system: how items are answered.
        identity: what decides the records: name, system, model; goes into the manifest.
        folder: of the run.
        settings: how the files were read; goes into the manifest.
        retry_failed: run items again that failed before.
        traces: keep each answer's whole trace in its record.
    """

    system: System
    identity: Mapping[str, Any]
    folder: Path
    settings: Mapping[str, Any] = field(default_factory=dict)
    retry_failed: bool = False
    traces: bool = False


def run(
    job: Run,
    files: Sequence[TaskFile],
    engine: Callable[[], Serving],
    progress: Callable[[int], object] = lambda items: None,
) -> dict[str, dict[str, Any]]:
    """Run all items that are not recorded yet.

    Args:
        job: what to run.
        files: what to run it on.
        engine: gives the engine; called only if there is something to run.
        progress: called with the number of items that are done: at the start of each file, and after each item.

    Returns:
        Name of the file to items, failed, seconds and cached tokens.

    Raises:
        UserError: the folder holds another run, the disk is full, or the engine died; what was recorded is kept.
    """
    directory = RunDirectory(job.folder, {**job.identity, "system": job.system.as_dict(), "traces": job.traces})
    results = {}
    for file in files:
        directory.admit(file, job.settings)
        records = RecordFile(job.folder, file.name)
        if job.retry_failed:
            records.reopen()
        if records.finished:
            progress(len(file.items))
        else:
            _run_file(job, file, records, engine, progress)
        results[file.name] = records.finish([item.id for item in file.items])
        directory.result(file.name, results[file.name])
    return results


def _run_file(
    job: Run, file: TaskFile, records: RecordFile, engine: Callable[[], Serving], progress: Callable[[int], object]
) -> None:
    done = records.done
    pending = [item for item in file.items if item.id not in done]
    progress(len(file.items) - len(pending))
    if not pending:
        return
    serving = engine()
    before = time.perf_counter()
    for event in drive(_decoders(job.system, pending, file.task), serving, None, max_live=MAX_LIVE):
        if not isinstance(event, Answered | Broken):
            continue
        item, now = pending[event.index], time.perf_counter()
        if isinstance(event, Answered):
            record = answered(item, file.task, event.answer, job)
            spent = Spent(now - before, event.answer.usage.cached_tokens)
        else:
            record, spent = failed(item, file.task, str(event.error)), Spent(now - before)
        records.append(record, spent)
        before = now
        progress(1)


def _decoders(system: System, items: Sequence[Item], task: Task) -> Iterator[Decoder]:
    for item in items:
        yield system.decoder(item, task)


def answered(item: Item, task: Task, answer: Answer, job: Run) -> dict[str, Any]:
    """The record of an answer."""
    output = output_of(answer, cite_all=job.system.cites_all)
    record = {"id": item.id, **output.as_dict(), "error": None, "scores": scores(item, task, output)}
    return record | {"trace": answer.trace.as_dict()} if job.traces else record


def failed(item: Item, task: Task, reason: str) -> dict[str, Any]:
    """The record of an item that could not be answered; it counts as a wrong answer."""
    return {"id": item.id, "error": reason, "scores": scores(item, task, None)}


def scores(item: Item, task: Task, output: Output | None) -> dict[str, Part | None]:
    """Metric to numerator and denominator of this item."""
    return {metric.name: metric.part(item, output) for metric in task.metrics}
