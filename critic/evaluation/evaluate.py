"""Evaluating critics on labelled rows: every group, and its parts by source of the label, data set and rule.

Knows critics by their protocol only. Which critics there are is the caller's choice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from critic.cases import GROUPS, Critic, Labelled
from critic.evaluation.figures import Figures, figures
from selfrag.reflection.judgment import Judgment

HUMAN = "human"
"""`label_source` of rows that a person judged."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Figures of one critic.

    Attributes:
        groups: group -> figures on all its rows.
        parts: group -> name of a part -> figures; names are `human`, `derived`, and `dataset/rule`.
        seconds: time taken by the judging.
        judgments: one a row, in the order of the rows.
        shortened: rows of which a prompt could not hold every part whole.
    """

    groups: Mapping[str, Figures]
    parts: Mapping[str, Mapping[str, Figures]]
    seconds: float = 0.0
    judgments: Sequence[Judgment | None] = field(default=(), repr=False)
    shortened: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON, without single judgments; `shortened` only where there are such rows."""
        return {
            "groups": {group: found.as_dict() for group, found in self.groups.items()},
            "parts": {
                group: {name: found.as_dict() for name, found in parts.items()} for group, parts in self.parts.items()
            },
            "seconds": self.seconds,
            **({"shortened": self.shortened} if self.shortened else {}),
        }


def evaluate(critic: Critic, rows: Sequence[Labelled], *, seed: int = 0) -> Evaluation:
    """Let a critic judge all rows and compare with their labels.

    Args:
        critic: any critic.
        rows: labelled rows of any groups.
        seed: of the intervals.
    """
    import time

    started = time.perf_counter()
    judgments = critic.judge([row.case for row in rows])
    return compare(rows, judgments, seed=seed, seconds=time.perf_counter() - started)


def compare(
    rows: Sequence[Labelled], judgments: Sequence[Judgment | None], *, seed: int = 0, seconds: float = 0.0
) -> Evaluation:
    """Figures of judgments that were made already."""
    groups: dict[str, Figures] = {}
    parts: dict[str, dict[str, Figures]] = {}
    pairs = list(zip(rows, judgments, strict=True))
    for group in GROUPS:
        members = [pair for pair in pairs if pair[0].case.group == group]
        if members:
            groups[group] = _figures(members, seed)
            parts[group] = {name: _figures(found, seed) for name, found in sorted(_parts(members).items())}
    return Evaluation(groups, parts, seconds, tuple(judgments))


def source_of(row: Labelled) -> str:
    """`human` where a person judged, `derived` for all other rows."""
    return HUMAN if row.label_source == HUMAN else "derived"


def _parts(members: list[tuple[Labelled, Judgment | None]]) -> dict[str, list[tuple[Labelled, Judgment | None]]]:
    found: dict[str, list[tuple[Labelled, Judgment | None]]] = defaultdict(list)
    for pair in members:
        row = pair[0]
        found[source_of(row)].append(pair)
        found[f"{row.dataset}/{row.rule}"].append(pair)
    return found


def _figures(members: list[tuple[Labelled, Judgment | None]], seed: int) -> Figures:
    rows, judgments = zip(*members, strict=True)
    return figures(rows, judgments, seed=seed)
