"""`Metric`: a named measure of one output, whose figure over items is a sum over a sum. Knows no task."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from selfrag.evaluation.items import Item
from selfrag.evaluation.metrics.output import Output

Part: TypeAlias = tuple[float, float]
"""What one item adds to numerator and denominator. `(value, 1)` makes the figure a mean."""

Measure: TypeAlias = Callable[[Item, Output], Part | None]


@dataclass(frozen=True, slots=True)
class Metric:
    """A measure with its name.

    Attributes:
        name: of the column.
        measure: from item and output to this item's part; None where the metric says nothing about such an item.
        of_failure: part of an item that failed; None leaves it out.
        unit: a share is shown in percent, a count as it is.
        needs: the module that the measure imports and the extra that brings it, if it is an optional one.
    """

    name: str
    measure: Measure
    of_failure: Part | None = (0.0, 1.0)
    unit: Literal["share", "count"] = "share"
    needs: tuple[str, str] | None = None

    def part(self, item: Item, output: Output | None) -> Part | None:
        """This item's part; `output` is None where the item failed.

        Raises:
            ValueError: the measure returned something that is no finite number, or a negative denominator.
        """
        found = self.measure(item, output) if output is not None else self._of_failure(item)
        if found is not None and not (math.isfinite(found[0]) and math.isfinite(found[1]) and found[1] >= 0):
            raise ValueError(f"{self.name} of item {item.id!r} is {found}")
        return found

    def _of_failure(self, item: Item) -> Part | None:
        # An empty output finds out whether the metric applies to the item at all.
        return None if self.measure(item, Output("")) is None else self.of_failure


def ratio(parts: Sequence[Part | None]) -> float | None:
    """The figure over items; None if no item counts."""
    known = [part for part in parts if part is not None]
    total = math.fsum(part[1] for part in known)
    return math.fsum(part[0] for part in known) / total if total else None


def mean_of(score: Callable[[Item, Output], float | None]) -> Measure:
    """A measure whose figure is the mean of `score` over the items where it is defined."""

    def measure(item: Item, output: Output) -> Part | None:
        value = score(item, output)
        return None if value is None else (float(value), 1.0)

    return measure
