"""A sweep: weights and thresholds over files, with the paper's trends, the best setting under a constraint, pictures.

Everything decoded and every figure lies in one folder; started again, it goes on, and nothing is decoded twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from selfrag.decoding.policy import Decoding, check_names
from selfrag.decoding.trace import decoding_dict
from selfrag.evaluation.comparison import Comparison, SystemRun, read_runs
from selfrag.evaluation.metrics.entailment import load_entailment
from selfrag.evaluation.metrics.fluency import FLUENCY
from selfrag.evaluation.metrics.judging import about
from selfrag.evaluation.presets import Given
from selfrag.evaluation.runner import Model, Source
from selfrag.evaluation.systems import runnable
from selfrag.evaluation.task import Task
from selfrag.experiments.steering.answers import write_answers
from selfrag.experiments.steering.choosing import Choice, Goal, Scores, choose
from selfrag.experiments.steering.judging import judge_settings
from selfrag.experiments.steering.opening import bars, opened
from selfrag.experiments.steering.reasons import Reason, reasons
from selfrag.experiments.steering.results import comparison, measured_by, system_runs
from selfrag.experiments.steering.saving import Saved, saved
from selfrag.experiments.steering.setting import BASE, Axis, Plan, plan
from selfrag.experiments.steering.study import FileStudy, Progress, Study, study
from selfrag.experiments.steering.trends import Trend, trends

_NEAR_THE_ENDS = "0,0.001,0.01,0.05", "0.95,0.99,0.995,0.999,0.9995,0.9999,1"
AXES = (
    Axis.parse("issup=0,0.5,1,1.5,2,3,5"),
    Axis.parse(f"threshold={_NEAR_THE_ENDS[0]},0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9,{_NEAR_THE_ENDS[1]}"),
)
"""What is varied by default, each alone: Figures 3b and 3c of the paper.

Thresholds lie closer near 0 and 1, because models are often sure: their retrieval rate changes there and nowhere else.
"""


@dataclass(frozen=True, slots=True)
class Sweep:
    """What is swept.

    Attributes:
        base: fields of `Decoding` that differ from the paper's policy, or from that of a published task.
        axes: what is varied.
        grid: every combination of their values, else each axis alone.
        goal: of the best setting; None for none.
        redecode: decode again where the record is not exact.
        beam: of the recorded decode where answers have several segments.
        seed: of halves and intervals.
        answers: also write a run directory for every setting.
        judge: name of who judges citations by entailment, see `metrics.entailment.named`; asks for `answers`.
    """

    base: Mapping[str, Any] = field(default_factory=dict)
    axes: tuple[Axis, ...] = AXES
    grid: bool = False
    goal: Goal | None = Goal()  # noqa: RUF009 - frozen value
    redecode: bool = True
    beam: int | None = None
    seed: int = 0
    answers: bool = False
    judge: str | None = None

    def plans(self, tasks: Sequence[Task]) -> list[Plan]:
        """The settings for each of some tasks, under the same names.

        Raises:
            UserError: a field or a value that `Decoding` refuses.
        """
        bases = [based(self.base, task) for task in tasks]
        merge = all(base == bases[0] for base in bases)
        return [plan(base, self.axes, grid=self.grid, merge=merge) for base in bases]


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep found.

    Attributes:
        plans: the settings, one plan a file.
        studies: one a file.
        comparison: all settings against the base.
        trends: name of the file to the paper's trends.
        reasons: name of the file to what each axis had to act on.
        choices: name of the file to the best setting; missing where no goal was given, or the file lacks its figures.
        saved: what was spared.
    """

    plans: tuple[Plan, ...]
    studies: tuple[FileStudy, ...]
    comparison: Comparison
    trends: Mapping[str, Sequence[Trend]]
    reasons: Mapping[str, Sequence[Reason]]
    choices: Mapping[str, Choice]
    saved: Saved


