"""A part of a report: tables for people, figures and items for machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from selfrag.evaluation.intervals import NONE, Estimate
from selfrag.evaluation.metrics.classification import Bin
from selfrag.render.tables import aligned, escape


@dataclass(frozen=True, slots=True)
class ReportTable:
    """One table."""

    title: str  # its heading
    head: tuple[str, ...]  # names of the columns
    rows: tuple[tuple[str, ...], ...]  # cells
    notes: tuple[str, ...] = ()  # what is to be known, one sentence each, without a full stop


@dataclass(frozen=True, slots=True)
class MeasuredSection:
    """What was measured of one intrinsic."""

    name: str  # of the intrinsic, or `flows`
    tables: tuple[ReportTable, ...]  # for people
    figures: Mapping[str, Any]  # system -> figures, as plain values
    items: tuple[Mapping[str, Any], ...] = ()  # one record a row and system, as plain values
    # system -> bins of a diagram, where there is one
    reliability: Mapping[str, Sequence[Bin]] = field(default_factory=dict)


def percent(estimate: Estimate | None) -> str:
    """A share in percent with its interval."""
    return _shown(estimate, 100, 1)


def share(estimate: Estimate | None) -> str:
    """A share between 0 and 1 with its interval."""
    return _shown(estimate, 1, 3)


def _shown(found: Estimate | None, scale: float, digits: int) -> str:
    if found is None or not found.defined:
        return NONE
    value, low, high = (f"{scale * end:.{digits}f}" for end in (found.value, found.low, found.high))
    return f"{value} ({low} to {high})" if found.low == found.low else value


def given(*values: float | None, digits: int = 1) -> tuple[str, ...]:
    """Published figures as they were published."""
    return tuple(NONE if value is None else f"{value:.{digits}f}" for value in values)


def markdown(table: ReportTable) -> str:
    """A table with its heading and notes; what others wrote is made harmless."""
    body = aligned(table.head, [[escape(cell) for cell in row] for row in table.rows])
    notes = "".join(f"\n{note}.\n" for note in table.notes)
    return f"### {table.title}\n\n{body}\n{notes}"
