"""Figures of a grid with intervals: cells, means over settings, differences between prompts, types. Computes only.

Every question is asked in every cell, so all figures are resampled together by questions, and differences are paired.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from selfrag.evaluation.comparison import Draws, average, bootstrap
from selfrag.evaluation.intervals import Estimate
from selfrag.experiments.interpretation.grid import Cell
from selfrag.experiments.interpretation.reading import GridRun, Records
from selfrag.experiments.interpretation.scoring import NAMES


@dataclass(frozen=True, slots=True)
class GridFigures:
    """Figures of a run.

    Attributes:
        draws: cell to figure to what it is in each resampling; None where no question counts.
        failed: cell to questions without a reply.
        questions: how many were asked.
    """

    draws: Mapping[Cell, Mapping[str, Draws | None]]
    failed: Mapping[Cell, int]
    questions: int

    def of(self, cell: Cell, figure: str) -> Estimate | None:
        """A figure of a cell; None where it was not run or no question counts."""
        found = self.draws.get(cell, {}).get(figure)
        return None if found is None else found.estimate

    def mean(self, cells: Iterable[Cell], figure: str) -> Draws | None:
        """The plain mean of a figure over cells; None where one of them has none, or there is no cell."""
        return average([self.draws[cell][figure] for cell in cells])

    def select(self, prompt: str, **settings: object) -> tuple[Cell, ...]:
        """Cells of a prompt with these settings, such as `examples=1`."""
        kept = {"prompt": prompt, **settings}
        return tuple(c for c in self.draws if all(getattr(c, name) == value for name, value in kept.items()))

    def pairs(self, prompt: str, against: str, **settings: object) -> list[tuple[Cell, Cell]]:
        """Cells of two prompts that differ in nothing else, for settings that both were run in."""
        other = set(self.select(against, **settings))
        pairs = [(cell, replace(cell, prompt=against)) for cell in self.select(prompt, **settings)]
        return [(mine, one) for mine, one in pairs if one in other]

    def difference(self, pairs: Sequence[tuple[Cell, Cell]], figure: str) -> Estimate | None:
        """Mean of the differences of pairs of cells, paired by question; None where there is no pair."""
        first = self.mean([mine for mine, _ in pairs], figure)
        second = self.mean([other for _, other in pairs], figure)
        return None if first is None or second is None else (first - second).estimate

    @property
    def prompts(self) -> tuple[str, ...]:
        """Strategies of the run, in its order."""
        return tuple(dict.fromkeys(cell.prompt for cell in self.draws))


def grid_figures(run: GridRun, *, only: Sequence[str] | None = None, seed: int = 0) -> GridFigures:
    """Figures of all finished cells.

    Args:
        run: read back.
        only: ids of the questions that count; None for all.
        seed: of the intervals.
    """
    kept = None if only is None else set(only)
    records = {cell: _kept(run.records(cell.name) or [], kept) for cell in run.cells}
    columns = [(cell, figure) for cell in records for figure in NAMES]
    parts = [[record["scores"][figure] for record in records[cell]] for cell, figure in columns]
    draws: dict[Cell, dict[str, Draws | None]] = {cell: {} for cell in records}
    for (cell, figure), found in zip(columns, bootstrap(parts, name="questions", seed=seed), strict=True):
        draws[cell][figure] = found
    failed = {cell: sum(bool(record["error"]) for record in rows) for cell, rows in records.items()}
    return GridFigures(draws, failed, max((len(rows) for rows in records.values()), default=0))


def by_kind(run: GridRun, *, seed: int = 0) -> dict[str, GridFigures]:
    """Figures for each type of question, the most frequent first."""
    kinds = run.job.questions.kinds
    ids: dict[str, list[str]] = {}
    for item in run.job.questions.chosen.items:
        ids.setdefault(kinds[item.id], []).append(item.id)
    ordered = sorted(ids, key=lambda kind: (-len(ids[kind]), kind))
    return {kind: grid_figures(run, only=ids[kind], seed=seed) for kind in ordered}


def _kept(records: Records, kept: set[str] | None) -> Records:
    return records if kept is None else [record for record in records if record["id"] in kept]
