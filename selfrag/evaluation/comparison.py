"""Compares finished runs of the same items: bootstrap intervals, paired differences, the average over files."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from selfrag.common.errors import UserError
from selfrag.evaluation.intervals import ROUNDS, SHARE, Bounds, Estimate, FloatArray, effective_items, interval
from selfrag.evaluation.judging import read_judged
from selfrag.evaluation.metrics.registry import Part, is_count
from selfrag.evaluation.records import MANIFEST, file_entry, read_manifest, read_records

BLOCK = 200
"""Resamplings held in memory at once."""


@dataclass(frozen=True, slots=True)
class Draws:
    """A figure and what it was in each resampling."""

    value: float  # on all items
    samples: FloatArray  # [R] in each resampling; NaN where no item of the draw counted
    n: int  # items that count
    effective: float  # items that the figure rests on, by their weights
    bounds: Bounds | None = SHARE  # of the figure; None where it has none

    @property
    def estimate(self) -> Estimate:
        """Return the figure with its 95% interval."""
        return interval(self.value, self.samples, self.n, effective=self.effective, bounds=self.bounds)

    def __sub__(self, other: Draws) -> Draws:
        """Return the paired difference; both figures must be of the same items and seed."""
        bounds = None
        if self.bounds is not None and other.bounds is not None:
            bounds = (self.bounds[0] - other.bounds[1], self.bounds[1] - other.bounds[0])
        return Draws(
            self.value - other.value,
            self.samples - other.samples,
            min(self.n, other.n),
            min(self.effective, other.effective),
            bounds,
        )


def bootstrap(
    figures: Sequence[Sequence[Part | None]],
    *,
    name: str = "",
    seed: int = 0,
    bounds: Sequence[Bounds | None] | None = None,
) -> list[Draws | None]:
    """Resample items for several figures together.

    `figures` have one part an item each, in the same order of items; files of other names are resampled
    independently. `bounds` are those of each figure; by default all are shares.

    Returns:
        For each figure its draws, or None where no item counts.

    Raises:
        ValueError: figures of different numbers of items.
    """
    items = len(figures[0]) if figures else 0
    if any(len(parts) != items for parts in figures):
        raise ValueError("figures of different numbers of items")
    if not items:
        return [None] * len(figures)
    top = np.array([[0.0 if p is None else p[0] for p in parts] for parts in figures]).T
    bottom = np.array([[0.0 if p is None else p[1] for p in parts] for parts in figures]).T
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    samples = np.concatenate(
        [_block(top, bottom, rng, min(BLOCK, ROUNDS - done)) for done in range(0, ROUNDS, BLOCK)], axis=0
    )
    total = bottom.sum(axis=0)
    counting = (bottom > 0).sum(axis=0)
    draws: list[Draws | None] = []
    for i in range(len(figures)):
        if total[i] > 0:
            value = float(top[:, i].sum() / total[i])
            limits = SHARE if bounds is None else bounds[i]
            draws.append(Draws(value, samples[:, i], int(counting[i]), effective_items(bottom[:, i]), limits))
        else:
            draws.append(None)
    return draws


def bounds_of(name: str) -> Bounds | None:
    """Return the lowest and highest possible value of a figure; None where it is a count."""
    return None if is_count(name) else SHARE


def average(draws: Sequence[Draws | None]) -> Draws | None:
    """The plain mean of figures of different files, resampled independently; None if one of them is undefined."""
    known = [figure for figure in draws if figure is not None]
    if not known or len(known) < len(draws):
        return None
    value = sum(figure.value for figure in known) / len(known)
    samples = np.mean([figure.samples for figure in known], axis=0)
    # Each file weighs alike, so the smallest one limits what is known.
    effective = len(known) * min(figure.effective for figure in known)
    return Draws(value, samples, sum(figure.n for figure in known), effective, _mean_bounds(known))


def _mean_bounds(draws: Sequence[Draws]) -> Bounds | None:
    """Return the bounds of a mean of figures; None where a figure has none."""
    bounds = [figure.bounds for figure in draws if figure.bounds is not None]
    if len(bounds) < len(draws):
        return None
    return float(np.mean([low for low, _ in bounds])), float(np.mean([high for _, high in bounds]))


def _block(top: FloatArray, bottom: FloatArray, rng: np.random.Generator, rounds: int) -> FloatArray:
    items = len(top)
    counts = rng.multinomial(items, [1 / items] * items, size=rounds).astype(np.float64)
    below = counts @ bottom
    return np.asarray(np.divide(counts @ top, below, out=np.full_like(below, np.nan), where=below > 0))


@dataclass(frozen=True, slots=True)
class FileResult:
    """One system's records of one file."""

    kind: str  # of the task
    metrics: tuple[str, ...]  # names, the headline first
    ids: tuple[str, ...]  # of the items, in order
    scores: dict[str, tuple[Part | None, ...]]  # metric to one part an item
    seconds: float  # wall time of the run, without loading the model
    failed: int  # items without an answer
    with_passages: int  # items that had passages to read
    data: dict[str, Any]  # what must agree between systems
    judged: tuple[str, ...] = ()  # those of the metrics that a second model computed; their names say which
    # figures of all items together, such as MAUVE, with the number of items; None where undefined
    whole: dict[str, tuple[float, int] | None] = field(default_factory=dict)
    # judged metric to the number of items without a verdict, where there are any
    undecided: dict[str, int] = field(default_factory=dict)
    # judged figure to a mark of who judged: what tells one judge from another of the same name
    judges: dict[str, str] = field(default_factory=dict)

    @property
    def figures(self) -> set[str]:
        """Names of all figures."""
        return {*self.metrics, *self.whole}

    def only(self, kept: set[str]) -> FileResult:
        """The same without the figures that are not in `kept`."""
        return replace(
            self,
            metrics=tuple(name for name in self.metrics if name in kept),
            judged=tuple(name for name in self.judged if name in kept),
            whole={name: value for name, value in self.whole.items() if name in kept},
        )


