"""Runs systems over files: every item once, streamed to disk, whatever fails on the way. Loads no model itself.

A killed run goes on where it was; an item that cannot be answered is recorded with its error and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retrieval.lock import locked_directory
from selfrag.decoding.sessions import Serving
from selfrag.evaluation.items import Item
from selfrag.evaluation.metrics.output import Output
from selfrag.evaluation.metrics.registry import Part
from selfrag.evaluation.runner_answers import Execute, Finished, Work, answer_here
from selfrag.evaluation.runner_manifest import RunDirectory
from selfrag.evaluation.runner_records import RecordFile, Spent
from selfrag.evaluation.systems.system import System
from selfrag.evaluation.tasks.reading import TaskFile
from selfrag.evaluation.tasks.task import Task


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
        special: systems of single files by the file's name, where a published task says how it is decoded.
    """

    system: System
    identity: Mapping[str, Any]
    folder: Path
    settings: Mapping[str, Any] = field(default_factory=dict)
    retry_failed: bool = False
    traces: bool = False
    special: Mapping[str, System] = field(default_factory=dict)

    def settings_of(self, file: TaskFile) -> dict[str, Any]:
        """What decides the records of a file beside its data and its task."""
        own = {"system": self.special[file.name].as_dict()} if file.name in self.special else {}
        return {**self.settings, **own}


def run(
    job: Run,
    files: Sequence[TaskFile],
    engine: Callable[[], Serving],
    progress: Callable[[int], object] = lambda items: None,
    already: Callable[[int], object] | None = None,
) -> dict[str, dict[str, Any]]:
    """Run all items of one system that are not recorded yet, on one engine.

    Args:
        job: what to run.
        files: what to run it on.
        engine: gives the engine; called only if there is something to run.
        progress: called with the number of items that are done: at the start with those of each file, then with 1.
        already: called in its place at the start, for a bar whose ETA is not to go by what an earlier run did.

    Returns:
        Name of the file to items, failed, seconds and cached tokens.

    Raises:
        UserError: the folder holds another run or is being written, the disk is full, or the engine died; what was
            recorded is kept.
    """
    return run_all([job], files, answer_here(engine), progress, already)[0]


def run_all(
    jobs: Sequence[Run],
    files: Sequence[TaskFile],
    execute: Execute,
    progress: Callable[[int], object] = lambda items: None,
    already: Callable[[int], object] | None = None,
) -> list[dict[str, dict[str, Any]]]:
    """Run several systems, all of whose open items are given to `execute` at once.

    Args:
        jobs: what to run, each with a folder of its own.
        files: what to run them on.
        execute: `answer_here(..)`, or `selfrag.evaluation.runner_cluster.answer_on_ray(..)`.
        progress: as in `run`.
        already: as in `run`.

    Returns:
        For each job, as `run` does.

    Raises:
        UserError: as `run`.
    """
    with ExitStack() as held:
        open_files: list[_Open] = []
        results: list[dict[str, dict[str, Any]]] = [{} for _ in jobs]
        for number, job in enumerate(jobs):
            held.enter_context(locked_directory(job.folder))
            directory = RunDirectory(job.folder, {**job.identity, "system": job.system.as_dict(), "traces": job.traces})
            for file in files:
                directory.admit(file, job.settings_of(file))
                results[number][file.name] = {}  # in the order of the files, whichever is finished first
                open_files.append(_Open(job, file, directory, results[number]))
                held.callback(open_files[-1].close)
        waiting = []
        for one in open_files:
            (already or progress)(one.start())
            if one.pending:
                waiting.append(one)
        for number, finished in execute([one.work for one in waiting]) if waiting else ():
            waiting[number].record(finished)
            progress(1)
    return results


class _Open:
    """One file of one run, with what is still to be answered."""

    def __init__(self, job: Run, file: TaskFile, directory: RunDirectory, results: dict[str, dict[str, Any]]) -> None:
        self.pending: list[Item] = []
        self._job, self._file, self._directory, self._results = job, file, directory, results
        self._records = RecordFile(job.folder, file.name)
        self._left = 0

    @property
    def work(self) -> Work:
        """What is left to do."""
        system = self._job.special.get(self._file.name, self._job.system)
        return Work(system, self._file.task, tuple(self.pending), self._job.traces)

    def close(self) -> None:
        """Free the log."""
        self._records.close()

    def start(self) -> int:
        """Look what is done; the number of items that are."""
        if self._job.retry_failed:
            self._records.reopen()
        done = self._records.done
        self.pending = [item for item in self._file.items if item.id not in done]
        self._left = len(self.pending)
        if not self.pending:
            self._finish()
        return len(self._file.items) - len(self.pending)

    def record(self, finished: Finished) -> None:
        """Write down one item, and the whole file with the last one."""
        item = self.pending[finished.index]
        spent = Spent(finished.seconds, finished.cached_tokens)
        self._records.append(record_of(item, self._file.task, finished), spent)
        self._left -= 1
        if self._left == 0:
            self._finish()

    def _finish(self) -> None:
        found = self._records.finish([item.id for item in self._file.items])
        self._directory.result(self._file.name, found)
        self._results[self._file.name] = found


def record_of(item: Item, task: Task, finished: Finished) -> dict[str, Any]:
    """The record of an item; one that failed counts as a wrong answer."""
    if finished.output is None:
        return {"id": item.id, "error": finished.error, "scores": scores(item, task, None)}
    record = {"id": item.id, **finished.output.as_dict(), "error": None, "scores": scores(item, task, finished.output)}
    if finished.partial is not None:
        record["partial"] = finished.partial
    return record | {"trace": finished.trace} if finished.trace is not None else record


def scores(item: Item, task: Task, output: Output | None) -> dict[str, Part | None]:
    """Metric to numerator and denominator of this item."""
    return {metric.name: metric.part(item, output) for metric in task.metrics}
