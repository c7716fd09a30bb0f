"""The pictures of a sweep: figures along an axis with their intervals, and Pareto fronts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from selfrag.evaluation.comparison import ComparisonRow, ComparisonTable
from selfrag.evaluation.metrics.registry import is_count
from selfrag.evaluation.pareto import ParetoPoint, pareto_front
from selfrag.interface import Estimate, printable, require, writing
from selfrag.render.figures import save

Curve: TypeAlias = Sequence[tuple[float, Estimate]]
"""Values along an axis, in order."""
Panel: TypeAlias = tuple[str, float, Mapping[str, Curve]]
"""One pair of axes: what goes up, the factor on it, and its curves by name; an empty one is left out."""
ENDINGS = ("svg", "png")
# of an axis: values nearer to each other cannot be told apart on a linear one
_CLOSE = 0.02


def axis_figure(
    title: str, axis: str, panels: Sequence[Panel], base: float | None
) -> Any:
    """Draw curves along one axis with their 95% intervals, as Figures 3b and 3c; None if there is nothing to draw."""
    shown: list[Panel] = []
    values: set[float] = set()
    for panel in panels:
        curves = panel[2].values()
        if any(len(curve) > 1 for curve in curves):
            shown.append(panel)
            values.update(value for value, _ in chain(*curves))
    if not shown:
        return None
    places = places_of(values)
    figure = _figure((7.5, 2.4 * len(shown)))
    rows = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (label, factor, curves_by_name) in zip(rows, shown, strict=True):
        for name, curve in curves_by_name.items():
            if curve:
                xs = [places[value] for value, _ in curve]
                estimates = [(e.value, e.low, e.high) for _, e in curve]
                means, lows, highs = factor * np.transpose(estimates)
                axes.plot(xs, means, marker="o", markersize=4, label=printable(name))
                axes.fill_between(xs, lows, highs, alpha=0.15, linewidth=0)
        if base in places:
            axes.axvline(
                places[base], color="grey", linewidth=1, linestyle=":", label="base"
            )
        axes.set(ylabel=printable(label))
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.01, 0.5))
    rows[0].set(title=printable(title))
    if any(place != value for value, place in places.items()):
        axis += " (values at equal steps)"
        labels = [f"{value:g}" for value in places]
        rows[-1].set_xticks([*places.values()], labels, rotation=60, fontsize="small")
    rows[-1].set(xlabel=printable(axis))
    return figure


def places_of(values: Collection[float]) -> dict[float, float]:
    """Return where values stand on an axis, in order: at themselves, or at equal steps if some lie too close.

    Thresholds such as 0.999 and 1 are settings of their own, and models that are sure change between them.
    """
    ordered = sorted(values)
    close = any(
        after - before < _CLOSE * (ordered[-1] - ordered[0])
        for before, after in pairwise(ordered)
    )
    if not close:
        return dict(zip(ordered, ordered, strict=True))
    return {value: float(step) for step, value in enumerate(ordered)}


def pareto_figure(
    title: str,
    labels: tuple[str, str],
    points: Mapping[str, ParetoPoint],
    marked: Mapping[str, str],
) -> Any:
    """Draw every setting as a dot between price and gain, and the front that none beats; None for a single dot."""
    if len(set(points.values())) < 2:
        return None
    figure = _figure((5.5, 4.0))
    axes = figure.subplots()
    dots = np.transpose([astuple(point) for point in points.values()])
    axes.scatter(*dots, s=18, color="tab:grey")
    best = np.transpose([astuple(points[name]) for name in pareto_front(points)])
    axes.plot(*best, marker="o", color="tab:blue", label="not beaten")
    for name, text in marked.items():
        if name in points:
            where = astuple(points[name])
            axes.annotate(
                printable(text),
                where,
                xytext=(6, -10),
                textcoords="offset points",
                fontsize="small",
            )
            axes.scatter(*where, s=60, facecolors="none", edgecolors="tab:red")
    axes.set(
        title=printable(title), xlabel=printable(labels[0]), ylabel=printable(labels[1])
    )
    axes.margins(x=0.15, y=0.1)  # room for what is written beside the outer points
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", loc="lower right")
    return figure


def _figure(size: tuple[float, float]) -> Any:
    require("matplotlib", extra="eval")
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout="constrained")


def plots_of(
    table: ComparisonTable,
    series: Mapping[str, Sequence[tuple[Any, str]]],
    base: str,
    chosen: str | None,
    folder: Path,
    *,
    judged: tuple[str, ...],
) -> list[Path]:
    """Draw one file's pictures, each as SVG and PNG: curves along each axis, and what no setting beats."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    rows = {row.system: row for row in table.rows}
    heads = [table.metrics[0]] if not is_count(table.metrics[0]) else []
    figures: dict[str, Any] = {}
    for axis, points in series.items():
        shares = {}
        further = [metric for metric in table.metrics if metric.startswith(judged)]
        for metric in (*heads, "citation_precision", *further, "retrieval_rate"):
            shares[metric] = _curve(rows, points, metric)
        words = {"words": _curve(rows, points, "words")}
        panels = [("percent", 100.0, shares), ("words an answer", 1.0, words)]
        if axis == "threshold":  # Figure 3c
            relative = {
                f"{head}, normalised": normalised(shares[head]) for head in heads
            }
            relative["retrieval_rate"] = shares["retrieval_rate"]
            panels.insert(1, ("percent of threshold 0", 100.0, relative))
        numbers = [
            float(v)
            for v, name in points
            if name == base and isinstance(v, int | float)
        ]
        at = next(iter(numbers), None)
        figures[f"{table.name}-{axis}"] = axis_figure(table.name, axis, panels, at)
    marked = {base: base}
    if chosen is not None:
        marked[chosen] = f"chosen: {chosen}"
    fronts = [("retrieval_rate", "retrieval_rate, %", head, 100.0) for head in heads]
    fronts.append(("words", "words", "citation_precision", 1.0))
    for price, label, gain, factor in fronts:
        dots: dict[str, ParetoPoint] = {}
        for row in table.rows:
            low, high = row.figures.get(price), row.figures.get(gain)
            if low is not None and high is not None:
                dots[row.system] = ParetoPoint(factor * low.value, 100 * high.value)
        figures[f"{table.name}-pareto-{price}"] = pareto_figure(
            table.name, (label, f"{gain}, %"), dots, marked
        )
    paths = []
    for name, figure in figures.items():
        if figure is not None:
            paths += [save(figure, folder / f"{name}.{ending}") for ending in ENDINGS]
    return paths


def normalised(curve: Curve) -> Curve:
    """Return a curve as shares of its value at the lowest place, interval ends likewise; empty where that is 0."""
    lowest = curve[0][1].value if curve else 0.0
    if not lowest > 0:
        return ()
    shares = []
    for at, estimate in curve:
        relative = replace(
            estimate,
            value=estimate.value / lowest,
            low=estimate.low / lowest,
            high=estimate.high / lowest,
        )
        shares.append((at, relative))
    return shares


def _curve(
    rows: Mapping[str, ComparisonRow], series: Sequence[tuple[Any, str]], metric: str
) -> Curve:
    curve = []
    for value, name in series:
        estimate = rows[name].figures.get(metric)
        if estimate is not None and isinstance(value, int | float):
            curve.append((float(value), estimate))
    return sorted(curve, key=lambda point: point[0])
