"""Published figures stand beside measured ones of the same data, number of items and metric alone.

`published.toml` declares what the figures of each table of the papers are of.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

OF: Mapping[str, Mapping[str, Any]] = tomllib.loads(
    files(__package__).joinpath("published.toml").read_text(encoding="utf-8")
)
"""Table to what its published figures are of, by data set."""


def why_left_out(table: str, data: str, items: int, metric: str = "") -> str:
    """Return one line on why a published figure is left out beside a measurement; empty where both are of the same.

    Args:
        table: a key of `OF`.
        data: name of the data set that was measured.
        items: how many of its items.
        metric: name of the figure; any if empty.
    """
    sets = OF[table]
    if data not in sets:
        reason = f"it is of {', '.join(sets)}, not of {data or 'such data'}"
    elif metric and metric not in sets[data]["metrics"]:
        reason = f"it is by {', '.join(sets[data]['metrics'])}, not by {metric}"
    elif not _is_count(sets[data]["items"], items):
        split = sets[data]["split"]
        reason = f"it is of {_counts(sets[data]['items'])} items of {data} ({split}), not of {items:,}"
    else:
        return ""
    return f"Published figure of {table} left out: {reason}"


def _is_count(declared: Any, items: int) -> bool:
    if isinstance(declared, Mapping):
        return bool(declared["least"] <= items <= declared["most"])
    return items in declared


def _counts(declared: Any) -> str:
    if isinstance(declared, Mapping):
        return f"{declared['least']:,} to {declared['most']:,}"
    return " or ".join(f"{count:,}" for count in declared)
