"""A comparison as Markdown and as CSV. Formats numbers; computes none."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

from selfrag.common.errors import count_of
from selfrag.evaluation.comparison import AVERAGE, Comparison, ComparisonTable
from selfrag.evaluation.failures import FAILED
from selfrag.evaluation.intervals import NONE, Estimate, bracketed
from selfrag.evaluation.metrics.registry import COMPUTED, judge_of, scale_of
from selfrag.render.tables import escape, markdown_section

BRIEF = (
    "citation_precision",
    "citation_recall",
    "retrieval_rate",
    "words",
    "from_memory",
)
"""Columns beside the headline and what judges said, where there is little room."""
JUDGED = ("citation_precision_nli", "mauve")
"""Beginnings of the names of columns that a judge filled."""
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
        parts.append(markdown_section(title(table), header, rows, table.notes))
    return "\n".join(parts)


def brief(comparison: Comparison) -> Comparison:
    """Return the comparison with the columns that a page has room for, without seconds; a CSV file has all."""
    average = None if comparison.average is None else _brief(comparison.average)
    return replace(
        comparison, tables=tuple(map(_brief, comparison.tables)), average=average
    )


def _brief(table: ComparisonTable) -> ComparisonTable:
    metrics = [table.metrics[0]]
    for metric in table.metrics[1:]:
        is_shown = metric in BRIEF or metric.startswith(JUDGED) or judge_of(metric)
        if is_shown and any(row.figures[metric] is not None for row in table.rows):
            metrics.append(metric)
    rows = tuple(replace(row, seconds=None) for row in table.rows)
    return replace(table, metrics=tuple(metrics), rows=rows)


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


def grid(table: ComparisonTable, reference: str | None) -> list[list[str]]:
    """Return header and rows; the headline, citation precision and what judges said with intervals, others bare."""
    head = table.metrics[0]
    paired: list[str] = []  # metrics that have a column of differences
    if reference is not None:
        paired += [head, "citation_precision"]
    timed = any(row.seconds is not None for row in table.rows)
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
