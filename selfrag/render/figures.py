"""Figures of matplotlib as files whose bytes change only if what they show does."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

from selfrag.common.atomic import writing
from selfrag.common.errors import UserError

FORMATS = (".png", ".svg", ".pdf")
_DOTS = 120


def save(figure: Any, out: Path) -> Path:
    """Write a `matplotlib.figure.Figure` to a file that ends in one of `FORMATS`; it appears when it is complete."""
    if out.suffix not in FORMATS:
        raise UserError(f"{out}: a plot ends in {', '.join(FORMATS)}")
    draft = out.with_name(f".{out.name}")
    with writing(out):
        draft.write_bytes(encoded(figure, out.suffix))
        draft.replace(out)
    return out


def encoded(figure: Any, suffix: str) -> bytes:
    """Return the bytes of a `matplotlib.figure.Figure` as a file of one of `FORMATS`."""
    from matplotlib import rc_context

    # No date and a fixed salt of the ids: a picture changes only if what it shows does. An SVG keeps its text.
    dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(suffix, {})
    stream = io.BytesIO()
    with (
        rc_context({"svg.hashsalt": "selfrag", "svg.fonttype": "none"}),
        warnings.catch_warnings(),
    ):
        # a name in another script
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        _settle(figure)
        figure.savefig(
            stream, format=suffix.removeprefix("."), dpi=_DOTS, metadata=dates
        )
    return stream.getvalue()


def _settle(figure: Any) -> None:
    """Lay the figure out once and round: the solver's last digits differ from time to time."""
    if figure.get_layout_engine() is None:
        return
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        axes.set_position([round(value, 4) for value in axes.get_position().bounds])
