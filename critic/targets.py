"""How many rows of each group and label are wanted, and which rows fill that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from critic.cases import GROUPS
from retrieval.errors import UserError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Targets:
    """Wanted numbers of rows."""

    groups: Mapping[str, int] = field(default_factory=dict)  # group -> most rows of it
    labels: Mapping[tuple[str, str], int] = field(default_factory=dict)  # (group, label) -> most rows of it

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Targets:
        """Targets as they are written: `IsSup=500` for a group, `IsSup/Partially supported=200` for a label.

        Raises:
            UserError: an unknown group or label, no number, or the same twice.
        """
        groups: dict[str, int] = {}
        labels: dict[tuple[str, str], int] = {}
        for text in texts:
            name, _, number = text.rpartition("=")
            group, _, label = name.partition("/")
            if group not in GROUPS:
                raise UserError(f"target {text!r}: unknown group {group!r}; give one of {', '.join(GROUPS)} as GROUP=N")
            if not number.isascii() or not number.isdigit() or len(number) > 9:
                raise UserError(f"target {text!r}: {number!r} is no number of rows; write GROUP=N or GROUP/LABEL=N")
            if label and label not in GROUPS[group].names:
                raise UserError(f"target {text!r}: {group} has the labels {', '.join(GROUPS[group].names)}")
            if (group, label) in labels or (not label and group in groups):
                raise UserError(f"target {name!r} is given twice; give it once")
            if label:
                labels[group, label] = int(number)
            else:
                groups[group] = int(number)
        return cls(groups, labels)

    def as_dict(self) -> dict[str, int]:
        """As written, name to number."""
        return {**self.groups, **{f"{group}/{label}": count for (group, label), count in self.labels.items()}}


PAPER = Targets({"Retrieve": 12_594, "IsSup": 11_181, "IsRel": 19_317, "IsUse": 3_831})
"""Rows of the paper's critic data (appendix A.1)."""


class Filling:
    """Counts rows towards targets."""

    def __init__(self, targets: Targets) -> None:
        self._targets = targets
        self._kept: Counter[tuple[str, str]] = Counter()

    def add(self, group: str, label: str) -> bool:
        """Count a row if it is wanted; whether it was."""
        if not self.open(group) or self._kept[group, label] >= self._most(group, label):
            return False
        self._kept[group, label] += 1
        return True

    def open(self, group: str) -> bool:
        """Whether more rows of a group are wanted.

        With a target for the group: until it is reached, or every label is full. With targets for labels only: until
        each of those is reached; labels without one are kept meanwhile. Without any: always.
        """
        names = GROUPS[group].names
        total = self._targets.groups.get(group)
        if total is not None:
            full = all(self._kept[group, name] >= self._most(group, name) for name in names)
            return sum(self._kept[group, name] for name in names) < total and not full
        named = [name for name in names if (group, name) in self._targets.labels]
        return not named or any(self._kept[group, name] < self._most(group, name) for name in named)

    def _most(self, group: str, label: str) -> float:
        return self._targets.labels.get((group, label), float("inf"))


def fill(rows: Iterable[tuple[str, str, T]], targets: Targets) -> tuple[list[T], list[T]]:
    """The rows that fill the targets, first come first kept, and the surplus.

    A group takes nothing after its targets are reached, so that rows labelled beyond that point, because they were
    under way, change nothing. `rows` are (group, label, row), in a fixed order.
    """
    filling = Filling(targets)
    kept: list[T] = []
    surplus: list[T] = []
    for group, label, row in rows:
        (kept if filling.add(group, label) else surplus).append(row)
    return kept, surplus


def missing(rows: Sequence[tuple[str, str]], targets: Targets) -> dict[str, int]:
    """Target as written -> rows still lacking, for those not reached by (group, label) rows."""
    groups, labels = Counter(group for group, _ in rows), Counter(rows)
    lacking = {group: count - groups[group] for group, count in targets.groups.items()}
    lacking |= {f"{group}/{label}": count - labels[group, label] for (group, label), count in targets.labels.items()}
    return {name: count for name, count in lacking.items() if count > 0}
