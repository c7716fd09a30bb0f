"""A sweep: weights and thresholds over files, the best setting under a constraint, tables and pictures.

Everything lies in one folder; started again, it continues, and nothing is decoded twice.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

from selfrag.common.checks import parse_value
from selfrag.decoding.policy import check_names
from selfrag.decoding.trace import decoding_dict
from selfrag.evaluation.comparison import Comparison, SystemRun, compare
from selfrag.evaluation.judging import Record, judge_citations, write_judged
from selfrag.evaluation.metrics.answers import FLUENCY
from selfrag.evaluation.metrics.entailment import remembered
from selfrag.evaluation.metrics.registry import Metric
from selfrag.evaluation.presets import Given
from selfrag.evaluation.records import PACKAGES
from selfrag.evaluation.runner import Model, Source
from selfrag.evaluation.systems import PROTOCOL, runnable
from selfrag.evaluation.tables import JUDGED, brief, csv_text, markdown
from selfrag.evaluation.task import SET_BY_TASK
from selfrag.evaluation.task_files import TaskFile
from selfrag.experiments.goals import ChosenSetting, Goal, choose
from selfrag.experiments.studies import (
    FileStudy,
    Setting,
    balance,
    opened,
    spared,
    study,
    write_answers,
)
from selfrag.interface import (
    Decoding,
    Judge,
    Task,
    UserError,
    commit,
    count_of,
    open_judge,
    printable,
    read_runs,
    versions,
    write_json,
    write_text,
    writing,
)
from selfrag.reflection.weights import TOKEN_TERMS
from selfrag.render.tables import escape

BASE = "base"
"""Name of the policy that the axes change."""
MOST_VALUES = 1000
"""Of one axis; more are a slip of the pen."""
_STRUCTURED = frozenset(
    {"weights", "require", "forbid", "judges", "survivors", "guardrails", "abstention"}
)

Value: TypeAlias = float | int | bool | str | None


@dataclass(frozen=True, slots=True)
class Axis:
    """A weight or a field of `Decoding` with the values it takes, such as `issup=0,0.5,1` or `threshold=0:1:0.1`."""

    name: str  # `isrel`, `issup`, `isuse`, or a field of `Decoding` such as `threshold` or `passages`
    values: tuple[Value, ...]  # at least one, all different

    def __post_init__(self) -> None:
        names = [item.name for item in fields(Decoding)]
        fixed = {*_STRUCTURED, *SET_BY_TASK}
        known = (*TOKEN_TERMS, *(name for name in names if name not in fixed))
        if self.name not in known:
            raise UserError(f"axis {self.name!r}: known are {', '.join(known)}")
        if not self.values or len(set(map(repr, self.values))) != len(self.values):
            raise UserError(f"axis {self.name}: give at least one value, and each once")

    @classmethod
    def parse(cls, text: str) -> Axis:
        """Read `issup=0,0.5,1`, `threshold=0:1:0.1` (ends included) or `mode=always,never`."""
        name, equals, values = text.partition("=")
        if not equals or not values.strip():
            raise UserError(
                f"axis {text!r}: write NAME=VALUE,VALUE or NAME=FIRST:LAST:STEP, such as issup=0,0.5,1"
            )
        name = name.strip()
        if ":" in values:
            return cls(name, _span(text, values))
        return cls(name, tuple(map(_value, map(str.strip, values.split(",")))))

    @property
    def setting(self) -> str:
        """Return the field of `Decoding` that changes, a weight with `weights.` before it."""
        return f"weights.{self.name}" if self.name in TOKEN_TERMS else self.name

    def apply(self, decoding: Decoding, value: Value) -> Decoding:
        """Return the policy with this axis at `value`."""
        changed: dict[str, Any] = {self.name: value}
        if self.name not in TOKEN_TERMS:
            return replace(decoding, **changed)
        if isinstance(value, str | bool) or value is None:
            raise UserError(f"axis {self.name}: {value!r} is not a number")
        changed = {self.name: float(value)}
        return replace(decoding, weights=replace(decoding.weights, **changed))


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of a sweep."""

    settings: tuple[Setting, ...]  # the base first; equal policies once
    # axis to its values in order, each with the name of its setting, for curves; empty for a grid
    series: Mapping[str, tuple[tuple[Value, str], ...]] = field(default_factory=dict)


