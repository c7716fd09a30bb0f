"""Compares finished runs of the same items: bootstrap intervals, paired differences, the average over files."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from selfrag.common.errors import UserError, count_of
from selfrag.evaluation.failures import Failures, count_reasons
from selfrag.evaluation.intervals import (
    ROUNDS,
    SHARE,
    Bounds,
    Estimate,
    FloatArray,
    effective_items,
    interval,
)
from selfrag.evaluation.judging import read_judged
from selfrag.evaluation.metrics.registry import COMPUTED, Part, is_count
from selfrag.evaluation.paraphrases import merge_parts, original
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
        return interval(
            self.value,
            self.samples,
            self.n,
            effective=self.effective,
            bounds=self.bounds,
        )

    def __sub__(self, reference: Draws) -> Draws:
        """Return the paired difference; both figures must be of the same items and seed."""
        bounds = None
        if self.bounds is not None and reference.bounds is not None:
            bounds = (
                self.bounds[0] - reference.bounds[1],
                self.bounds[1] - reference.bounds[0],
            )
        return Draws(
            self.value - reference.value,
            self.samples - reference.samples,
            min(self.n, reference.n),
            min(self.effective, reference.effective),
            bounds,
        )


def estimate_of(draws: Draws | None) -> Estimate | None:
    """Return a figure with its interval; None where it is undefined."""
    if draws is None:
        return None
    return draws.estimate


def paired_difference(draws: Draws | None, reference: Draws | None) -> Estimate | None:
    """Return the paired difference of two figures; None where one of them is undefined."""
    if draws is None or reference is None:
        return None
    return (draws - reference).estimate


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
    if len(set(map(len, figures))) > 1:
        raise ValueError("figures of different numbers of items")
    if not items:
        return [None] * len(figures)
    # [figures, items, 2]
    numbers = np.array([[part or (0.0, 0.0) for part in parts] for parts in figures])
    top = np.ascontiguousarray(numbers[:, :, 0]).T
    bottom = np.ascontiguousarray(numbers[:, :, 1]).T
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    blocks = [
        _resample(top, bottom, rng, min(BLOCK, ROUNDS - done))
        for done in range(0, ROUNDS, BLOCK)
    ]
    samples = np.concatenate(blocks)  # [R, figures]
    draws: list[Draws | None] = []
    for number, limits in enumerate(bounds or [SHARE] * len(figures)):
        weights = bottom[:, number]
        total = weights.sum()
        if total <= 0:
            draws.append(None)
            continue
        value = float(top[:, number].sum() / total)
        counting = int((weights > 0).sum())
        draws.append(
            Draws(value, samples[:, number], counting, effective_items(weights), limits)
        )
    return draws


def _resample(
    top: FloatArray, bottom: FloatArray, rng: np.random.Generator, rounds: int
) -> FloatArray:
    """Return the figures [rounds, figures] of samples of the items, from numerators and denominators."""
    items = len(top)
    counts = rng.multinomial(items, [1 / items] * items, size=rounds).astype(np.float64)
    below = counts @ bottom
    return np.asarray(
        np.divide(counts @ top, below, out=np.full_like(below, np.nan), where=below > 0)
    )


def bounds_of(name: str) -> Bounds | None:
    """Return the lowest and highest possible value of a figure; None where it is a count."""
    return None if is_count(name) else SHARE


def average(draws: Sequence[Draws | None]) -> Draws | None:
    """Return the plain mean of figures of files that are resampled independently; None if one is undefined."""
    known = [figure for figure in draws if figure is not None]
    if not known or len(known) < len(draws):
        return None
    value = sum(figure.value for figure in known) / len(known)
    samples = np.mean([figure.samples for figure in known], axis=0)
    # Each file weighs alike, so the smallest one limits what is known.
    effective = len(known) * min(figure.effective for figure in known)
    limits = [figure.bounds for figure in known if figure.bounds is not None]
    bounds = None
    if len(limits) == len(known):
        low, high = np.mean(limits, axis=0)
        bounds = (float(low), float(high))
    return Draws(value, samples, sum(figure.n for figure in known), effective, bounds)


@dataclass(frozen=True, slots=True)
class FileResult:
    """One system's records of one file."""

    kind: str  # of the task
    metrics: tuple[str, ...]  # names, the headline first
    ids: tuple[str, ...]  # of the items, in order
    scores: dict[str, tuple[Part | None, ...]]  # metric to one part an item
    seconds: float  # wall time of the run, without loading the model
    reasons: Mapping[str, int]  # why items have no answer, to their number
    with_passages: int  # items that had passages to read
    data: dict[str, Any]  # what must agree between systems
    # what a reader of an answer should see, such as that nobody could judge it, to the number of answers
    remarks: Mapping[str, int] = field(default_factory=dict)
    judged: tuple[
        str, ...
    ] = ()  # those of the metrics that a second model computed; their names say which
    # figures of all items together, such as MAUVE, with the number of items; None where undefined
    corpus_figures: dict[str, tuple[float, int] | None] = field(default_factory=dict)
    # judged metric to the number of items without a verdict, where there are any
    undecided: dict[str, int] = field(default_factory=dict)
    # judged figure to a mark of who judged: what tells one judge from another of the same name
    judges: dict[str, str] = field(default_factory=dict)

    @property
    def failed(self) -> int:
        """Return the number of items without an answer."""
        return sum(self.reasons.values())

    @property
    def figures(self) -> set[str]:
        """Return the names of all figures."""
        return {*self.metrics, *self.corpus_figures}

    def failures(self, system: str, name: str) -> Iterator[Failures]:
        """Yield what has no result: items without an answer, and those that a judge left open."""
        if self.reasons:
            yield Failures(system, name, len(self.ids), self.reasons)
        for column, count in self.undecided.items():
            decided = len(self.scores[column]) - self.scores[column].count(None)
            reasons = {"a verdict is missing": count}
            yield Failures(system, f"{column} of {name}", decided + count, reasons)
        for column, figure in self.corpus_figures.items():
            if figure is None:
                reasons = {"too few have both an answer and a reference": len(self.ids)}
                yield Failures(system, f"{column} of {name}", len(self.ids), reasons)

    def only(self, kept: set[str]) -> FileResult:
        """Return the result without the figures that are not in `kept`."""
        metrics = tuple(filter(kept.__contains__, self.metrics))
        judged = tuple(filter(kept.__contains__, self.judged))
        corpus_figures = {
            name: value for name, value in self.corpus_figures.items() if name in kept
        }
        return replace(
            self, metrics=metrics, judged=judged, corpus_figures=corpus_figures
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
    files = {}
    for name in manifest["files"] if only is None else only:
        files[name] = _read_file(
            folder / f"{name}.jsonl", file_entry(manifest, folder, name, finished=True)
        )
    return SystemRun(str(manifest["identity"].get("name", folder.name)), folder, files)


def read_runs(
    folders: Sequence[Path], only: Sequence[str] | None = None
) -> list[SystemRun]:
    """Return the `comparable` runs of some folders.

    Raises:
        UserError: as `read_run`, or runs that cannot be compared; names both.
    """
    return comparable([read_run(folder, only) for folder in folders])


def comparable(runs: Sequence[SystemRun]) -> list[SystemRun]:
    """Return the same runs, if they can be compared: the same files and items, different names.

    Figures that not all of them have are left out: of judges that were not asked about every run, and those that a
    study adds.

    Raises:
        UserError: they cannot be compared; names both.
    """
    if not runs:
        raise UserError("no run to compare; give at least one run directory")
    first = runs[0]
    folders: dict[str, Path] = {}
    for run in runs:
        if run.name in folders:
            raise UserError(
                f"{folders[run.name]} and {run.folder} are both called {run.name}; run one with another --name"
            )
        folders[run.name] = run.folder
        if missing := sorted(set(first.files) ^ set(run.files)):
            raise UserError(
                f"{missing[0]} is not in both {first.folder} and {run.folder}; run it, or use --only"
            )
        for name in run.files:
            _check_comparable(name, first, run)
    shared = {
        name: set.intersection(*(run.files[name].figures for run in runs))
        for name in first.files
    }
    kept = []
    for run in runs:
        files = {name: result.only(shared[name]) for name, result in run.files.items()}
        kept.append(replace(run, files=files))
    return kept


def _check_comparable(name: str, first: SystemRun, run: SystemRun) -> None:
    """Raise UserError if a file of two runs has other items, another headline or another judge of the same name."""
    result, reference = run.files[name], first.files[name]
    if result.data != reference.data or result.ids != reference.ids:
        raise UserError(
            f"{name}: {run.folder} was not run on the same items as {first.folder}"
        )
    head, expected = result.metrics[0], reference.metrics[0]
    if head != expected:
        raise UserError(
            f"{name}: {run.folder} was scored by {head} and {first.folder} by {expected}"
        )
    for figure in sorted(reference.judges.keys() & result.judges.keys()):
        if reference.judges[figure] != result.judges[figure]:
            raise UserError(
                f"{name}: {figure} in {run.folder} is of another judge than in {first.folder}; judge again"
            )


def run_folders(paths: Sequence[Path]) -> list[Path]:
    """Return the run directories among paths, and in the place of a directory of runs its runs, by name.

    Files among the paths are left out, so that `RUNS/*` may be given although tables lie beside the runs.
    """
    folders: list[Path] = []
    for path in list(filter(Path.is_dir, paths)) or paths:
        inside = sorted(manifest.parent for manifest in path.glob(f"*/{MANIFEST}"))
        if (path / MANIFEST).exists() or not inside:
            inside = [path]
        folders += inside
    return folders


def _read_file(path: Path, entry: dict[str, Any]) -> FileResult:
    records = read_records(path, ("id", "scores", "error", "note"))
    settings, result = entry["settings"], entry["result"]
    task = settings["task"]
    metrics = tuple(task["metrics"])
    if not metrics:
        raise UserError(
            f"{path} holds records that nothing is scored by; there is nothing to compare"
        )
    ids = tuple(record["id"] for record in records)
    scores = {
        name: tuple(_part(path, record, name) for record in records) for name in metrics
    }
    corpus_figures: dict[str, tuple[float, int] | None] = {}
    undecided: dict[str, int] = {}
    judges: dict[str, str] = {}
    for judged in read_judged(path.parent, path.name.removesuffix(".jsonl")):
        for metric, parts in judged.parts.items():
            column = judged.column(metric)
            scores[column] = tuple(map(parts.get, ids))
            judges[column] = judged.mark
            if judged.undecided.get(metric):
                undecided[column] = judged.undecided[metric]
        for metric, figure in judged.corpus_figures.items():
            column = judged.column(metric)
            corpus_figures[column] = None
            if figure is not None:
                corpus_figures[column] = (float(figure["value"]), int(figure["texts"]))
            judges[column] = judged.mark
    if (computed := _computed_tokens(scores, result)) is not None:
        corpus_figures[COMPUTED] = computed, len(ids)
    # How questions are put, a published task's protocol and policy, is no part of what must agree.
    wordings = int(settings.get("paraphrases", 1))
    if wordings > 1:
        scores = {name: merge_parts(ids, parts) for name, parts in scores.items()}
        ids = tuple(dict.fromkeys(map(original, ids)))
    data = {**settings, "kind": task["kind"]}
    for name in ("task", "system"):
        data.pop(name, None)
    return FileResult(
        kind=task["kind"],
        metrics=tuple(scores),
        ids=ids,
        scores=scores,
        seconds=float(result["seconds"]),
        reasons=count_reasons(record.get("error") for record in records),
        remarks=count_reasons(record.get("note") for record in records),
        with_passages=int(settings["with_passages"]) // wordings,
        data=data,
        judged=tuple(scores)[len(metrics) :],
        corpus_figures=corpus_figures,
        undecided=undecided,
        judges=judges,
    )


def _computed_tokens(
    scores: Mapping[str, Sequence[Part | None]], result: Mapping[str, Any]
) -> float | None:
    """Return the tokens of an item that were computed; None where a run does not count tokens or caches."""
    parts = []
    for name in ("prompt_tokens", "generated_tokens"):
        if name not in scores or "cached_tokens" not in result:
            return None
        parts += [part for part in scores[name] if part is not None]
    tokens = sum(count for count, _ in parts)
    return (tokens - float(result["cached_tokens"])) / len(scores[name])


def _part(path: Path, record: dict[str, Any], metric: str) -> Part | None:
    if metric not in record["scores"]:
        raise UserError(
            f"{path}: item {record['id']!r} has no {metric}; the run is of another version, run it again"
        )
    match record["scores"][metric]:
        case None:
            return None
        case [int() | float() as top, int() | float() as bottom] if isfinite(
            top
        ) and isfinite(bottom):
            return float(top), float(bottom)
        case value:
            raise UserError(
                f"{path}: {metric} of item {record['id']!r} is no figure: {value!r:.40}; run it again"
            )


AVERAGE = "average"
HEADLINE = "score"
"""Name of the averaged headline figure, whose parts have different names in different files."""
AVERAGED = (
    "citation_precision",
    "citation_precision_alce",
    "citation_recall",
    "retrieval_rate",
    COMPUTED,
)
"""Further figures that are averaged over the files that have them."""


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One system in one table."""

    system: str  # its name
    # metric to estimate; None where the metric says nothing about what this system does
    figures: Mapping[str, Estimate | None]
    # metric to this system minus the reference, paired; empty for the reference itself
    differences: Mapping[str, Estimate | None]
    # an item, wall time of the batch divided by its items; None in the average
    seconds: float | None
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

    # the system that differences are against; None without differences
    reference: str | None
    tables: tuple[ComparisonTable, ...]  # in the order of the files
    average: ComparisonTable | None  # over all files
    seed: int = 0  # of the bootstrap
    failures: tuple[Failures, ...] = ()  # what has no result, by run and file


FileDraws = dict[str, dict[str, Draws | None]]
"""System to metric to draws, of one file."""
OVER_ITEMS, OVER_SEEDS = "mean (over items)", "mean (over seeds and items)"
"""Rows of the mean over runs with other training seeds, by what their intervals cover."""


def compare(
    runs: Sequence[SystemRun],
    *,
    against: str | None = None,
    seed: int = 0,
    seeds: bool = False,
) -> Comparison:
    """Compare runs of the same files and items.

    `against` is the name of the system that the others are compared with; None for no differences. With `seeds` the
    runs are of one system that was trained with several seeds, and two rows more have their mean.

    Raises:
        UserError: no run is called `against`.
    """
    names = [run.name for run in runs]
    if against is not None and against not in names:
        raise UserError(
            f"no run of a system called {against!r}; there are {', '.join(names)}"
        )
    drawn = {file: _draw(runs, file, seed) for file in runs[0].files}
    if seeds:
        for figures in drawn.values():
            _add_means(runs, figures, seed)
    tables = tuple(_table(runs, file, draws, against) for file, draws in drawn.items())
    averaged = None
    if len(tables) > 1:
        averaged = _average(runs, drawn, against)
    failures: list[Failures] = []
    for run in runs:
        for name, result in run.files.items():
            failures += result.failures(run.name, name)
    return Comparison(against, tables, averaged, seed, tuple(failures))


def _draw(runs: Sequence[SystemRun], file: str, seed: int) -> FileDraws:
    columns, parts, bounds = [], [], []
    for run in runs:
        result = run.files[file]
        for metric in result.metrics:
            columns.append((run.name, metric))
            parts.append(result.scores[metric])
            bounds.append(bounds_of(metric))
    draws = bootstrap(parts, name=file, seed=seed, bounds=bounds)
    figures: FileDraws = {run.name: {} for run in runs}
    for (system, metric), figure in zip(columns, draws, strict=True):
        figures[system][metric] = figure
    for run in runs:
        for name, corpus_figures in run.files[file].corpus_figures.items():
            figures[run.name][name] = None
            # one value for all items cannot be resampled
            if corpus_figures is not None:
                value, texts = corpus_figures
                figures[run.name][name] = Draws(value, np.empty(0), texts, texts)
    return figures


def _table(
    runs: Sequence[SystemRun], file: str, figures: FileDraws, against: str | None
) -> ComparisonTable:
    results = {run.name: run.files[file] for run in runs}
    first = results[runs[0].name]
    metrics = (*first.metrics, *first.corpus_figures)
    items = len(first.ids)
    rows = [
        _row(name, figures, metrics, against, r.seconds / items, r.failed)
        for name, r in results.items()
    ]
    rows += _mean_rows(figures, metrics)
    return ComparisonTable(
        file,
        first.kind,
        metrics,
        items,
        tuple(rows),
        tuple(_notes(file, first, results)),
    )


def _mean_rows(figures: FileDraws, metrics: Sequence[str]) -> list[ComparisonRow]:
    """Return the rows of the means over seeds, where they were asked for."""
    names = [name for name in (OVER_ITEMS, OVER_SEEDS) if name in figures]
    return [_row(name, figures, metrics, None, None, 0) for name in names]


def _add_means(runs: Sequence[SystemRun], figures: FileDraws, seed: int) -> None:
    """Add the mean of all runs to the figures of a file, once resampled over items alone and once over runs as well."""
    systems = [figures[run.name] for run in runs]
    for name, resampled in ((OVER_ITEMS, False), (OVER_SEEDS, True)):
        figures[name] = {}
        for metric in systems[0]:
            draws = [system.get(metric) for system in systems]
            figures[name][metric] = mean_of_runs(draws, seed, resampled=resampled)


def mean_of_runs(
    draws: Sequence[Draws | None], seed: int = 0, *, resampled: bool = True
) -> Draws | None:
    """Return the mean of one figure over S runs with other training seeds; None if one is undefined.

    With `resampled` the bootstrap has two levels: each sample of the items draws S runs as well. The mean of S drawn
    runs varies by (S - 1) / S of the variance of a mean over S runs, so its deviation is scaled up by that.
    """
    known = [figure for figure in draws if figure is not None]
    count = len(known)
    if not known or count < len(draws):
        return None
    value = float(np.mean([figure.value for figure in known]))
    samples = np.array([figure.samples for figure in known])  # [S, R]
    mean = samples.mean(axis=0)
    if resampled and count > 1:
        rounds = samples.shape[1]
        # the same runs are drawn for all figures and files
        chosen = np.random.default_rng(seed).integers(count, size=(count, rounds))
        picked = samples[chosen, np.arange(rounds)].mean(axis=0)
        mean = mean + (picked - mean) * np.sqrt(count / (count - 1))
        if known[0].bounds is not None:
            mean = np.clip(mean, *known[0].bounds)
    return Draws(
        value,
        mean,
        min(figure.n for figure in known),
        min(figure.effective for figure in known),
        known[0].bounds,
    )


def _average(
    runs: Sequence[SystemRun], drawn: Mapping[str, FileDraws], against: str | None
) -> ComparisonTable:
    heads = {
        file: result.metrics[0]
        for file, result in runs[0].files.items()
        if not is_count(result.metrics[0])
    }
    having: dict[str, list[FileDraws]] = {}  # metric to the files that have it
    for metric in AVERAGED:
        having[metric] = [
            draws
            for draws in drawn.values()
            if any(draws[run.name].get(metric) for run in runs)
        ]
    averaged: FileDraws = {}
    for name in next(iter(drawn.values())):
        headlines = [drawn[file][name][head] for file, head in heads.items()]
        averaged[name] = {HEADLINE: average(headlines)}
        for metric, files in having.items():
            parts_of_files = [draws[name][metric] for draws in files]
            averaged[name][metric] = average(parts_of_files)
    metrics = (HEADLINE, *AVERAGED)
    rows = []
    for run in runs:
        failed = sum(result.failed for result in run.files.values())
        rows.append(_row(run.name, averaged, metrics, against, None, failed))
    rows += _mean_rows(averaged, metrics)
    parts = (
        ", ".join(f"{head} of {file}" for file, head in heads.items())
        or "nothing: all headlines are counts"
    )
    note = f"{HEADLINE} is the mean of {parts}"
    return ComparisonTable(AVERAGE, AVERAGE, metrics, len(drawn), tuple(rows), (note,))


def _row(
    name: str,
    figures: FileDraws,
    metrics: Sequence[str],
    against: str | None,
    seconds: float | None,
    failed: int,
) -> ComparisonRow:
    draws = figures[name]
    differences: dict[str, Estimate | None] = {}
    if against is not None and against != name:
        for metric in metrics:
            differences[metric] = paired_difference(
                draws[metric], figures[against][metric]
            )
    estimates = {metric: estimate_of(draws[metric]) for metric in metrics}
    return ComparisonRow(name, estimates, differences, seconds, failed)


def _notes(
    file: str, first: FileResult, results: Mapping[str, FileResult]
) -> list[str]:
    items, notes = len(first.ids), []
    bare = items - first.with_passages
    if bare > 0:
        notes.append(
            f"{bare} of {count_of(items, 'items')} came without passages, so that no system could read any"
        )
    for name, result in results.items():
        notes += map(str, result.failures(name, file))
        if result.remarks:
            answers = count_of(sum(result.remarks.values()), "answers")
            remark = next(iter(result.remarks))
            notes.append(f"{name}: {answers} with a note, such as: {remark}")
    if any(result.failed for result in results.values()):
        notes.append("Items that failed count as wrong")
    return notes
