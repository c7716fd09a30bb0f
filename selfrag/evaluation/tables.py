"""A comparison as Markdown, as CSV and for a terminal. Formats numbers; computes none."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from selfrag.evaluation.comparison import AVERAGE, Comparison, ComparisonRow, ComparisonTable
from selfrag.evaluation.intervals import NONE, Estimate, bracketed
from selfrag.evaluation.metrics.registry import judge_of, scale_of
from selfrag.render import terminal_text
from selfrag.render.tables import compact, escape, terminal_table

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Column
    from rich.table import Table as RichTable

_UNBOUNDED = 10_000

NARROW = ("citation_precision", "retrieval_rate")
"""Columns of a terminal of 80 beside the headline."""
USUAL = ("citation_precision", "citation_recall", "retrieval_rate")
"""The same where there is more room."""
WIDE = (*USUAL, "prompt_tokens", "generated_tokens", "searches")
"""The same for a wide terminal."""
ABBREVIATIONS = {
    "citation_precision": "cit. precision",
    "citation_precision_alce": "cit. precision, none = 0",
    "citation_recall": "cit. recall",
    "citation_bears_answer": "cited text has answer",
    "retrieval_rate": "retrieves",
    "prompt_tokens": "prompt tok.",
    "generated_tokens": "new tok.",
}


def markdown(comparison: Comparison) -> str:
    """Headings and tables, the average first."""
    parts = [f"{escape(about(comparison))}\n"]
    for table in tables(comparison):
        header, *rows = grid(table, comparison.reference)
        body = [[escape(name), *figures] for name, *figures in rows]
        parts.append(f"### {escape(title(table))}\n")
        parts.append(compact([escape(name) for name in header], body))
        parts += [f"{escape(note)}.\n" for note in table.notes]
    return "\n".join(parts)


def csv_text(comparison: Comparison) -> str:
    """One line a figure: file, kind, system, metric, value, low, high, n, and the difference to the reference."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    ends = ("value", "low", "high")
    differences = tuple(f"difference_{end}" for end in ends)
    writer.writerow(("file", "kind", "system", "metric", *ends, "n", "against", *differences))
    for table in tables(comparison):
        for row in table.rows:
            head = (table.name, table.kind, row.system)
            for metric in table.metrics:
                found, other = row.figures[metric], row.differences.get(metric)
                against = (comparison.reference if other else None) or ""
                count = "" if found is None else found.n
                writer.writerow((*head, metric, *_ends(found), count, against, *_ends(other)))
            if row.seconds is not None:
                writer.writerow((*head, "seconds", f"{row.seconds:.6g}", *[""] * 7))
            writer.writerow((*head, "failed", row.failed, *[""] * 7))
    return out.getvalue()


@dataclass(frozen=True, slots=True)
class Terminal:
    """The same tables for rich, each with as many columns as the console has room for; intervals are never broken."""

    comparison: Comparison

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Rich's protocol."""
        from rich.measure import Measurement

        unbounded = options.update(max_width=_UNBOUNDED)
        yield terminal_text(about(self.comparison))
        for table in tables(self.comparison):
            *wider, narrow = (_shown(table, columns, self.comparison.reference) for columns in (WIDE, USUAL, NARROW))
            fitting = (one for one in wider if Measurement.get(console, unbounded, one).maximum <= options.max_width)
            shown = next(fitting, None)
            yield from [shown] if shown is not None else _pieces(narrow, console, options)
            yield from (terminal_text(note, "dim") for note in table.notes)


def _shown(table: ComparisonTable, columns: Sequence[str], reference: str | None) -> RichTable:
    kept = [metric for metric in table.metrics[1:] if metric in columns or judge_of(metric)]
    brief = replace(table, metrics=(table.metrics[0], *kept))
    header, *rows = grid(brief, reference, narrow=columns is NARROW)
    shown = terminal_table(title(table))
    for i, name in enumerate(header):
        words = name.replace(" ", "\n") if i else name
        shown.add_column(terminal_text(words), justify="right" if i else "left", no_wrap=i > 0, overflow="fold")
    for name, *figures in rows:
        shown.add_row(terminal_text(name), *(terminal_text(figure.replace(" [", "\n[")) for figure in figures))
    return shown