def plan(
    base: Decoding, axes: Sequence[Axis], *, grid: bool = False, merge: bool = True
) -> Plan:
    """Plan each axis alone, or every combination (`grid`); equal policies are one setting unless `merge` is off."""
    names = [axis.name for axis in axes]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"axis {name} is given twice")
    settings: list[Setting] = [Setting(BASE, base)]
    if grid:
        for values in product(*(axis.values for axis in axes)):
            decoding, parts = base, []
            for axis, value in zip(axes, values, strict=True):
                decoding = axis.apply(decoding, value)
                parts.append(f"{axis.name}={label(value)}")
            _add(settings, ",".join(parts), decoding, merge=merge)
        return Plan(tuple(settings))
    series = {}
    for axis in axes:
        points = []
        for value in axis.values:
            name, decoding = f"{axis.name}={label(value)}", axis.apply(base, value)
            points.append((value, _add(settings, name, decoding, merge=merge)))
        series[axis.name] = tuple(points)
    return Plan(tuple(settings), series)


def label(value: Value) -> str:
    """Return a value as it stands in names: `0.5`, `2`, `none`."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else f"{value:g}"


def _add(settings: list[Setting], name: str, decoding: Decoding, *, merge: bool) -> str:
    """Return the name of the setting with this policy, which is added if it is new."""
    for setting in settings:
        if merge and setting.decoding == decoding:
            return setting.name
    settings.append(Setting(name, decoding))
    return name


def _span(text: str, values: str) -> tuple[Value, ...]:
    try:
        first, last, step = (Decimal(part.strip()) for part in values.split(":"))
        count = int((last - first) / step) + 1 if step > 0 else 0
    except (InvalidOperation, ValueError, OverflowError):
        raise UserError(
            f"axis {text!r}: write the span as FIRST:LAST:STEP, such as 0:1:0.1"
        ) from None
    if not 0 < count <= MOST_VALUES:
        raise UserError(
            f"axis {text!r}: a span of {count_of(count, 'values')}; give 1 to {MOST_VALUES}, the step above 0"
        )
    return tuple(float(first + i * step) for i in range(count))


def _value(text: str) -> Value:
    value = parse_value(text)
    return value if value is None or isinstance(value, int | float) else text


_NEAR_THE_ENDS = "0,0.001,0.01,0.05", "0.95,0.99,0.995,0.999,0.9995,0.9999,1"
AXES = (
    Axis.parse("issup=0,0.5,1,1.5,2,3,5"),
    Axis.parse(
        f"threshold={_NEAR_THE_ENDS[0]},0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9,{_NEAR_THE_ENDS[1]}"
    ),
)
"""What is varied by default, each alone: Figures 3b and 3c of the paper.

Thresholds lie closer near 0 and 1, because models are often sure: their retrieval rate changes there and nowhere else.
"""


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep found."""

    plans: tuple[Plan, ...]  # the settings, one plan a file
    studies: tuple[FileStudy, ...]  # one a file
    comparison: Comparison  # all settings against the base
    # name of the file to the best setting; missing where no goal was given, or the file lacks its figures
    choices: Mapping[str, ChosenSetting]


def based(changes: Mapping[str, Any], task: Task | None = None) -> Decoding:
    """Return the paper's policy with some fields changed; of a published task that of its protocol."""
    check_names(changes)
    marked = Given.marked(Path(), "" if task is None else task.preset)
    published = {} if marked.preset is None else marked.preset.settings(marked.protocol)
    base = Decoding(without_evidence=PROTOCOL)
    return runnable(replace(base, **{**published, **changes}), changes)


