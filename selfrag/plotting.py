"""Figures: the points that nothing beats (a Pareto front), and writing a matplotlib figure, whole or not at all."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrieval.atomic import writing
from selfrag.errors import UserError

FORMATS = (".png", ".svg", ".pdf")
_DOTS = 120


def save(figure: Any, out: Path) -> Path:
    """Write a figure.

    Args:
        figure: a `matplotlib.figure.Figure`.
        out: ends in one of `FORMATS`; appears when it is complete.

    Raises:
        UserError: another ending, or `out` cannot be written.
    """
    if out.suffix not in FORMATS:
        raise UserError(f"{out}: a plot ends in {', '.join(FORMATS)}")
    draft = out.with_name(f".{out.name}")
    with writing(out):
        draft.write_bytes(encoded(figure, out.suffix))
        draft.replace(out)
    return out


def encoded(figure: Any, suffix: str) -> bytes:
    """The bytes of a `matplotlib.figure.Figure` as a file of one of `FORMATS`."""
    from matplotlib import rc_context

    # No date and a fixed salt of the ids: a picture changes only if what it shows does. An SVG keeps its text.
    dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(suffix, {})
    stream = io.BytesIO()
    with rc_context({"svg.hashsalt": "selfrag", "svg.fonttype": "none"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a name in another script
        _settle(figure)
        figure.savefig(stream, format=suffix.removeprefix("."), dpi=_DOTS, metadata=dates)
    return stream.getvalue()


def _settle(figure: Any) -> None:
    """Lay the figure out once and round: the solver's last digits differ from time to time."""
    if figure.get_layout_engine() is None:
        return
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        axes.set_position([round(value, 4) for value in axes.get_position().bounds])


@dataclass(frozen=True, slots=True)
class Point:
    """A setting or a system between a price and a gain."""

    price: float  # to be low, such as the retrieval rate
    gain: float  # to be high, such as accuracy

    def beats(self, other: Point) -> bool:
        """At least as good in both, and better in one."""
        return self.price <= other.price and self.gain >= other.gain and self != other


def front(points: Mapping[str, Point]) -> list[str]:
    """Names of the points that none beats, cheapest first; of equal ones each is in."""
    kept = [name for name, one in points.items() if not any(other.beats(one) for other in points.values())]
    return sorted(kept, key=lambda name: points[name].price)
