"""A part of a report: tables for people, figures and items for machines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from selfrag.evaluation.failures import FAILED, Failures
from selfrag.evaluation.intervals import NONE, SPELLED, bracketed
from selfrag.evaluation.metrics.classification import Bin
from selfrag.interface import Estimate
from selfrag.render.tables import markdown_section


@dataclass(frozen=True, slots=True)
class ReportTable:
    """One table."""

    title: str  # its heading
    head: tuple[str, ...]  # names of the columns
    rows: tuple[tuple[str, ...], ...]  # cells
    notes: tuple[
        str, ...
    ] = ()  # what is to be known, one sentence each, without a full stop


@dataclass(frozen=True, slots=True)
class MeasuredSection:
    """What was measured of one intrinsic."""

    name: str  # of the intrinsic, or `flows`
    tables: tuple[ReportTable, ...]  # for people
    figures: Mapping[str, Any]  # system -> figures, as plain values
    items: tuple[
        dict[str, Any], ...
    ] = ()  # one record a row and system, as plain values
    # system -> bins of a diagram, where there is one
    reliability: Mapping[str, Sequence[Bin]] = field(default_factory=dict)
    failures: tuple[Failures, ...] = ()  # what has no result

    def with_failures(self, failures: Iterable[Failures]) -> MeasuredSection:
        """Return the section with failures: noted under its first table, and in place of the dashes of a system."""
        failures = (*self.failures, *failures)
        total = {failure.system for failure in failures if failure.is_total}
        tables = []
        for table in self.tables:
            rows = []
            for row in table.rows:
                if row[0] in total:
                    row = tuple(FAILED if cell == NONE else cell for cell in row)
                rows.append(row)
            tables.append(replace(table, rows=tuple(rows)))
        if failures:
            notes = (*tables[0].notes, *map(str, failures))
            tables[0] = replace(tables[0], notes=notes)
        return replace(self, tables=tuple(tables), failures=failures)


def percent(estimate: Estimate | None) -> str:
    """Return a share in percent with its interval."""
    return bracketed(estimate, form=SPELLED)


def share(estimate: Estimate | None) -> str:
    """Return a share between 0 and 1 with its interval."""
    return bracketed(estimate, scale=1, digits=3, form=SPELLED)


def published_cells(*values: float | None, digits: int = 1) -> tuple[str, ...]:
    """Return published figures as they were published."""
    return tuple(NONE if value is None else f"{value:.{digits}f}" for value in values)


def markdown(table: ReportTable) -> str:
    """Return a table with its heading and notes; what others wrote is made harmless."""
    return markdown_section(table.title, table.head, table.rows, table.notes)
