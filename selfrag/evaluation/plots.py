"""The headline of every system with its interval, and against what it cost: matplotlib figures. Computes no figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from selfrag.errors import UserError, require
from selfrag.evaluation.comparison import Comparison, Row, Table
from selfrag.evaluation.intervals import Estimate
from selfrag.evaluation.metrics.registry import is_count, scale_of
from selfrag.evaluation.tables import tables, title
from selfrag.pages import Point, front, visible

TOKENS = ("prompt_tokens", "generated_tokens")
_WIDTH, _HEADING, _LINE = 12.0, 1.4, 0.32  # inches: of a row of panels, of its titles and axes, of a system
_CLOSE = 0.06  # of a panel: nearer points share a label


def draw(comparison: Comparison) -> Any:
    """All tables of a comparison, one below the other.

    Raises:
        UserError: there is nothing to draw.
        MissingExtraError: matplotlib is not installed.
    """
    return draw_tables(tables(comparison))


def draw_tables(shown: Sequence[Table]) -> Any:
    """A row of panels for each table: headline with interval, against tokens where there are any, against retrieval.

    Returns:
        A `matplotlib.figure.Figure`; `selfrag.pages.save` writes it.

    Raises:
        UserError: there is nothing to draw.
        MissingExtraError: matplotlib is not installed.
    """
    if not shown or not any(row.figures[table.metrics[0]] for table in shown for row in table.rows):
        raise UserError("no system has a headline figure: nothing to draw")
    require("matplotlib", extra="eval")
    from matplotlib.figure import Figure

    heights = [_HEADING + _LINE * max(4, len(table.rows)) for table in shown]
    figure = Figure(figsize=(_WIDTH, sum(heights)), layout="constrained")
    counted = any(_tokens(row) is not None for table in shown for row in table.rows)  # an average has none
    widths = (1.3, 1, 1) if counted else (1.3, 1)
    panels = figure.subplots(len(shown), len(widths), squeeze=False, height_ratios=heights, width_ratios=widths)
    for table, (scores, *tokens, retrieval) in zip(shown, panels, strict=True):
        _scores(scores, table)
        for axes in tokens:
            _against(axes, table, {row.system: _tokens(row) for row in table.rows}, "tokens an item")
        rates = {row.system: _percent(row.figures.get("retrieval_rate")) for row in table.rows}
        _against(retrieval, table, rates, "items with retrieval, %")
        retrieval.set_xlim(-8, 112)  # the ends are figures of their own, and have a number beside them
    return figure


def spoken(table: Table) -> str:
    """The picture of one table in words, for readers who do not see it."""
    head = table.metrics[0]
    parts = [f"{row.system} {_say(row.figures[head], head)}" for row in table.rows]
    return f"{title(table)}: {head} of {'; '.join(parts)}; the same against tokens and against the retrieval rate"


def _scores(axes: Any, table: Table) -> None:
    head = table.metrics[0]
    names = [f"{place}  {_name(row.system)}" for place, row in enumerate(table.rows, 1)]
    for place, row in enumerate(table.rows):
        if (found := row.figures[head]) is not None:
            value, low, high = _ends(found, head)
            axes.errorbar(
                value, place, xerr=[[value - low], [high - value]], fmt="o", color=f"C{place % 10}", capsize=3
            )
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlabel(f"{_label(head)} with 95% interval", parse_math=False)
    axes.set_title(_name(title(table), 60), parse_math=False, loc="left", fontsize="medium")
    axes.grid(axis="x", alpha=0.3)


def _against(axes: Any, table: Table, costs: dict[str, float | None], what: str) -> None:
    head = table.metrics[0]
    points = [
        (cost, *_ends(found, head), place)
        for place, row in enumerate(table.rows)
        if (cost := costs[row.system]) is not None and (found := row.figures[head]) is not None
    ]
    for cost, value, low, high, place in points:
        axes.errorbar(cost, value, yerr=[[value - low], [high - value]], fmt="o", color=f"C{place % 10}", capsize=3)
    by_place = {str(place): Point(cost, value) for cost, value, *_, place in points}
    best = [by_place[name] for name in front(by_place)]
    if len(best) > 1:
        prices, gains = [point.price for point in best], [point.gain for point in best]
        axes.plot(prices, gains, color="grey", linewidth=1, linestyle="--", zorder=0)
    if not points:
        axes.set_axis_off()
        return
    for spot, label in _numbers([(cost, value, place + 1) for cost, value, *_, place in points]):
        axes.annotate(label, spot, xytext=(4, 3), textcoords="offset points", fontsize=8)
    axes.margins(x=0.2, y=0.15)
    axes.set_xlabel(what)
    axes.set_ylabel(_label(head), parse_math=False)
    axes.grid(alpha=0.3)


def _numbers(points: Sequence[tuple[float, float, int]]) -> list[tuple[tuple[float, float], str]]:
    """Where to write which numbers; those of points that lie together are written as one label."""
    spans = [max(one[i] for one in points) - min(one[i] for one in points) or 1.0 for i in (0, 1)]
    groups: list[list[tuple[float, float, int]]] = []
    for point in points:
        near = (g for g in groups if all(abs(g[0][i] - point[i]) < _CLOSE * spans[i] for i in (0, 1)))
        if (group := next(near, None)) is None:
            groups.append(group := [])
        group.append(point)
    return [((group[0][0], group[0][1]), ", ".join(str(number) for *_, number in group)) for group in groups]


def _name(text: str, longest: int = 32) -> str:
    """A name of others in one short line."""
    shown = " ".join(visible(text, longest).split())
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}\N{HORIZONTAL ELLIPSIS}"


def _tokens(row: Row) -> float | None:
    found = [row.figures.get(name) for name in TOKENS]
    known = [one.value for one in found if one is not None]
    return sum(known) if len(known) == len(TOKENS) else None


def _percent(found: Estimate | None) -> float | None:
    return None if found is None else 100 * found.value


def _label(head: str) -> str:
    return _name(head) if is_count(head) else f"{_name(head)}, %"


def _ends(found: Estimate, head: str) -> tuple[float, float, float]:
    """Value and ends, of a share in percent; a figure without an interval is its own."""
    ends = (found.value, found.low, found.high)
    value, low, high = (scale_of(head) * (found.value if end != end else end) for end in ends)
    return value, min(value, low), max(value, high)


def _say(found: Estimate | None, head: str) -> str:
    if found is None:
        return "not known"
    value, low, high = _ends(found, head)
    return f"{value:.1f} [{low:.1f}, {high:.1f}]"
