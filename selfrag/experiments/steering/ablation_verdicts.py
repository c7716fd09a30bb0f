"""Whether taking something away does here what it did in the paper: a verdict a row and file, and why. Pure numbers.

Every row of the paper's Table 3a is below the whole on every task. A row that changes no answer can show no difference,
so the number of changed answers stands beside each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from selfrag.evaluation.comparison import Comparison, Table
from selfrag.evaluation.intervals import NONE, Estimate, bracketed
from selfrag.evaluation.metrics.registry import is_count
from selfrag.experiments.steering.study import FileStudy, answers_changed
from selfrag.experiments.steering.table3a import PUBLISHED, WHOLE
from selfrag.experiments.steering.trends import verdict

HEAD = ("row", "file", "answers changed", "difference", "published differences", "verdict")


@dataclass(frozen=True, slots=True)
class Ablation:
    """One row on one file, against the whole.

    Attributes:
        row: its name.
        file: name of the file, or `average`.
        changed: items whose answer or citations are others than the whole's; None for the average.
        items: of the file; None for the average.
        difference: of the headline, paired.
    """

    row: str
    file: str
    changed: int | None
    items: int | None
    difference: Estimate | None

    @property
    def verdict(self) -> str:
        """Against the paper only if the interval of the difference does not hold 0."""
        return verdict(self.difference, "falls")

    @property
    def published(self) -> tuple[float, ...]:
        """What the paper lost without it, in percentage points, on the tasks that it says."""
        pairs = zip(PUBLISHED[self.row], PUBLISHED[WHOLE], strict=True)
        return tuple(round(own - whole, 1) for own, whole in pairs if own is not None and whole is not None)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        own = {name: getattr(self, name) for name in ("row", "file", "changed", "items", "verdict")}
        return own | {"difference": None if self.difference is None else self.difference.as_dict()}

    def cells(self) -> tuple[str, ...]:
        """In the order of `HEAD`; shares in percent."""
        changed = NONE if self.changed is None else f"{self.changed} of {self.items}"
        moved = NONE if self.difference is None else bracketed(self.difference)
        return (self.row, self.file, changed, moved, ", ".join(f"{one:+.1f}" for one in self.published), self.verdict)


def ablations_against(found: Comparison, studies: Sequence[FileStudy]) -> list[Ablation]:
    """The paper's rows on every file, and on average over the files.

    Args:
        found: all rows against the whole.
        studies: one a file, in the order of the tables.
    """
    rows = [name for name in PUBLISHED if name != WHOLE]
    result = []
    for name in rows:
        for table, one in zip(found.tables, studies, strict=True):
            changed = answers_changed(one, WHOLE, name)
            result.append(Ablation(name, table.name, changed, len(one.file.items), _difference(table, name)))
        if found.average is not None:
            result.append(Ablation(name, found.average.name, None, None, _difference(found.average, name)))
    return result


def _difference(table: Table, name: str) -> Estimate | None:
    """Of the headline; None where it is a count, of which less is nothing lost."""
    if is_count(table.metrics[0]):
        return None
    (row,) = (row for row in table.rows if row.system == name)
    return row.differences.get(table.metrics[0])