@dataclass(frozen=True, slots=True)
class SystemRun:
    """One system's run directory."""

    name: str  # of the system
    folder: Path  # where it was read
    files: dict[str, FileResult]  # by name


def read_run(folder: Path, only: Sequence[str] | None = None) -> SystemRun:
    """Read a run directory.

    `only` names the files to read; all by default.

    Raises:
        UserError: no run, an unfinished file, a file of `only` that is not there, or damaged records.
    """
    manifest = read_manifest(folder)
    names = list(manifest["files"]) if only is None else list(only)
    files = {}
    for name in names:
        files[name] = _file(folder / f"{name}.jsonl", file_entry(manifest, folder, name, finished=True))
    return SystemRun(str(manifest["identity"].get("name", folder.name)), folder, files)


def read_runs(folders: Sequence[Path], only: Sequence[str] | None = None) -> list[SystemRun]:
    """`comparable` runs of some folders.

    Raises:
        UserError: as `read_run`, or runs that cannot be compared; names both.
    """
    return comparable([read_run(folder, only) for folder in folders])


def comparable(runs: Sequence[SystemRun]) -> list[SystemRun]:
    """The same runs, if they can be compared: the same files and items, different names.

    Figures that not all of them have are left out: of judges that were not asked about every run, and those that a
    study adds.

    Raises:
        UserError: they cannot be compared; names both.
    """
    if not runs:
        raise UserError("no run to compare; give at least one run directory")
    first = runs[0]
    seen: dict[str, Path] = {}
    for run in runs:
        if run.name in seen:
            raise UserError(f"{seen[run.name]} and {run.folder} are both of a system called {run.name}; rename one")
        seen[run.name] = run.folder
        if missing := sorted(set(first.files) ^ set(run.files)):
            raise UserError(f"{missing[0]} is not in both {first.folder} and {run.folder}; run it, or use --only")
        for name, found in run.files.items():
            if found.data != first.files[name].data or found.ids != first.files[name].ids:
                raise UserError(f"{name}: {run.folder} was not run on the same items as {first.folder}")
            head, other = first.files[name].metrics[0], found.metrics[0]
            if head != other:
                raise UserError(f"{name}: {run.folder} was scored by {other} and {first.folder} by {head}")
            shared = first.files[name].judges.keys() & found.judges.keys()
            if apart := sorted(one for one in shared if first.files[name].judges[one] != found.judges[one]):
                raise UserError(
                    f"{name}: {apart[0]} in {run.folder} is of another judge than in {first.folder}; judge again"
                )
    kept = {name: set.intersection(*(run.files[name].figures for run in runs)) for name in first.files}
    return [replace(run, files={name: found.only(kept[name]) for name, found in run.files.items()}) for run in runs]