def based(changes: Mapping[str, Any], task: Task | None = None) -> Decoding:
    """The paper's policy with some fields changed; of a published task that of its protocol.

    Raises:
        UserError: an unknown field, or a value that is refused.
    """
    check_names(changes)
    marked = Given.marked(Path(), "" if task is None else task.preset)
    published = {} if marked.preset is None else marked.preset.settings(marked.protocol)
    return runnable(replace(Decoding(), **{**published, **changes}), changes)


def sweep(
    what: Sweep,
    model: Model,
    source: Source,
    out: Path,
    *,
    retry_failed: bool = False,
    progress: Progress = bars,
) -> Swept:
    """Sweep.

    Args:
        what: settings and goal.
        model: what answers.
        source: what is asked.
        out: folder of the study.
        retry_failed: run items again that failed before.
        progress: told what is decoded.

    Raises:
        UserError: the files, the model or a setting cannot be used, or the folder holds another study.
    """
    files = [measured_by(file, FLUENCY) for file in source.load()]
    plans = what.plans([file.task for file in files])
    if what.goal is not None:
        metrics = {file.name: tuple(metric.name for metric in file.task.metrics) for file in files}
        what.goal.check({file.name: (file.task.headline, metrics[file.name], len(file.items)) for file in files})
    judge = None if what.judge is None else load_entailment(what.judge)  # refused before anything is decoded
    with opened(model) as ready:
        job = Study(
            ready.prompting, ready.identity, out, source.settings(), what.redecode, what.beam, retry_failed=retry_failed
        )
        studies = [
            study(job, file, laid_out.settings, ready.execute, progress)
            for file, laid_out in zip(files, plans, strict=True)
        ]
    if not (what.answers or judge):
        return found_in(what, plans, studies, system_runs(studies))
    folders = write_answers(job, studies, out / "settings")
    if judge is not None:
        judge_settings(studies, folders, judge, out, about())
    return found_in(what, plans, studies, read_runs(folders))


def found_in(what: Sweep, plans: Sequence[Plan], studies: Sequence[FileStudy], runs: Sequence[SystemRun]) -> Swept:
    """Figures of the outcomes.

    Args:
        what: as it was swept.
        plans: its settings, one plan a file.
        studies: one a file.
        runs: the same outcomes as runs, one a setting.
    """
    turned: dict[str, list[Trend]] = {}
    choices: dict[str, Choice] = {}
    for file, laid_out in zip((one.file for one in studies), plans, strict=True):
        scores: dict[str, Scores] = {run.name: run.files[file.name].scores for run in runs}
        headline = file.task.headline
        turned[file.name] = trends(laid_out.series, scores, headline, seed=what.seed, name=file.name)
        if what.goal is not None and what.goal.fits(headline, scores[BASE]):
            choices[file.name] = choose(scores, what.goal, BASE, headline, seed=what.seed, name=file.name)
    found = comparison(studies, runs, what.seed)
    why = {one.file.name: reasons(one, laid_out) for one, laid_out in zip(studies, plans, strict=True)}
    return Swept(tuple(plans), tuple(studies), found, turned, why, choices, saved(studies))


def plain(found: Swept) -> dict[str, Any]:
    """Everything as plain values, ready for JSON, apart from the tables."""
    by_file = list(zip((one.file.name for one in found.studies), found.plans, strict=True))
    return {
        "settings": {name: {one.name: decoding_dict(one.decoding) for one in p.settings} for name, p in by_file},
        "series": {name: {axis: [list(at) for at in row] for axis, row in p.series.items()} for name, p in by_file},
        "trends": {name: [trend.as_dict() for trend in turned] for name, turned in found.trends.items()},
        "reasons": {name: [reason.as_dict() for reason in why] for name, why in found.reasons.items()},
        "choices": {name: choice.as_dict() for name, choice in found.choices.items()},
        "saved": found.saved.as_dict(),
    }
