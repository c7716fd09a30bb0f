"""A comparison as Markdown, as CSV and for a terminal. Formats numbers; computes none."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from selfrag.common.errors import count_of
from selfrag.evaluation.comparison import AVERAGE, Comparison, ComparisonTable
from selfrag.evaluation.failures import FAILED
from selfrag.evaluation.intervals import NONE, Estimate, bracketed
from selfrag.evaluation.metrics.registry import COMPUTED, judge_of, scale_of
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
WIDE = (*USUAL, "prompt_tokens", "generated_tokens", COMPUTED, "searches")
"""The same for a wide terminal."""
ABBREVIATIONS = {
    "citation_precision": "cit. precision",
    "citation_precision_alce": "cit. precision, none = 0",
    "citation_recall": "cit. recall",
    "citation_bears_answer": "cited text has answer",
    "retrieval_rate": "retrieves",
    "prompt_tokens": "prompt tok.",
    "generated_tokens": "new tok.",
    COMPUTED: "computed tok.",
}


def markdown(comparison: Comparison) -> str:
    """Return headings and tables, the average first."""
    parts = [f"{escape(about(comparison))}\n"]
    for table in tables(comparison):
        header, *rows = grid(table, comparison.reference)
        for row in rows:
            row[0] = escape(row[0])
        parts.append(f"### {escape(title(table))}\n")
        parts.append(compact(list(map(escape, header)), rows))
        parts += [f"{escape(note)}.\n" for note in table.notes]
    return "\n".join(parts)


CSV_HEAD = ("file", "kind", "system", "metric", "value", "low", "high", "n", "against")


def csv_text(comparison: Comparison) -> str:
    """Return one line a figure, under `CSV_HEAD` and the difference to the reference."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        (*CSV_HEAD, "difference_value", "difference_low", "difference_high")
    )
    for table in tables(comparison):
        for row in table.rows:
            head = (table.name, table.kind, row.system)
            for metric in table.metrics:
                figure, difference = row.figures[metric], row.differences.get(metric)
                against = difference and comparison.reference
                writer.writerow(
                    (
                        *head,
                        metric,
                        *_ends(figure),
                        figure and figure.n,
                        against,
                        *_ends(difference),
                    )
                )
            if row.seconds is not None:
                writer.writerow((*head, "seconds", f"{row.seconds:.6g}", *[""] * 7))
            writer.writerow((*head, "failed", row.failed, *[""] * 7))
    return out.getvalue()


@dataclass(frozen=True, slots=True)
class Terminal:
    """The same tables for rich, each with as many columns as the console has room for; intervals are never broken."""

    comparison: Comparison

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """Rich's protocol."""
        from rich.measure import Measurement

        unbounded = options.update(max_width=_UNBOUNDED)
        yield terminal_text(about(self.comparison))
        for table in tables(self.comparison):
            for columns in (WIDE, USUAL, NARROW):
                shown = _shown(table, columns, self.comparison.reference)
                if (
                    Measurement.get(console, unbounded, shown).maximum
                    <= options.max_width
                ):
                    yield shown
                    break
            else:
                yield from _pieces(shown, console, options)
            for note in table.notes:
                yield terminal_text(note, "dim")


def _shown(
    table: ComparisonTable, columns: Sequence[str], reference: str | None
) -> RichTable:
    kept = [
        metric for metric in table.metrics[1:] if metric in columns or judge_of(metric)
    ]
    brief = replace(table, metrics=(table.metrics[0], *kept))
    header, *rows = grid(brief, reference, narrow=columns is NARROW)
    shown = terminal_table(title(table))
    shown.add_column(terminal_text(header[0]), overflow="fold")
    for name in header[1:]:
        shown.add_column(
            terminal_text(name.replace(" ", "\n")),
            justify="right",
            no_wrap=True,
            overflow="fold",
        )
    for name, *figures in rows:
        shown.add_row(
            terminal_text(name),
            *(terminal_text(figure.replace(" [", "\n[")) for figure in figures),
        )
    return shown