def run_folders(paths: Sequence[Path]) -> list[Path]:
    """Run directories: those given, and in the place of a directory of runs its runs, by name.

    Files among the paths are left out, so that `RUNS/*` may be given although tables lie beside the runs.
    """
    found: list[Path] = []
    for path in [path for path in paths if path.is_dir()] or paths:
        inside = sorted(manifest.parent for manifest in path.glob(f"*/{MANIFEST}"))
        found += [path] if (path / MANIFEST).exists() or not inside else inside
    return found


def _file(path: Path, entry: dict[str, Any]) -> FileResult:
    records = read_records(path, ("id", "scores"))
    settings, result = entry["settings"], entry["result"]
    metrics = tuple(settings["task"]["metrics"])
    if not metrics:
        raise UserError(f"{path} holds records that nothing is scored by; there is nothing to compare")
    scores = {name: tuple(_part(path, record, name) for record in records) for name in metrics}
    ids = tuple(record["id"] for record in records)
    whole: dict[str, tuple[float, int] | None] = {}
    undecided: dict[str, int] = {}
    judges: dict[str, str] = {}
    for judged in read_judged(path.parent, path.name.removesuffix(".jsonl")):
        for metric, parts in judged.parts.items():
            scores[judged.column(metric)] = tuple(parts.get(one) for one in ids)
            if judged.undecided.get(metric):
                undecided[judged.column(metric)] = judged.undecided[metric]
        for metric, found in judged.whole.items():
            whole[judged.column(metric)] = None if found is None else (float(found["value"]), int(found["texts"]))
        judges |= dict.fromkeys(map(judged.column, (*judged.parts, *judged.whole)), judged.mark)
    # How questions are put, a published task's protocol and policy, is no part of what must agree.
    apart = ("task", "system")
    return FileResult(
        kind=settings["task"]["kind"],
        metrics=tuple(scores),
        ids=ids,
        scores=scores,
        seconds=float(result["seconds"]),
        failed=int(result["failed"]),
        with_passages=int(settings["with_passages"]),
        data={key: value for key, value in settings.items() if key not in apart} | {"kind": settings["task"]["kind"]},
        judged=tuple(scores)[len(metrics) :],
        whole=whole,
        undecided=undecided,
        judges=judges,
    )


def _part(path: Path, record: dict[str, Any], metric: str) -> Part | None:
    if metric not in record["scores"]:
        raise UserError(f"{path}: item {record['id']!r} has no {metric}; the run is of another version, run it again")
    match record["scores"][metric]:
        case None:
            return None
        case [int() | float() as top, int() | float() as bottom] if isfinite(top) and isfinite(bottom):
            return float(top), float(bottom)
        case found:
            raise UserError(f"{path}: {metric} of item {record['id']!r} is no figure: {found!r:.40}; run it again")


AVERAGE = "average"
HEADLINE = "score"
"""Name of the averaged headline figure, whose parts have different names in different files."""
AVERAGED = ("citation_precision", "citation_precision_alce", "citation_recall", "retrieval_rate")
"""Further figures that are averaged over the files that have them."""


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One system in one table."""

    system: str  # its name
    # metric to estimate; None where the metric says nothing about what this system does
    figures: Mapping[str, Estimate | None]
    # metric to this system minus the reference, paired; empty for the reference itself
    differences: Mapping[str, Estimate | None]
    seconds: float | None  # an item, wall time of the batch divided by its items; None in the average
    failed: int  # items without an answer


@dataclass(frozen=True, slots=True)
class ComparisonTable:
    """All systems on one file, or on average."""

    name: str  # of the file, or `average`
    kind: str  # of task; `average` for the average
    metrics: tuple[str, ...]  # columns, the headline first
    items: int  # of the file, or files of the average
    rows: tuple[ComparisonRow, ...]  # in the order of the runs
    notes: tuple[str, ...] = ()  # what a reader must know


@dataclass(frozen=True, slots=True)
class Comparison:
    """Tables a file, and the average if there are several files."""

    reference: str | None  # the system that differences are against; None without differences
    tables: tuple[ComparisonTable, ...]  # in the order of the files
    average: ComparisonTable | None  # over all files
    seed: int = field(default=0)  # of the bootstrap


FileDraws = dict[str, dict[str, Draws | None]]
"""System to metric to draws, of one file."""


def compare(runs: Sequence[SystemRun], *, against: str | None = None, seed: int = 0) -> Comparison:
    """Compare runs of the same files and items.

    `against` is the name of the system that the others are compared with; None for no differences.

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