def sweep(
    base: Mapping[str, Any],
    model: Model,
    source: Source,
    out: Path,
    *,
    axes: Sequence[Axis] = AXES,
    grid: bool = False,
    goal: Goal | None = None,
    seed: int = 0,
    judge_name: str | None = None,
    retry_failed: bool = False,
) -> Swept:
    """Sweep; what cannot be swept is refused before anything is decoded.

    Args:
        base: fields of `Decoding` that differ from the paper's policy, or from that of a published task.
        model: what decodes.
        source: files.
        out: folder of the study.
        axes: what is varied.
        grid: every combination of their values, else each axis alone.
        goal: what the best setting is chosen by; None chooses none.
        seed: of halves and intervals.
        judge_name: who judges citations, see `open_judge`.
        retry_failed: run items again that failed before.
    """
    files = [measured_by(file, FLUENCY) for file in source.load()]
    bases = [based(base, file.task) for file in files]
    merge = all(policy == bases[0] for policy in bases)
    plans = [plan(policy, axes, grid=grid, merge=merge) for policy in bases]
    if goal is not None:
        described = {}
        for file in files:
            metrics = [metric.name for metric in file.task.metrics]
            described[file.name] = (file.task.headline, metrics, len(file.items))
        goal.check(described)
    judge = None if judge_name is None else open_judge(judge_name)
    with opened(model, out, source.settings(), retry_failed=retry_failed) as job:
        studies = []
        for file, file_plan in zip(files, plans, strict=True):
            studies.append(study(job, file, file_plan.settings))
        folders = write_answers(job, studies, out / "settings")
    if judge is not None:
        judge_settings(studies, folders, judge, out)
    runs = read_runs(folders, [file.name for file in files])
    choices: dict[str, ChosenSetting] = {}
    for file in files:
        scores = {run.name: run.files[file.name].scores for run in runs}
        headline = file.task.headline
        if goal is not None and goal.fits(headline, scores[BASE]):
            choices[file.name] = choose(
                scores, goal, BASE, headline, seed=seed, name=file.name
            )
    compared = comparison(studies, runs, seed)
    return Swept(tuple(plans), tuple(studies), compared, choices)


def judge_settings(
    studies: Sequence[FileStudy], folders: Sequence[Path], judge: Judge, out: Path
) -> None:
    """Write what a judge of citations says into the run directories of the settings; verdicts are kept in `out`."""
    verdicts = remembered(judge, out)
    for of_file in studies:
        file = of_file.file
        for setting, folder in zip(of_file.settings, folders, strict=True):
            records = []
            outcomes = of_file.outcomes[setting.name]
            for item, outcome in zip(file.items, outcomes, strict=True):
                passages = {passage.id: passage for passage in item.passages}
                records.append(Record(item, outcome.written, passages))
            judged = judge_citations(records, verdicts, kind=file.task.kind)
            write_judged(folder, file.name, judged)


def measured_by(file: TaskFile, metrics: Sequence[Metric]) -> TaskFile:
    """Return the file with further metrics of written answers; those that its task has already are not repeated."""
    if file.items[0].options:
        return file
    known = {metric.name for metric in file.task.metrics}
    added = tuple(metric for metric in metrics if metric.name not in known)
    return replace(file, task=replace(file.task, metrics=(*file.task.metrics, *added)))


def comparison(
    studies: Sequence[FileStudy], runs: Sequence[SystemRun], seed: int = 0
) -> Comparison:
    """Compare all settings with the base, paired."""
    return compare(runs, against=studies[0].settings[0].name, seed=seed)


