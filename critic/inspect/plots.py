"""Plots as inline SVG: stacked shares of labels, and bars of counts. Pure text; colours come from the page's style.

Every plot says in words what it shows (`role="img"` with a name), and stands beside a table with its numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from selfrag.pages import inert, slug, visible
from selfrag.reflection.labels import LabelSet

WIDTH, NAMES, ROW, BAR = 720, 190, 26, 18
"""Pixels: width of a plot, of its column of names, height of a row and of a bar."""

_COLUMN, _HEIGHT = 60, 150


def shares(name: str, group: LabelSet, rows: Sequence[tuple[str, Sequence[int]]]) -> str:
    """One bar of full width a row, divided among the labels of a group.

    Args:
        name: of the plot.
        group: its labels give the colours.
        rows: name and number of each label in the group's order; rows without any say so.
    """
    lines, spoken = [], []
    for position, (title, counts) in enumerate(rows):
        top, total = position * ROW, sum(counts)
        lines.append(_text(NAMES - 8, top + 14, visible(title, 26), anchor="end"))
        if not total:
            lines.append(_text(NAMES, top + 14, "none"))
            continue
        left = float(NAMES)
        parts = []
        for label, count in zip(group, counts, strict=True):
            width = (WIDTH - NAMES) * count / total
            if count:
                share = f"{label.name} {count:,} ({count / total:.1%})"
                parts.append(share)
                lines.append(
                    f'<rect class="bar b-{slug(label.token)}" x="{left:.1f}" y="{top}" width="{width:.1f}"'
                    f' height="{BAR}"><title>{inert(f"{visible(title, 60)}: {share}")}</title></rect>'
                )
            if width > 48:
                lines.append(_text(left + width / 2, top + 13, f"{count / total:.0%}", anchor="middle", kind="on"))
            left += width
        spoken.append(f"{visible(title, 60)}: {', '.join(parts)}")
    return _svg(f"{name}. {'; '.join(spoken) or 'none'}", WIDTH, max(1, len(rows)) * ROW, "".join(lines))


def counts(name: str, bars: Mapping[str, int]) -> str:
    """A column for each name, its number above it.

    Args:
        name: of the plot.
        bars: name -> number, at least one.
    """
    highest = max((*bars.values(), 1))
    lines, spoken = [], []
    for position, (title, count) in enumerate(bars.items()):
        left, height = position * _COLUMN, _HEIGHT * count / highest
        middle = left + _COLUMN / 2
        lines.append(
            f'<rect class="bar plain" x="{left + 6}" y="{20 + _HEIGHT - height:.1f}" width="{_COLUMN - 12}"'
            f' height="{height:.1f}"/>'
        )
        lines.append(_text(middle, 14 + _HEIGHT - height, f"{count:,}", anchor="middle"))
        lines.append(_text(middle, 36 + _HEIGHT, visible(title, 10), anchor="middle"))
        spoken.append(f"{visible(title, 30)}: {count:,}")
    return _svg(f"{name}. {'; '.join(spoken)}", len(bars) * _COLUMN, _HEIGHT + 44, "".join(lines))


def _svg(spoken: str, width: int, height: int, inside: str) -> str:
    return (
        f'<svg role="img" aria-label="{inert(spoken)}" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f">{inside}</svg>"
    )


def _text(x: float, y: float, text: str, anchor: str = "start", kind: str = "ink") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{inert(text)}</text>'
