"""Compares systems: a table a file and the average over files, each figure with its interval, differences paired. Pure.

The average over files is the plain mean of their headline figures, so that a large file does not decide alone; a
headline that is a count (words of texts without a reference) is left out of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from selfrag.errors import UserError
from selfrag.evaluation.compare_bootstrap import Draws, average, bootstrap
from selfrag.evaluation.compare_runs import FileResult, SystemRun
from selfrag.evaluation.intervals import Estimate
from selfrag.evaluation.metrics.registry import is_count

AVERAGE = "average"
HEADLINE = "score"
"""Name of the averaged headline figure, whose parts have different names in different files."""
AVERAGED = ("citation_precision", "citation_precision_alce", "citation_recall", "retrieval_rate")
"""Further figures that are averaged over the files that have them."""


@dataclass(frozen=True, slots=True)
class Row:
    """One system in one table.

    Attributes:
        system: its name.
        figures: metric to estimate; None where the metric says nothing about what this system does.
        differences: metric to this system minus the reference, paired; empty for the reference itself.
        seconds: an item, wall time of the batch divided by its items; None in the average.
        failed: items without an answer.
    """

    system: str
    figures: Mapping[str, Estimate | None]
    differences: Mapping[str, Estimate | None]
    seconds: float | None
    failed: int


@dataclass(frozen=True, slots=True)
class Table:
    """All systems on one file, or on average.

    Attributes:
        name: of the file, or `average`.
        kind: of task; `average` for the average.
        metrics: columns, the headline first.
        items: of the file, or files of the average.
        notes: what a reader must know.
        rows: in the order of the runs.
    """

    name: str
    kind: str
    metrics: tuple[str, ...]
    items: int
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """Tables a file, and the average if there are several files.

    Attributes:
        reference: the system that differences are against; None without differences.
        tables: in the order of the files.
        average: over all files.
        seed: of the bootstrap.
    """

    reference: str | None
    tables: tuple[Table, ...]
    average: Table | None
    seed: int = field(default=0)


Figures = dict[str, dict[str, Draws | None]]
"""System to metric to draws, of one file."""


def compare(runs: Sequence[SystemRun], *, against: str | None = None, seed: int = 0) -> Comparison:
    """Compare runs of the same files and items.

    Args:
        runs: as `read_runs` returns them.
        against: name of the system that the others are compared with; None for no differences.
        seed: of the bootstrap.

    Raises:
        UserError: no run is called `against`.
    """
    names = [run.name for run in runs]
    if against is not None and against not in names:
        raise UserError(f"no run of a system called {against!r}; there are {', '.join(names)}")
    drawn = {file: _draw(runs, file, seed) for file in runs[0].files}
    tables = tuple(_table(runs, file, drawn[file], against) for file in runs[0].files)
    averaged = _average(runs, drawn, against) if len(tables) > 1 else None
    return Comparison(against, tables, averaged, seed)


def _draw(runs: Sequence[SystemRun], file: str, seed: int) -> Figures:
    columns = [(run.name, metric) for run in runs for metric in run.files[file].metrics]
    parts = [run.files[file].scores[metric] for run in runs for metric in run.files[file].metrics]
    figures: Figures = {run.name: {} for run in runs}
    for (system, metric), draws in zip(columns, bootstrap(parts, name=file, seed=seed), strict=True):
        figures[system][metric] = draws
    for run in runs:
        for name, found in run.files[file].whole.items():  # one value for all items cannot be resampled
            figures[run.name][name] = None if found is None else Draws(found[0], np.empty(0), found[1])
    return figures


def _table(runs: Sequence[SystemRun], file: str, figures: Figures, against: str | None) -> Table:
    results = {run.name: run.files[file] for run in runs}
    first = results[runs[0].name]
    metrics = (*first.metrics, *first.whole)
    rows = [
        _row(name, figures, metrics, against, found.seconds / len(found.ids), found.failed)
        for name, found in results.items()
    ]
    return Table(file, first.kind, metrics, len(first.ids), tuple(rows), tuple(_notes(first, results)))


def _average(runs: Sequence[SystemRun], drawn: Mapping[str, Figures], against: str | None) -> Table:
    averaged: Figures = {}
    heading = {file: result.metrics[0] for file, result in runs[0].files.items() if not is_count(result.metrics[0])}
    for run in runs:
        heads = [drawn[file][run.name][metric] for file, metric in heading.items()]
        averaged[run.name] = {HEADLINE: average(heads)}
        for metric in AVERAGED:
            having = _having(runs, drawn, metric)
            averaged[run.name][metric] = average([drawn[file][run.name][metric] for file in having])
    metrics = (HEADLINE, *AVERAGED)
    rows = [
        _row(run.name, averaged, metrics, against, None, sum(result.failed for result in run.files.values()))
        for run in runs
    ]
    named = ", ".join(f"{metric} of {file}" for file, metric in heading.items()) or "nothing: all headlines are counts"
    return Table(AVERAGE, AVERAGE, metrics, len(drawn), tuple(rows), (f"{HEADLINE} is the mean of {named}",))


def _having(runs: Sequence[SystemRun], drawn: Mapping[str, Figures], metric: str) -> list[str]:
    """Files for which any system has the figure."""
    return [file for file, figures in drawn.items() if any(figures[run.name].get(metric) for run in runs)]


def _row(
    name: str, figures: Figures, metrics: Sequence[str], against: str | None, seconds: float | None, failed: int
) -> Row:
    own = figures[name]
    differences: dict[str, Estimate | None] = {}
    if against is not None and against != name:
        for metric in metrics:
            mine, other = own[metric], figures[against][metric]
            differences[metric] = None if mine is None or other is None else (mine - other).estimate
    estimates = {metric: None if (draws := own[metric]) is None else draws.estimate for metric in metrics}
    return Row(name, estimates, differences, seconds, failed)


def _notes(first: FileResult, results: Mapping[str, FileResult]) -> list[str]:
    notes = []
    if first.with_passages < len(first.ids):
        bare = len(first.ids) - first.with_passages
        notes.append(f"{bare} of {len(first.ids)} items came without passages, so that no system could read any")
    if texts := [name for name, found in results.items() if found.form == "texts"]:
        whose = "" if len(texts) == len(results) else f"{', '.join(texts)}: "
        notes.append(f"{whose}questions were asked without their options, whose texts were scored")
    failures = ((name, found.failed) for name, found in results.items() if found.failed)
    notes += [f"{name}: {failed} items failed and count as wrong" for name, failed in failures]
    for name, found in results.items():
        for metric in found.judged:
            if left := found.undecided.get(metric):
                notes.append(f"{name}: {left} items have no {metric}, as a verdict is missing")
    return notes