_NAME = 12
"""Characters that the column of names keeps at least; longer names are folded."""


def _pieces(table: RichTable, console: Console, options: ConsoleOptions) -> Iterator[RichTable]:
    """Cut a table that is too wide between its columns; each piece begins with the names."""
    from rich.measure import Measurement

    names, *figures = table.columns
    widths = [Measurement.get(console, options, _piece(table, [column])).maximum for column in figures]
    kept: list[Column] = []
    room = options.max_width - _NAME
    for column, width in zip(figures, widths, strict=True):
        if kept and width > room:
            yield _piece(table, [names, *kept])
            kept, room = [], options.max_width - _NAME
        kept.append(column)
        room -= width
    yield _piece(table, [names, *kept])


def _piece(table: RichTable, columns: Sequence[Column]) -> RichTable:
    """Return the table with some of its columns."""
    piece = copy(table)
    piece.columns = [replace(column, _index=index) for index, column in enumerate(columns)]
    piece.title = table.title if columns[0] is table.columns[0] else None
    return piece


def about(comparison: Comparison) -> str:
    """What the figures are, as a sentence."""
    text = "Shares in percent with bootstrap 95% intervals over items"
    if comparison.reference is not None:
        text += f"; differences to {comparison.reference} are paired, * where the interval does not hold 0"
    return f"{text}."


def tables(comparison: Comparison) -> tuple[ComparisonTable, ...]:
    """The average, if there is one, and the tables of the files."""
    return (*([comparison.average] if comparison.average else []), *comparison.tables)


def title(table: ComparisonTable) -> str:
    """A heading."""
    if table.kind == AVERAGE:
        return f"Average over {table.items} files"
    return f"{table.name} ({table.kind}, {table.items} items)"


def grid(table: ComparisonTable, reference: str | None, *, narrow: bool = False) -> list[list[str]]:
    """Header and rows; the headline, citation precision and what judges said with intervals, other figures bare.

    `narrow` leaves out the difference of citations and the seconds.
    """
    head, *others = table.metrics
    compared = reference is not None
    paired = [metric for metric in others if compared and not narrow and metric == "citation_precision"]
    header = ["system", head]
    header += ["difference"] if compared else []
    for metric in others:
        header.append(_heading(metric))
        header += ["difference"] if metric in paired else []
    timed = not narrow and any(row.seconds is not None for row in table.rows)
    header += [*(["s/item"] if timed else []), "failed"]
    return [header, *(_row(row, head, others, paired, compared=compared, timed=timed) for row in table.rows)]


def _row(
    row: ComparisonRow, head: str, others: Sequence[str], paired: Sequence[str], *, compared: bool, timed: bool
) -> list[str]:
    cells = [row.system, _interval(row.figures[head], head)]
    cells += [_difference(row.differences.get(head), head)] if compared else []
    for metric in others:
        full = metric.startswith("citation_precision") or bool(judge_of(metric))
        cells.append(_interval(row.figures[metric], metric, bare=not full))
        cells += [_difference(row.differences.get(metric), metric)] if metric in paired else []
    cells += [NONE if row.seconds is None else f"{row.seconds:.2f}"] if timed else []
    return [*cells, str(row.failed)]


def _heading(metric: str) -> str:
    bare, judge = metric.removesuffix(judge_of(metric)), judge_of(metric)
    return ABBREVIATIONS.get(bare, bare.replace("_", " ")) + judge


def _interval(found: Estimate | None, metric: str, *, bare: bool = False) -> str:
    if found is None:
        return NONE
    return f"{scale_of(metric) * found.value:.1f}" if bare else bracketed(found, scale=scale_of(metric))


def _difference(found: Estimate | None, metric: str) -> str:
    if found is None:
        return NONE
    sign = "+" if found.value > 0 else ""
    mark = " *" if found.low > 0 or found.high < 0 else ""
    return f"{sign}{_interval(found, metric)}{mark}"


def _ends(found: Estimate | None) -> tuple[str, str, str]:
    if found is None:
        return "", "", ""
    low, value, high = ("" if end != end else f"{end:.6g}" for end in (found.low, found.value, found.high))
    return value, low, high