def _draw(runs: Sequence[SystemRun], file: str, seed: int) -> FileDraws:
    columns = [(run.name, metric) for run in runs for metric in run.files[file].metrics]
    parts = [run.files[file].scores[metric] for run in runs for metric in run.files[file].metrics]
    figures: FileDraws = {run.name: {} for run in runs}
    bounds = [bounds_of(metric) for _, metric in columns]
    for (system, metric), draws in zip(columns, bootstrap(parts, name=file, seed=seed, bounds=bounds), strict=True):
        figures[system][metric] = draws
    for run in runs:
        for name, found in run.files[file].whole.items():  # one value for all items cannot be resampled
            figures[run.name][name] = None if found is None else Draws(found[0], np.empty(0), found[1], found[1])
    return figures


def _table(runs: Sequence[SystemRun], file: str, figures: FileDraws, against: str | None) -> ComparisonTable:
    results = {run.name: run.files[file] for run in runs}
    first = results[runs[0].name]
    metrics = (*first.metrics, *first.whole)
    rows = [
        _row(name, figures, metrics, against, found.seconds / len(found.ids), found.failed)
        for name, found in results.items()
    ]
    return ComparisonTable(file, first.kind, metrics, len(first.ids), tuple(rows), tuple(_notes(first, results)))


def _average(runs: Sequence[SystemRun], drawn: Mapping[str, FileDraws], against: str | None) -> ComparisonTable:
    averaged: FileDraws = {}
    heading = {file: result.metrics[0] for file, result in runs[0].files.items() if not is_count(result.metrics[0])}
    for run in runs:
        heads = [drawn[file][run.name][metric] for file, metric in heading.items()]
        averaged[run.name] = {HEADLINE: average(heads)}
        for metric in AVERAGED:
            having = [of for of in drawn.values() if any(of[one.name].get(metric) for one in runs)]
            averaged[run.name][metric] = average([of[run.name][metric] for of in having])
    metrics = (HEADLINE, *AVERAGED)
    rows = [
        _row(run.name, averaged, metrics, against, None, sum(result.failed for result in run.files.values()))
        for run in runs
    ]
    named = ", ".join(f"{metric} of {file}" for file, metric in heading.items()) or "nothing: all headlines are counts"
    return ComparisonTable(AVERAGE, AVERAGE, metrics, len(drawn), tuple(rows), (f"{HEADLINE} is the mean of {named}",))


def _row(
    name: str, figures: FileDraws, metrics: Sequence[str], against: str | None, seconds: float | None, failed: int
) -> ComparisonRow:
    own = figures[name]
    differences: dict[str, Estimate | None] = {}
    if against is not None and against != name:
        for metric in metrics:
            mine, other = own[metric], figures[against][metric]
            differences[metric] = None if mine is None or other is None else (mine - other).estimate
    estimates = {metric: None if (draws := own[metric]) is None else draws.estimate for metric in metrics}
    return ComparisonRow(name, estimates, differences, seconds, failed)


def _notes(first: FileResult, results: Mapping[str, FileResult]) -> list[str]:
    notes = []
    if first.with_passages < len(first.ids):
        bare = len(first.ids) - first.with_passages
        notes.append(f"{bare} of {len(first.ids)} items came without passages, so that no system could read any")
    failures = ((name, found.failed) for name, found in results.items() if found.failed)
    notes += [f"{name}: {failed} items failed and count as wrong" for name, failed in failures]
    for name, found in results.items():
        for metric in found.judged:
            if left := found.undecided.get(metric):
                notes.append(f"{name}: {left} items have no {metric}, as a verdict is missing")
    return notes
