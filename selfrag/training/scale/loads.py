"""The plan of a run as a data set: for each step the same number of loads for every process. Knows no trainer.

A step's rows are dealt out, balanced by tokens, to `processes * accumulation` loads. Each load carries the weight of
its whole step, so that the gradient is that of the step's weighted mean however it was dealt, with no communication.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils.data import Dataset

from selfrag.training.batching import Step, split
from selfrag.training.packing import Pack, Weighting, pack, weight_of
from selfrag.training.targets import Example


@dataclass(frozen=True, slots=True)
class Load:
    """What one process computes at once.

    Attributes:
        pack: the rows; an empty share of a small step holds one row with weight 0.
        total: weight of the whole step, all loads of all processes.
    """

    pack: Pack
    total: float

    def to(self, device: Any) -> Load:
        """The same on another device."""
        return replace(self, pack=self.pack.to(device))


@dataclass(eq=False)
class Loads(Dataset[Load]):
    """All loads of a run, in the order step, accumulation, process.

    Attributes:
        examples: of the run.
        steps: the plan; the loads in it are dealt anew.
        weighting: share of each kind of position.
        processes: how many compute side by side.
        micro_tokens: most tokens of a load, unless a single row is longer.
        accumulation: loads of one process in a step, the same in every step; the fewest that keep `micro_tokens`.
    """

    examples: Sequence[Example]
    steps: Sequence[Step]
    weighting: Weighting
    processes: int
    micro_tokens: int
    accumulation: int = field(init=False)

    def __post_init__(self) -> None:
        self._lengths = [len(example) for example in self.examples]
        self._weights = [weight_of(example, self.weighting) for example in self.examples]
        self._rows = [[row for load in step for row in load] for step in self.steps]
        self.accumulation = max((self._needed(rows) for rows in self._rows), default=1)

    def __len__(self) -> int:
        return len(self.steps) * self.per_step

    @property
    def per_step(self) -> int:
        """Loads in a step."""
        return self.accumulation * self.processes

    def tokens_of(self, step: int) -> int:
        """Tokens of a step, all processes together."""
        return sum(self._lengths[row] for row in self._rows[step])

    def __getitem__(self, index: int) -> Load:
        step, place = divmod(index, self.per_step)
        rows = self._rows[step]
        dealt = split(rows, self._lengths, self.per_step)
        total = sum(self._weights[row] for row in rows)
        if place < len(dealt):
            return Load(pack([self.examples[row] for row in dealt[place]], self.weighting), total)
        shortest = min(rows, key=lambda row: self._lengths[row])
        idle = pack([self.examples[shortest]], self.weighting)
        return Load(replace(idle, weights=torch.zeros_like(idle.weights)), total)

    def _needed(self, rows: Sequence[int]) -> int:
        """Loads a process needs for one step."""
        longest = max(self._lengths[row] for row in rows)
        limit = max(self.micro_tokens, longest)
        count = max(1, -(-sum(self._lengths[row] for row in rows) // (limit * self.processes)))
        while count * self.processes < len(rows) and self._heaviest(rows, count * self.processes) > limit:
            count += 1
        return count

    def _heaviest(self, rows: Sequence[int], loads: int) -> int:
        return max(sum(self._lengths[row] for row in load) for load in split(rows, self._lengths, loads))


def only(loads: Sequence[Load]) -> dict[str, Load]:
    """Collator for a batch of one load."""
    (load,) = loads
    return {"load": load}
