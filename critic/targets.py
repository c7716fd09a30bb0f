"""Wanted numbers of labelled rows, by group or by label; counting towards them, and for reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from critic.cases import GROUPS
from selfrag.interface import UserError


def parse_targets(texts: Iterable[str]) -> dict[str, int]:
    """Read wanted numbers of rows: `IsSup=500` for a group, `IsSup/Partially supported=200` for a label."""
    targets: dict[str, int] = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        group, _, label = name.partition("/")
        if group not in GROUPS:
            raise UserError(
                f"target {text!r}: unknown group {group!r}; give one of {', '.join(GROUPS)} as GROUP=N"
            )
        if not number.isascii() or not number.isdigit() or len(number) > 9:
            raise UserError(
                f"target {text!r}: {number!r} is no number of rows; write GROUP=N or GROUP/LABEL=N"
            )
        if label and label not in GROUPS[group].names:
            raise UserError(
                f"target {text!r}: {group} has the labels {', '.join(GROUPS[group].names)}"
            )
        name = group
        if label:
            name = f"{group}/{label}"
        if name in targets:
            raise UserError(f"target {name!r} is given twice; give it once")
        targets[name] = int(number)
    return targets


PAPER = {"Retrieve": 12_594, "IsSup": 11_181, "IsRel": 19_317, "IsUse": 3_831}
"""Rows of the paper's critic data (appendix A.1)."""


class Filling:
    """Counts rows towards targets, which are named as in `parse_targets`; first come, first kept.

    A group takes nothing after its targets are reached, so that rows labelled beyond that point, because they were
    under way, change nothing.
    """

    def __init__(self, targets: Mapping[str, int]) -> None:
        self._targets = targets
        self._kept: Counter[str] = Counter()

    def add(self, group: str, label: str) -> bool:
        """Count a row if it is wanted, and return whether it was."""
        name = f"{group}/{label}"
        if not self.open(group) or self._full(name):
            return False
        self._kept.update((group, name))
        return True

    def open(self, group: str) -> bool:
        """Return whether more rows of a group are wanted.

        With a target for the group: until it is reached, or every label is full. With targets for labels only: until
        each of those is reached; labels without one are kept meanwhile. Without any: always.
        """
        labels = [f"{group}/{label}" for label in GROUPS[group].names]
        if group not in self._targets:
            labels = [name for name in labels if name in self._targets]
        return not self._full(group) and not (labels and all(map(self._full, labels)))

    def _full(self, name: str) -> bool:
        return name in self._targets and self._kept[name] >= self._targets[name]

    def missing(self) -> dict[str, int]:
        """Return the rows still lacking of each target that is not reached."""
        return {
            name: count - self._kept[name]
            for name, count in self._targets.items()
            if not self._full(name)
        }


def counted(keys: Iterable[tuple[str, ...]]) -> list[tuple[object, ...]]:
    """Return distinct keys in order, each followed by how often it came."""
    return [(*key, count) for key, count in sorted(Counter(keys).items())]