def _pieces(
    table: RichTable, console: Console, options: ConsoleOptions
) -> Iterator[RichTable]:
    """Cut a table that is too wide between its columns; each piece begins with the names."""
    from rich.measure import Measurement

    names, *figures = table.columns
    name_width, *widths = [
        Measurement.get(console, options, _piece(table, [column])).maximum
        for column in table.columns
    ]
    # longer names are folded
    room_of_figures = options.max_width - min(name_width, options.max_width // 3)
    kept: list[Column] = []
    room = room_of_figures
    for column, width in zip(figures, widths, strict=True):
        if kept and width > room:
            yield _piece(table, [names, *kept])
            kept, room = [], room_of_figures
        kept.append(column)
        room -= width
    yield _piece(table, [names, *kept])


def _piece(table: RichTable, columns: Sequence[Column]) -> RichTable:
    """Return the table with some of its columns."""
    piece = copy(table)
    piece.columns = [
        replace(column, _index=index) for index, column in enumerate(columns)
    ]
    if columns[0] is not table.columns[0]:
        piece.title = None
    return piece


def about(comparison: Comparison) -> str:
    """Return what the figures are, as a sentence."""
    text = "Shares in percent with bootstrap 95% intervals over items"
    if comparison.reference is not None:
        text += f"; differences to {comparison.reference} are paired, * where the interval does not hold 0"
    return f"{text}."


def tables(comparison: Comparison) -> tuple[ComparisonTable, ...]:
    """Return the average, if there is one, and the tables of the files."""
    return (*filter(None, [comparison.average]), *comparison.tables)


def title(table: ComparisonTable) -> str:
    """Return the heading of a table."""
    if table.kind == AVERAGE:
        return f"Average over {count_of(table.items, 'files')}"
    return f"{table.name} ({table.kind}, {count_of(table.items, 'items')})"


def grid(
    table: ComparisonTable, reference: str | None, *, narrow: bool = False
) -> list[list[str]]:
    """Return header and rows; the headline, citation precision and what judges said with intervals, other figures bare.

    `narrow` leaves out the difference of citations, the seconds, and failures where there are none.
    """
    head = table.metrics[0]
    paired: list[str] = []  # metrics that have a column of differences
    if reference is not None:
        paired.append(head)
        if not narrow:
            paired.append("citation_precision")
    timed = not narrow and any(row.seconds is not None for row in table.rows)
    columns: list[list[str]] = [["system", *(row.system for row in table.rows)]]
    for metric in table.metrics:
        full = (
            metric == head
            or metric.startswith("citation_precision")
            or bool(judge_of(metric))
        )
        show = _interval if full else _value
        heading = head if metric == head else _heading(metric)
        columns.append(
            [heading, *(show(row.figures[metric], metric) for row in table.rows)]
        )
        if metric in paired:
            columns.append(
                [
                    "difference",
                    *(
                        _difference(row.differences.get(metric), metric)
                        for row in table.rows
                    ),
                ]
            )
        if metric == COMPUTED and reference is not None:
            columns.append(["of reference", *_ratios(table, reference)])
    if timed:
        columns.append(
            [
                "s/item",
                *(
                    NONE if row.seconds is None else f"{row.seconds:.2f}"
                    for row in table.rows
                ),
            ]
        )
    if not narrow or any(row.failed for row in table.rows):
        columns.append(["failed", *(str(row.failed) for row in table.rows)])
    header, *lines = map(list, zip(*columns, strict=True))
    for row, line in zip(table.rows, lines, strict=True):
        if table.kind != AVERAGE and row.failed >= table.items:
            line[:] = [FAILED if cell == NONE else cell for cell in line]
    return [header, *lines]


def _ratios(table: ComparisonTable, reference: str) -> list[str]:
    """Return the computed tokens of each system over those of the reference."""
    computed = {row.system: row.figures[COMPUTED] for row in table.rows}
    least = computed[reference]
    ratios = []
    for figure in computed.values():
        if figure is None or least is None or not least.value:
            ratios.append(NONE)
        else:
            ratios.append(f"{figure.value / least.value:.2f}")
    return ratios


def _heading(metric: str) -> str:
    bare, judge = metric.removesuffix(judge_of(metric)), judge_of(metric)
    return ABBREVIATIONS.get(bare, bare.replace("_", " ")) + judge


def _interval(estimate: Estimate | None, metric: str) -> str:
    if estimate is None:
        return NONE
    return bracketed(estimate, scale=scale_of(metric))


def _value(estimate: Estimate | None, metric: str) -> str:
    if estimate is None:
        return NONE
    return f"{scale_of(metric) * estimate.value:.1f}"


def _difference(estimate: Estimate | None, metric: str) -> str:
    if estimate is None:
        return NONE
    text = _interval(estimate, metric)
    if estimate.value > 0:
        text = f"+{text}"
    if estimate.low > 0 or estimate.high < 0:
        text += " *"
    return text


def _ends(estimate: Estimate | None) -> list[str]:
    """Return value, low and high end as texts; empty where there is none."""
    if estimate is None:
        return [""] * 3
    return [
        f"{end:.6g}".replace("nan", "")
        for end in (estimate.value, estimate.low, estimate.high)
    ]
