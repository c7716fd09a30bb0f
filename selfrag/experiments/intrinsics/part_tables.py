"""What reports of intrinsics share: a table for each part of the rows with a line a system, and the paper's tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from selfrag.common.jsonl import JsonObject
from selfrag.evaluation.intervals import pooled_auc
from selfrag.evaluation.metrics.classification import ClassFigures
from selfrag.evaluation.published import why_left_out
from selfrag.experiments.intrinsics.conversations import JudgedTurn
from selfrag.experiments.report_tables import ReportTable, percent, published_cells
from selfrag.interface import Estimate
from selfrag.training.intrinsics.rows import IntrinsicRow

ALL_ROWS = "all rows"


def parts_of(rows: Sequence[IntrinsicRow]) -> dict[str, Sequence[int]]:
    """Return the places of all rows, and of those of each data set."""
    places: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        places.setdefault(row.source.split("/")[0], []).append(place)
    return {ALL_ROWS: range(len(rows)), **dict(sorted(places.items()))}


def measure_parts(
    title: str,
    head: Sequence[str],
    parts: Mapping[str, Sequence[int]],
    systems: Iterable[str],
    measure: Callable[[str, Sequence[int]], tuple[Sequence[str], Any]],
    size: Callable[[Sequence[int]], object] = len,
) -> tuple[list[ReportTable], dict[str, JsonObject]]:
    """Return a table for each part, and the figures by system and part.

    Args:
        title: of the tables; the part and its size follow.
        head: names of the columns, the system first.
        parts: name of the part to the places of its items.
        systems: names of the lines.
        measure: gives the cells and the figures of a system on the items at some places.
        size: what stands in brackets after the name of a part.
    """
    tables: list[ReportTable] = []
    figures: dict[str, JsonObject] = {system: {} for system in systems}
    for part, members in parts.items():
        lines = []
        for system, by_part in figures.items():
            cells, by_part[part] = measure(system, members)
            lines.append((system, *cells))
        heading = f"{title}, {part} ({size(members)})"
        tables.append(ReportTable(heading, tuple(head), tuple(lines)))
    return tables, figures


def item_records(
    items: Iterable[IntrinsicRow | JudgedTurn], columns: Mapping[str, Sequence[Any]]
) -> list[JsonObject]:
    """Return a record of each item: its id, and what every column says of it."""
    records = []
    for place, item in enumerate(items):
        record: JsonObject = {"id": item.id}
        for name, column in columns.items():
            record[name] = column[place]
        records.append(record)
    return records


def published_table(
    title: str,
    head: Sequence[str],
    systems: Mapping[str, Sequence[float]],
    digits: int = 1,
    *,
    left_out: str,
) -> ReportTable:
    """Return figures of the paper as a table, or the line that says why they are left out beside ours."""
    if left_out:
        return ReportTable(f"Published: {title}", (), (), (left_out,))
    rows = []
    for system, values in systems.items():
        rows.append((system, *published_cells(*values, digits=digits)))
    return ReportTable(f"Published: {title}", ("system", *head), tuple(rows))


def why_table_left_out(
    table: str, rows: Iterable[IntrinsicRow | JudgedTurn], data: str, metric: str
) -> str:
    """Return why figures of a table of the paper are left out beside rows, of which those of `data` are counted."""
    count = sum(row.source.startswith(data) for row in rows)
    return why_left_out(table, data if count else "", count, metric)


def class_cells(figures: ClassFigures) -> tuple[str, str, str]:
    """Return precision, recall and F1 of a class in percent."""
    return percent(figures.precision), percent(figures.recall), percent(figures.f1)


def area(scored: Iterable[tuple[bool | float, float | None]], seed: int) -> Estimate:
    """Return the area under the ROC curve of (positive, score) pairs; every row with a score is an item of its own."""
    positives: list[list[float]] = []
    negatives: list[list[float]] = []
    for positive, score in scored:
        if score is not None:
            positives.append([score] * bool(positive))
            negatives.append([score] * (not positive))
    return pooled_auc(positives, negatives, seed=seed)
