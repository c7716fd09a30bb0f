"""The Pareto front of settings or systems between a price and a gain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import filterfalse


@dataclass(frozen=True, slots=True)
class ParetoPoint:
    """A setting or a system between a price and a gain."""

    price: float  # to be low, such as the retrieval rate
    gain: float  # to be high, such as accuracy

    def beats(self, rival: ParetoPoint) -> bool:
        """Return whether it is at least as good in both, and better in one."""
        return self.price <= rival.price and self.gain >= rival.gain and self != rival


def pareto_front(points: Mapping[str, ParetoPoint]) -> list[str]:
    """Return the names of the points that none beats, cheapest first; of equal ones each is in."""

    def is_beaten(name: str) -> bool:
        return any(rival.beats(points[name]) for rival in points.values())

    return sorted(filterfalse(is_beaten, points), key=lambda name: points[name].price)
