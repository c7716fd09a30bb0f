"""Why a knob moves much or little: how many answers it changes, and what there is for it to act on. Computes.

A threshold acts on the probability of retrieving at the start of an answer, a weight on how far apart the scores of one
question's first candidates lie; both are read from the recorded decode. What an axis does to quality is in `trends`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from selfrag.decoding.policy import Decoding
from selfrag.decoding.trace import ROOT, UNUSABLE, Node, Trace
from selfrag.experiments.steering.records import read_recorded
from selfrag.experiments.steering.setting import Plan, Value, label
from selfrag.experiments.steering.study import FileStudy, answers_changed
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import Role
from selfrag.reflection.weights import TOKEN_TERMS

THRESHOLD = "threshold"


@dataclass(frozen=True, slots=True)
class Reason:
    """What an axis has to act on, between its ends.

    Attributes:
        axis: what is turned.
        first: its least value, or its first one where values are no numbers; as text.
        last: its greatest value, or its last one.
        changed: items whose answer or citations differ between the two.
        items: all of them.
        quartiles: of the probability of retrieving, or of the spans of scores; None for other axes, and where the
            record says nothing.
    """

    axis: str
    first: str
    last: str
    changed: int
    items: int
    quartiles: tuple[float, float, float] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        values = {name: getattr(self, name) for name in ("axis", "first", "last", "changed", "items")}
        return values | {"quartiles": None if self.quartiles is None else list(self.quartiles)}

    def __str__(self) -> str:
        said = f"{self.axis} {self.first} to {self.last} changes {self.changed} of {self.items} answers"
        if self.quartiles is None:
            return said
        low, middle, high = self.quartiles
        if self.axis == THRESHOLD:
            acted = f"the probability of retrieving is {middle:.4f} in the median"
        else:
            acted = f"scores of one question's candidates lie {middle:.4f} apart in the median"
        return f"{said}; {acted} (quartiles {low:.4f}, {high:.4f})"


def reasons(one: FileStudy, laid_out: Plan) -> list[Reason]:
    """One reason an axis with two values at least.

    Args:
        one: a file under all settings.
        laid_out: the settings of the file.

    Raises:
        UserError: the recorded decode cannot be read.
    """
    series = {axis: row for axis, row in laid_out.series.items() if len(row) > 1}
    if not series:
        return []
    path = one.decodes[0].folder / f"{one.file.name}.jsonl"
    traces = [record.trace for record in read_recorded(path) if record.trace is not None]
    base = one.settings[0].decoding
    found = []
    for axis, row in series.items():
        (first, before), (last, after) = _ends(row)
        changed = answers_changed(one, before, after)
        values = [value for trace in traces if (value := _acted_on(axis, trace, base)) is not None]
        found.append(Reason(axis, label(first), label(last), changed, len(one.file.items), _quartiles(values)))
    return found


def _ends(row: Sequence[tuple[Value, str]]) -> tuple[tuple[Value, str], tuple[Value, str]]:
    numbers = [(float(value), one) for value, one in row if isinstance(value, int | float)]
    return (min(numbers), max(numbers)) if len(numbers) > 1 else (row[0], row[-1])


def _acted_on(axis: str, trace: Trace, base: Decoding) -> float | None:
    """What the axis looks at in one record; None where it looks at nothing there."""
    if axis == THRESHOLD:
        start = next((decision.judgment for decision in trace.decisions if decision.after == ROOT), None)
        return None if start is None else base.retrieval_score(start)
    if axis not in TOKEN_TERMS and not axis.startswith("+"):
        return None
    usable = (node for node in trace.nodes if node.parent == ROOT and node.status not in UNUSABLE)
    scores = [judged.score for judged in _judged(axis, usable) if judged.defined]
    return max(scores) - min(scores) if len(scores) > 1 else None


def _judged(axis: str, nodes: Iterable[Node]) -> Iterable[Judgment]:
    for node in nodes:
        found = node.joined.get(axis[1:]) if axis.startswith("+") else node.judgments.get(Role(axis))
        if found is not None:
            yield found


def _quartiles(values: Sequence[float]) -> tuple[float, float, float] | None:
    if not values:
        return None
    low, middle, high = (float(one) for one in np.quantile(values, (0.25, 0.5, 0.75)))
    return low, middle, high
