"""A run of a row beside its published figures: how far apart they are, and whether that is within the tolerance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from selfrag.evaluation.comparison import compare, read_run
from selfrag.evaluation.intervals import NONE, Estimate, bracketed
from selfrag.evaluation.markdown_table import compact, escape
from selfrag.evaluation.records import read_manifest
from selfrag.experiments.reproduction.table2 import COLUMNS, Row

HEAD = ("task", "metric", "paper", "ours", "difference", "may differ by", "verdict")
Verdict = Literal["within", "outside", "not published", "not measured"]


@dataclass(frozen=True, slots=True)
class Check:
    """One cell.

    Attributes:
        task: of the column.
        metric: of the column, with its judge if it has one.
        published: in percent; None where the paper has none.
        ours: in percent, with its 95% interval; None where nothing was measured.
        tolerance: percentage points.
        sampled: whether only some items of the file were run; the half width of the interval is added then.
        undecided: items that the figure leaves out, as a judge gave no verdict on them.
    """

    task: str
    metric: str
    published: float | None
    ours: Estimate | None
    tolerance: float
    sampled: bool
    undecided: int = 0

    @property
    def difference(self) -> float | None:
        """Ours minus theirs; None where one is missing."""
        return None if self.ours is None or self.published is None else self.ours.value - self.published

    @property
    def slack(self) -> float:
        """How large the difference may be."""
        width = 0.0 if self.ours is None else (self.ours.high - self.ours.low) / 2
        return self.tolerance + (width if self.sampled and width == width else 0.0)  # NaN: one item, no interval

    @property
    def verdict(self) -> Verdict:
        """Whether the figure was reproduced."""
        if self.difference is None:
            return "not published" if self.published is None else "not measured"
        return "within" if abs(self.difference) <= self.slack else "outside"


def check(row: Row, folder: Path, *, seed: int = 0) -> list[Check]:
    """Every cell of a row against a run directory.

    Args:
        row: of the table.
        folder: of the run.
        seed: of the intervals.

    Raises:
        UserError: no run, or one that is not finished.
    """
    run = read_run(folder)
    tables = {table.name: table for table in compare([run], seed=seed).tables}
    entries = read_manifest(folder)["files"]
    checks = []
    for (task, metric), published, tolerance in zip(COLUMNS, row.figures, row.tolerances, strict=True):
        figures = tables[task].rows[0].figures if task in tables else {}
        name = next((name for name in figures if name.partition(" (")[0] == metric), metric)
        settings = entries[task]["settings"] if task in entries else {}
        sampled = bool(settings) and settings["items"] < settings["rows"]
        undecided = run.files[task].undecided.get(name, 0) if task in run.files else 0
        checks.append(Check(task, name, published, _percent(figures.get(name)), tolerance, sampled, undecided))
    return checks


def markdown(row: Row, checks: Sequence[Check], about: str = "", *, verdicts: bool = True) -> str:
    """A table of the cells, and what must be known to read it; figures of a rehearsal get no verdict.

    Items that a judge gave no verdict on are counted below the table: a figure that nobody decided is a dash.
    """
    rows = []
    for one in checks:
        ours = NONE if one.ours is None else bracketed(one.ours, scale=1)
        difference = NONE if one.difference is None else f"{one.difference:+.1f}"
        published = NONE if one.published is None else f"{one.published:.1f}"
        verdict = one.verdict if verdicts else NONE
        rows.append((one.task, escape(one.metric), published, ours, difference, f"{one.slack:.1f}", verdict))
    notes = [note for note in (about, row.note) if note]
    left = [
        f"{one.task}: {one.undecided} items are not in {escape(one.metric)}, as the judge gave no verdict on them"
        for one in checks
        if one.undecided
    ]
    parts = [f"## {row.title}, Table 2\n", *(f"{note}.\n" for note in notes), compact(HEAD, rows)]
    return "\n".join([*parts, *(f"{note}.\n" for note in left)])


def _percent(found: Estimate | None) -> Estimate | None:
    return None if found is None else Estimate(100 * found.value, 100 * found.low, 100 * found.high, found.n)
