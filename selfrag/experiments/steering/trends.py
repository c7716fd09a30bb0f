"""What the paper found when it turned a knob, and whether it is found here: paired differences between an axis' ends.

Source: section 5.2 and Figures 3b and 3c of the paper. Pure numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from selfrag.evaluation.comparison import bootstrap
from selfrag.evaluation.intervals import Estimate, counted
from selfrag.evaluation.metrics.registry import is_count, scale_of
from selfrag.experiments.steering.choosing import HEADLINE, Scores
from selfrag.experiments.steering.setting import Value, label

Direction = Literal["rises", "falls"]
Verdict = Literal["as in the paper", "against the paper", "not told apart", "undefined"]

FOUND: tuple[tuple[str, str, Direction], ...] = (
    ("issup", "citation_precision", "rises"),
    ("issup", "words", "falls"),
    ("threshold", "retrieval_rate", "falls"),
    ("threshold", HEADLINE, "falls"),
)
"""Axis, figure, and what it does in the paper as the axis grows. Figure 3b shows MAUVE falling, explained by length."""


def verdict(found: Estimate | None, expected: Direction) -> Verdict:
    """What a difference says about a direction: nothing where its interval holds 0."""
    if found is None:
        return "undefined"
    if found.low > 0 or found.high < 0:
        return "as in the paper" if (found.value > 0) == (expected == "rises") else "against the paper"
    return "not told apart"


@dataclass(frozen=True, slots=True)
class Trend:
    """One knob turned from one end to the other.

    Attributes:
        axis: what was turned.
        low: its least value.
        high: its greatest value.
        metric: what was watched.
        expected: what it does in the paper.
        difference: at the greatest value minus at the least, paired; None where the metric says nothing.
    """

    axis: str
    low: float
    high: float
    metric: str
    expected: Direction
    difference: Estimate | None

    @property
    def verdict(self) -> Verdict:
        """Against the paper only if the interval of the difference does not hold 0."""
        return verdict(self.difference, self.expected)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        own = {name: getattr(self, name) for name in ("axis", "low", "high", "metric", "expected", "verdict")}
        return own | {"difference": None if self.difference is None else self.difference.as_dict()}

    def __str__(self) -> str:
        ends = f"{self.axis} {label(self.low)} to {label(self.high)}"
        if self.difference is None:
            return f"{ends}: {self.metric} is undefined; in the paper it {self.expected}"
        moved = counted(self.difference, scale=scale_of(self.metric))
        sign = "+" if self.difference.value > 0 else ""
        return f"{ends}: {self.metric} {sign}{moved}; in the paper it {self.expected}: {self.verdict}"


def trends(
    series: Mapping[str, Sequence[tuple[Value, str]]],
    settings: Mapping[str, Scores],
    headline: str,
    *,
    seed: int = 0,
    name: str = "",
) -> list[Trend]:
    """The paper's trends for the axes that were varied.

    Args:
        series: axis to values with the names of their settings, see `setting.Plan`.
        settings: name to scores.
        headline: the metric that the task is averaged by.
        seed: of the intervals.
        name: of the file, see `compare_bootstrap`.
    """
    found = []
    for axis, metric, expected in FOUND:
        points = series.get(axis, ())
        ends = sorted((float(value), one) for value, one in points if isinstance(value, int | float))
        if len(ends) < 2 or (metric == HEADLINE and is_count(headline)):  # words are no accuracy
            continue
        (low, first), (high, last) = ends[0], ends[-1]
        wanted = headline if metric == HEADLINE else metric
        # A judge's figure of the same kind carries the judge's name behind it.
        watched = [one for one in settings[first] if one == wanted or one.startswith(f"{wanted}_nli (")]
        for one in watched:
            before, after = bootstrap([settings[end][one] for end in (first, last)], name=name, seed=seed)
            difference = None if before is None or after is None else (after - before).estimate
            found.append(Trend(axis, low, high, one, expected, difference))
    return found
