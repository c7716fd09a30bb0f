"""Finished runs read back from disk, checked to be of the same items. Computes no figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any

from selfrag.errors import UserError
from selfrag.evaluation.metrics.judging import read_judged
from selfrag.evaluation.metrics.registry import Part
from selfrag.evaluation.runner_manifest import MANIFEST, file_entry, read_manifest
from selfrag.evaluation.runner_records import read_records
from selfrag.evaluation.tasks.choices import Form, recorded_form


@dataclass(frozen=True, slots=True)
class FileResult:
    """One system's records of one file.

    Attributes:
        kind: of the task.
        metrics: names, the headline first.
        ids: of the items, in order.
        scores: metric to one part an item.
        seconds: wall time of the run, without loading the model.
        failed: items without an answer.
        with_passages: items that had passages to read.
        data: what must agree between systems.
        judged: those of the metrics that a second model computed; their names say which.
        whole: figures of all items together, such as MAUVE, with the number of items; None where undefined.
        undecided: judged metric to the number of items without a verdict, where there are any.
        form: how closed sets were asked.
        judges: judged figure to a mark of who judged: what tells one judge from another of the same name.
    """

    kind: str
    metrics: tuple[str, ...]
    ids: tuple[str, ...]
    scores: dict[str, tuple[Part | None, ...]]
    seconds: float
    failed: int
    with_passages: int
    data: dict[str, Any]
    judged: tuple[str, ...] = ()
    whole: dict[str, tuple[float, int] | None] = field(default_factory=dict)
    undecided: dict[str, int] = field(default_factory=dict)
    form: Form = "letters"
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
    """One system's run directory.

    Attributes:
        name: of the system.
        folder: where it was read.
        files: by name.
    """

    name: str
    folder: Path
    files: dict[str, FileResult]


def read_run(folder: Path, only: Sequence[str] | None = None) -> SystemRun:
    """Read a run directory.

    Args:
        folder: as `run` wrote it.
        only: names of the files to read; all by default.

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
    """Read runs that can be compared: the same files and items, different names.

    Figures that not all of them have are left out: of judges that were not asked about every run, and those that a
    study adds.

    Raises:
        UserError: as `read_run`, or runs that cannot be compared; names both.
    """
    return comparable([read_run(folder, only) for folder in folders])


def comparable(runs: Sequence[SystemRun]) -> list[SystemRun]:
    """The same runs, if they can be compared: the same files and items, different names.

    Figures that not all of them have are left out, as in `read_runs`.

    Raises:
        UserError: they cannot; names both.
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
                    f"{name}: {apart[0]} in {run.folder} is of another judge than in {first.folder}; judge anew"
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
    # How questions are put, a published task's protocol and policy: part of what is compared.
    apart = ("task", "system", "choices")
    data = {key: value for key, value in settings.items() if key not in apart} | {"kind": settings["task"]["kind"]}
    ids = tuple(record["id"] for record in records)
    judged, whole, undecided, judges = _judged(path, ids, scores)
    return FileResult(
        settings["task"]["kind"],
        (*metrics, *judged),
        ids,
        scores,
        float(result["seconds"]),
        int(result["failed"]),
        int(settings["with_passages"]),
        data,
        judged,
        whole,
        undecided,
        recorded_form(settings),
        judges,
    )


def _judged(
    path: Path, ids: Sequence[str], scores: dict[str, tuple[Part | None, ...]]
) -> tuple[tuple[str, ...], dict[str, tuple[float, int] | None], dict[str, int], dict[str, str]]:
    """Adds the parts of judges to `scores`; gives their names, figures of all items, what is undecided, who judged."""
    names: list[str] = []
    whole: dict[str, tuple[float, int] | None] = {}
    undecided: dict[str, int] = {}
    judges: dict[str, str] = {}
    for judged in read_judged(path.parent, path.name.removesuffix(".jsonl")):
        for metric, parts in judged.parts.items():
            column = judged.column(metric)
            names.append(column)
            scores[column] = tuple(parts.get(one) for one in ids)
            if judged.undecided.get(metric):
                undecided[column] = judged.undecided[metric]
        for metric, found in judged.whole.items():
            whole[judged.column(metric)] = None if found is None else (float(found["value"]), int(found["texts"]))
        judges |= dict.fromkeys(map(judged.column, (*judged.parts, *judged.whole)), judged.mark)
    return tuple(names), whole, undecided, judges


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
