"""Ablations over files, from as few decodes as can be, with reliance on memory beside other systems' runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfrag.decoding.policy import Decoding
from selfrag.errors import UserError
from selfrag.evaluation.comparison import Comparison, bootstrap
from selfrag.evaluation.intervals import Estimate
from selfrag.evaluation.metrics.fluency import FLUENCY
from selfrag.evaluation.metrics.memory import FROM_MEMORY, MEMORY
from selfrag.evaluation.records import read_manifest
from selfrag.evaluation.runner import Model, Source
from selfrag.evaluation.task import SHORT
from selfrag.evaluation.task_files import TaskFile
from selfrag.experiments.steering.answers import write_answers
from selfrag.experiments.steering.opening import bars, opened
from selfrag.experiments.steering.records import read_recorded
from selfrag.experiments.steering.results import comparison, measured_by, system_runs
from selfrag.experiments.steering.saving import Saved, saved
from selfrag.experiments.steering.study import FileStudy, Progress, Study, study
from selfrag.experiments.steering.sweep import based
from selfrag.experiments.steering.table3a import ablations


@dataclass(frozen=True, slots=True)
class Ablated:
    """What the ablations found.

    Attributes:
        studies: one a file.
        comparison: all rows against the whole.
        reliance: file to system to the share of its right answers that no passage holds; files without short answers
            are missing. Rows of the ablation and baselines.
        saved: what was spared.
    """

    studies: tuple[FileStudy, ...]
    comparison: Comparison
    reliance: Mapping[str, Mapping[str, Estimate | None]]
    saved: Saved


def ablate(
    changes: Mapping[str, Any],
    model: Model,
    source: Source,
    out: Path,
    *,
    baselines: Sequence[Path] = (),
    redecode: bool = True,
    seed: int = 0,
    retry_failed: bool = False,
    progress: Progress = bars,
) -> Ablated:
    """Run the rows of `table3a.ablations`.

    Args:
        changes: fields of `Decoding` that differ from the paper's policy, or from that of a published task.
        model: what answers.
        source: what is asked.
        out: folder of the study; `out/rows/NAME` becomes a run directory for each row.
        baselines: run directories of other systems over the same files, for reliance on memory.
        redecode: decode again where the record is not exact.
        seed: of intervals.
        retry_failed: run items again that failed before.
        progress: told what is decoded.

    Raises:
        UserError: the files, the model, a setting or a baseline cannot be used, or the folder holds another study.
    """
    files = [measured_by(file, (*FLUENCY, *MEMORY)) for file in source.load()]
    others = _named(baselines)
    theirs = {file.name: {name: reliance_of(folder, file, seed) for name, folder in others.items()} for file in files}
    with opened(model) as ready:
        job = Study(ready.prompting, ready.identity, out, source.settings(), redecode, retry_failed=retry_failed)
        studies = [
            study(job, file, ablations(based(changes, file.task), file.task), ready.execute, progress) for file in files
        ]
    write_answers(job, studies, out / "rows")
    found = comparison(studies, system_runs(studies), seed)
    reliance = {
        table.name: {row.system: row.figures.get(FROM_MEMORY.name) for row in table.rows} | theirs[table.name]
        for table, file in zip(found.tables, files, strict=True)
        if any(item.answers and item.passages for item in file.items)
    }
    return Ablated(tuple(studies), found, reliance, saved(studies))


def reliance_of(folder: Path, file: TaskFile, seed: int = 0) -> Estimate | None:
    """Share of a run's right answers that no passage of the item holds; None where that says nothing.

    Args:
        folder: run directory of any system over the file.
        file: the items; those that the run has are counted.
        seed: of the interval.

    Raises:
        UserError: the run has no records of this file, or other items.
    """
    outputs = {record.id: record.output for record in read_recorded(folder / f"{file.name}.jsonl", traces=False)}
    if missing := next((item.id for item in file.items if item.id not in outputs), None):
        raise UserError(f"{folder} has no item {missing!r} of {file.name}; give a run over the same items")
    parts = [FROM_MEMORY.part(item, outputs[item.id]) for item in file.items]
    (draws,) = bootstrap([parts], name=file.name, seed=seed)
    return None if draws is None else draws.estimate


def _named(folders: Sequence[Path]) -> dict[str, Path]:
    """Runs by the name of their system, which is none of our rows."""
    known: dict[str, Path] = {}
    ours = {setting.name for setting in ablations(Decoding(), SHORT)}
    for folder in folders:
        name = str(read_manifest(folder)["identity"].get("name", folder.name))
        if name in known or name in ours:
            raise UserError(f"--baseline {folder}: two systems called {name!r}; rename one")
        known[name] = folder
    return known
