"""Counts for reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def counted(keys: Iterable[tuple[str, ...]]) -> list[tuple[object, ...]]:
    """Distinct keys in order, each followed by how often it came."""
    return [(*key, count) for key, count in sorted(Counter(keys).items())]
