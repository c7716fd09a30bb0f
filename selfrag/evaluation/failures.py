"""Items that have no result, with their reasons: one account for runs, judges, studies, intrinsics and critics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from selfrag.common.untrusted import printable

FAILED = "failed"
"""In place of a figure where no item has a result."""
SHOWN = 3
"""Reasons that are told, the most frequent first."""
_LONGEST = 300


@dataclass(frozen=True, slots=True)
class Failures:
    """How many items of one system have no result."""

    system: str  # whose results they are
    of: str  # file, figure or part that was measured
    items: int
    reasons: Mapping[str, int]  # reason to the number of items, the most frequent first

    @property
    def failed(self) -> int:
        """Return the number of items without a result."""
        return sum(self.reasons.values())

    @property
    def is_total(self) -> bool:
        """Return whether no item has a result, so that there is no figure."""
        return self.failed >= self.items > 0

    def __str__(self) -> str:
        """Return one line with the number of failed items and the first reasons."""
        told = list(self.reasons.items())[:SHOWN]
        reasons = [f"{reason} ({count})" for reason, count in told]
        if len(self.reasons) > SHOWN:
            reasons.append(f"{len(self.reasons) - SHOWN} further reasons")
        listed = "; ".join(reasons)
        return (
            f"{self.system}, {self.of}: {self.failed} of {self.items} failed: {listed}"
        )


def count_reasons(errors: Iterable[object]) -> dict[str, int]:
    """Count the errors of some items by their text, the most frequent first; empty ones are items with a result."""
    texts = [" ".join(printable(str(error)).split()) for error in errors if error]
    return dict(Counter(text[:_LONGEST] for text in texts).most_common())
