"""Which pictures a sweep has: curves along each axis, and what no setting beats. Picks figures; draws nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from retrieval.atomic import writing
from selfrag.evaluation.comparison import Row, Table
from selfrag.evaluation.metrics.registry import is_count
from selfrag.evaluation.pareto import Point
from selfrag.experiments.steering.plots import Curve, Panel, plot_axis, plot_pareto
from selfrag.experiments.steering.results import JUDGED
from selfrag.experiments.steering.setting import BASE, Plan, Value
from selfrag.experiments.steering.sweep import Swept

ENDINGS = ("svg", "png")
WORDS, RATE = "words", "retrieval_rate"
PRECISION = "citation_precision"
Series: TypeAlias = Sequence[tuple[Value, str]]


def pictures_of(found: Swept, table: Table, laid_out: Plan, folder: Path) -> list[Path]:
    """Draw one file's pictures, those with something to show.

    Args:
        found: the sweep.
        table: of the file, all settings in it.
        laid_out: the settings for the file.
        folder: for the pictures.

    Returns:
        What was drawn, each as SVG and PNG.

    Raises:
        MissingExtraError: matplotlib is not installed.
        UserError: the folder cannot be written.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    drawn = [path for axis, series in laid_out.series.items() for path in _along(table, axis, series, folder)]
    return [path for path in (*drawn, *_fronts(found, table, folder)) if path is not None]


def _along(table: Table, axis: str, series: Series, folder: Path) -> list[Path | None]:
    rows = {row.system: row for row in table.rows}
    judged = [metric for metric in table.metrics if metric.startswith(JUDGED)]
    heads = [table.metrics[0]] if not is_count(table.metrics[0]) else []
    shares = {metric: _curve(rows, series, metric) for metric in (*heads, PRECISION, *judged, RATE)}
    panels = [Panel("percent", shares), Panel("words an answer", {WORDS: _curve(rows, series, WORDS)}, percent=False)]
    base = next((float(v) for v, name in series if name == BASE and isinstance(v, int | float)), None)
    files = [folder / f"{table.name}-{axis}.{ending}" for ending in ENDINGS]
    return [plot_axis(table.name, axis, panels, path, base=base) for path in files]


def _curve(rows: dict[str, Row], series: Series, metric: str) -> Curve:
    points = [(value, rows[name].figures.get(metric)) for value, name in series]
    return [(float(v), e) for v, e in points if e is not None and isinstance(v, int | float)]


def _fronts(found: Swept, table: Table, folder: Path) -> list[Path | None]:
    """Headline against retrieval rate, and citation precision against length."""
    marked, choice = {BASE: BASE}, found.choices.get(table.name)
    if choice is not None and choice.name is not None:
        marked[choice.name] = f"chosen: {choice.name}"
    drawn = []
    heads = [(RATE, table.metrics[0], 100.0)] if not is_count(table.metrics[0]) else []
    for price, gain, scale in (*heads, (WORDS, PRECISION, 1.0)):
        points = {
            row.system: Point(scale * low.value, 100 * high.value)
            for row in table.rows
            if (low := row.figures.get(price)) is not None and (high := row.figures.get(gain)) is not None
        }
        labels = (f"{price}, %" if scale > 1 else price, f"{gain}, %")
        files = [folder / f"{table.name}-pareto-{price}.{ending}" for ending in ENDINGS]
        drawn += [plot_pareto(table.name, labels, points, path, marked=marked) for path in files]
    return drawn