def write_sweep(swept: Swept, out: Path, about: Mapping[str, Any]) -> list[Path]:
    """Write `sweep.md`, `sweep.csv`, `sweep.json` and pictures, and say which."""
    from selfrag.experiments.sweep_plots import plots_of

    pictures = []
    for table, laid_out in zip(swept.comparison.tables, swept.plans, strict=True):
        choice = swept.choices.get(table.name)
        best = None if choice is None else choice.name
        pictures += plots_of(
            table, laid_out.series, BASE, best, out / "plots", judged=JUDGED
        )
    base = f"Model {model_name(about)}, {bases(swept.studies)}."
    text = [
        f"# Sweep\n\n{escape(base)} {spared(swept.studies)}.\n",
        markdown(brief(swept.comparison)),
    ]
    text += [*sentences(swept), ""]
    for path in pictures:
        if path.suffix == ".svg":
            text.append(f"![{path.stem}](plots/{path.name})\n")
    series = {}
    for of_file, laid_out in zip(swept.studies, swept.plans, strict=True):
        series[of_file.file.name] = laid_out.series
    values = {
        **record_of(swept.studies),
        "series": series,
        "choices": {name: choice.as_dict() for name, choice in swept.choices.items()},
        **about,
    }
    page = "\n".join(text)
    tables = write_tables("sweep", page, csv_text(swept.comparison), values, out)
    return [*tables, *pictures]


def write_tables(
    name: str, text: str, rows: str, values: Mapping[str, Any], out: Path
) -> list[Path]:
    """Write `NAME.md`, `NAME.csv` and `NAME.json`; the last with where the figures came from."""
    paths = [out / f"{name}.{ending}" for ending in ("md", "csv", "json")]
    if paths[1].exists() and paths[1].read_text(encoding="utf-8") != rows:
        sys.stderr.write(f"replaced the tables {name} in {out}, which held others\n")
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        write_text(paths[0], printable(text))
        write_text(paths[1], rows)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        write_json(
            paths[2],
            {"time": now, "commit": commit(), "versions": versions(PACKAGES), **values},
        )
    return paths


def model_name(about: Mapping[str, Any]) -> str:
    """Return the model as a page calls it: of a folder of this machine the last part, since pages are published."""
    model = str(about.get("model", "unknown"))
    return Path(model).name if Path(model).is_absolute() else model


def described(decoding: Decoding) -> str:
    """Return what of a policy is not the paper's, in one line."""
    usual = decoding_dict(Decoding(without_evidence=PROTOCOL))
    parts = [f"weights {decoding.weights}"]
    for name, value in decoding_dict(decoding).items():
        if name != "weights" and value != usual.get(name):
            parts.append(f"{name}={value}")
    return ", ".join(parts)


def bases(studies: Sequence[FileStudy]) -> str:
    """Return the first policy of every file, in one line; once if it is the same for all."""
    policies = {}
    for of_file in studies:
        policies[of_file.file.name] = described(of_file.settings[0].decoding)
    if len(set(policies.values())) == 1:
        return f"base policy {next(iter(policies.values()))}"
    lines = [f"{name}: {policy}" for name, policy in policies.items()]
    return "base policies " + "; ".join(lines)


def record_of(studies: Sequence[FileStudy]) -> dict[str, Any]:
    """Return files, policies and what was saved of a study, for its JSON."""
    files, settings = {}, {}
    for of_file in studies:
        file = of_file.file
        files[file.name] = {
            "sha256": file.sha256,
            "rows": file.rows,
            "items": len(file.items),
        }
        settings[file.name] = {
            setting.name: decoding_dict(setting.decoding)
            for setting in of_file.settings
        }
    return {"files": files, "settings": settings, "saved": balance(studies)}


def sentences(swept: Swept) -> list[str]:
    """Return the chosen settings, a line each; shares in percent."""
    lines = []
    for of_file in swept.studies if swept.choices else ():
        name = of_file.file.name
        if name in swept.choices:
            lines.append(f"- {name}, {swept.choices[name]}")
        else:
            lines.append(f"- {name} has no such figure as the goal asks for")
    return lines
