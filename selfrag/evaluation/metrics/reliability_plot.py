"""The reliability diagram: accuracy against confidence, one curve a system, and how many predictions each bin holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from selfrag.errors import UserError, require
from selfrag.evaluation.metrics.calibration import Bin
from selfrag.plotting import save


def plot_reliability(systems: Mapping[str, Sequence[Bin]], out: Path) -> Path:
    """Draw one diagram.

    Args:
        systems: name of a system -> its bins, from `calibration.reliability`.
        out: a `.png`, `.svg` or `.pdf`; appears when it is complete.

    Raises:
        UserError: there is nothing to draw, or `out` cannot be written.
        MissingExtraError: matplotlib is not installed.
    """
    shown = {name: list(bins) for name, bins in systems.items() if bins}
    if not shown:
        raise UserError("no system has a bin: nothing to draw")
    require("matplotlib", extra="eval")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 6), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    upper.plot((0, 1), (0, 1), color="grey", linewidth=1, linestyle="--", label="calibrated")
    for name, bins in shown.items():
        confidence = [one.confidence for one in bins]
        (line,) = upper.plot(confidence, [one.accuracy for one in bins], marker="o", linewidth=1.5, label=name)
        lower.plot(confidence, [one.count for one in bins], marker="o", linewidth=1, color=line.get_color())
    upper.set(ylabel="share that was right", xlim=(0, 1), ylim=(0, 1))
    lower.set(xlabel="certainty", ylabel="answers", xlim=(0, 1), ylim=(0, None))
    upper.legend(fontsize="small")
    for axes in (upper, lower):
        axes.grid(alpha=0.3)
    return save(figure, out)
