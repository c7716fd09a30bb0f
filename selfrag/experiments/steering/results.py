"""The outcomes of a study as runs that can be compared: one system a setting. Scores answers; draws nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from selfrag.evaluation.comparison import Comparison, FileResult, SystemRun, Table, compare
from selfrag.evaluation.metrics.registry import Metric, Part
from selfrag.evaluation.runner import scores
from selfrag.evaluation.task_files import TaskFile
from selfrag.experiments.steering.study import FileStudy

SHOWN = ("citation_precision", "retrieval_rate", "words", "from_memory")
"""Columns of a study's tables beside the headline; the CSV file has all."""

JUDGED = ("citation_precision_nli", "mauve")
"""Beginnings of the names of columns that a judge filled."""


def measured_by(file: TaskFile, metrics: Sequence[Metric]) -> TaskFile:
    """The file with further metrics of written answers; those that its task has already are not repeated."""
    if file.items[0].options:
        return file
    known = {metric.name for metric in file.task.metrics}
    added = tuple(metric for metric in metrics if metric.name not in known)
    return replace(file, task=replace(file.task, metrics=(*file.task.metrics, *added)))


def system_runs(studies: Sequence[FileStudy]) -> list[SystemRun]:
    """One run a setting, over all files."""
    names = [setting.name for setting in studies[0].settings]
    return [
        SystemRun(name, studies[0].decodes[0].folder, {one.file.name: _result(one, name) for one in studies})
        for name in names
    ]


def comparison(studies: Sequence[FileStudy], runs: Sequence[SystemRun], seed: int = 0) -> Comparison:
    """All settings against the base, paired; with a note where answers are approximate.

    Args:
        studies: one a file.
        runs: the same outcomes as runs, one a setting.
        seed: of the intervals.
    """
    found = compare(runs, against=studies[0].settings[0].name, seed=seed)
    noted = tuple(_noted(table, one) for table, one in zip(found.tables, studies, strict=True))
    return replace(found, tables=noted)


def brief(found: Comparison) -> Comparison:
    """The same with the columns that a page has room for, and without seconds, which no setting took alone."""
    tables = tuple(_brief(table) for table in found.tables)
    return replace(found, tables=tables, average=None if found.average is None else _brief(found.average))


def _result(one: FileStudy, name: str) -> FileResult:
    task, items = one.file.task, one.file.items
    rows = [scores(item, task, found.output) for item, found in zip(items, one.outcomes[name], strict=True)]
    metrics = tuple(metric.name for metric in task.metrics)
    columns: dict[str, tuple[Part | None, ...]] = {metric: tuple(row[metric] for row in rows) for metric in metrics}
    return FileResult(
        kind=task.kind,
        metrics=metrics,
        ids=tuple(item.id for item in items),
        scores=columns,
        seconds=0.0,
        failed=sum(found.output is None for found in one.outcomes[name]),
        with_passages=sum(bool(item.passages) for item in items),
        data={},
    )


def _noted(table: Table, one: FileStudy) -> Table:
    notes = []
    for name, row in one.outcomes.items():
        missing = sum(found.source == "approximate" for found in row)
        if missing:
            notes.append(f"{name}: {missing} of {len(row)} answers are approximate, as they were not decoded again")
    return replace(table, notes=(*table.notes, *notes))


def _brief(table: Table) -> Table:
    kept = tuple(metric for metric in table.metrics[1:] if metric in SHOWN or metric.startswith(JUDGED))
    defined = tuple(metric for metric in kept if any(row.figures[metric] is not None for row in table.rows))
    rows = tuple(replace(row, seconds=None) for row in table.rows)
    return replace(table, metrics=(table.metrics[0], *defined), rows=rows)
