"""The Pareto front of settings or systems between a price and a gain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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
