"""The benchmark's result as Markdown tables."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from selfrag.evaluation.markdown_table import aligned
from selfrag.experiments.speed.compare import Ratio, Series
from selfrag.experiments.speed.growth import Cell
from selfrag.experiments.speed.results import FormReport, Report


def markdown(report: Report) -> str:
    """The whole report."""
    parts = [_setting(report), *(_form(form) for form in report.forms), _rescoring(report), _growth(report.growth)]
    return "\n\n".join(part for part in parts if part)


def _setting(report: Report) -> str:
    where, engine = report.machine, report.engine
    packages = ", ".join(f"{name} {version}" for name, version in where["packages"].items())
    return "\n".join(
        (
            f"Machine: {where['processor']}, {where['cores']} cores, {where['memory_gib']} GiB, {where['system']},"
            f" GPU {where['gpu'] or 'none'}; {where['threads']} torch threads",
            f"Versions: Python {where['python']}, {packages}",
            "Engine: " + ", ".join(f"{name} {value}" for name, value in engine.items()),
            f"Work: {report.sizes.passages} passages a question; greedy; mode always; tokens are per request;"
            " prefix cache emptied before each run; times are medians",
        )
    )


def _form(form: FormReport) -> str:
    over = form.over_floor
    rows = [
        _row(form.ours, _ratio(over) + " x floor"),
        _row(form.floor, ""),
        *(_row(series, _rival(form, series.name)) for series in form.rivals),
        *(_row(series, _ablation(form, series.name)) for series in form.ablations),
    ]
    head = ("run", "questions", "questions/s", "seconds", "requests", "prompt", "cached", "new tokens", "comparison")
    return f"### {form.form} form, {form.segments:.1f} segments an answer\n\n" + aligned(head, rows)


def _rival(form: FormReport, name: str) -> str:
    if name not in form.faster:
        return "same questions as the rivals"
    same, all_of_ours = form.faster[name]
    return f"ours is {_ratio(same)} times as fast; {all_of_ours:.1f} times with all questions"


def _ablation(form: FormReport, name: str) -> str:
    if name not in form.slower:
        return "same questions as the ablations"
    return f"takes {_ratio(form.slower[name])} times as long; same text {form.same_text[name]:.0%}"


def _row(series: Series, comparison: str) -> tuple[str, ...]:
    work, count = series.work, max(1, series.work.requests)
    return (
        series.name,
        str(series.questions),
        f"{series.speed:.3g}",
        f"{median(series.seconds):.2f} ({min(series.seconds):.2f}-{max(series.seconds):.2f})",
        str(work.requests),
        f"{work.prompt_tokens / count:.0f}",
        f"{work.cached_tokens / count:.0f}",
        f"{work.generated_tokens / count:.1f}",
        comparison,
    )


def _ratio(ratio: Ratio) -> str:
    return f"{ratio.median:.2f} ({ratio.low:.2f}-{ratio.high:.2f})"


def _rescoring(report: Report) -> str:
    found = report.rescoring
    return (
        f"### Rescoring\n\n{found.answers} recorded answers ({found.recorded} distinct, {found.nodes} candidates) under"
        f" {found.settings} weight settings, without the model: {found.seconds:.2f} s"
    )


def _growth(cells: Sequence[Cell]) -> str:
    if not cells:
        return ""
    rows = [
        (
            str(cell.questions),
            str(cell.passages),
            f"{cell.seconds:.1f}",
            f"{cell.questions_a_second:.2f}",
            f"{cell.questions_a_second * cell.passages:.1f}",
            f"{cell.tokens / cell.seconds:,.0f}",
            f"{cell.loaded_gib:.2f}",
            f"{cell.peak_gib:.2f}",
        )
        for cell in cells
    ]
    head = ("questions", "passages", "seconds", "questions/s", "passages/s", "tokens/s", "GiB loaded", "GiB peak")
    return "### Growth (short form, one process each)\n\n" + aligned(head, rows)
