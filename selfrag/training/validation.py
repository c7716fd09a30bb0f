"""Held-out rows: when to look at their loss, which parameters were the best, when to stop."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from selfrag.errors import UserError
from selfrag.training.journal import Journal
from selfrag.training.loss import Tally, measure
from selfrag.training.model import Trainee
from selfrag.training.packing import pack
from selfrag.training.rows import Example
from selfrag.training.settings import TrainingConfig, Weighting


def held_out(groups: Sequence[str], share: float, seed: int) -> frozenset[int]:
    """Numbers of the rows to hold out.

    Rows of one group (a conversation, a question) stay together, on one side or the other. A group that would go beyond
    the share is passed over; if all would, the smallest one is held out.

    Args:
        groups: of each row.
        share: of the rows, above 0 and below 1.
        seed: of the draw.

    Raises:
        UserError: the share leaves nothing on one side.
    """
    members: dict[str, list[int]] = defaultdict(list)
    for row, group in enumerate(groups):
        members[group].append(row)
    order = sorted(members)
    random.Random(seed).shuffle(order)  # noqa: S311 - a split, not a secret
    wanted = math.ceil(share * len(groups))
    chosen: list[int] = []
    for group in order:
        if len(chosen) + len(members[group]) <= wanted:
            chosen.extend(members[group])
    if not chosen and order:
        chosen = members[min(order, key=lambda group: len(members[group]))]
    if not 0 < len(chosen) < len(groups):
        raise UserError(f"holding out {share:g} of {len(groups)} rows leaves nothing on one side")
    return frozenset(chosen)


@dataclass(frozen=True, slots=True)
class Validation:
    """The rule of one run."""

    examples: Sequence[Example]  # held-out rows; without any, nothing is done
    weighting: Weighting  # of the loss, that of training
    every: int  # steps between two looks; there is always one after the last step
    patience: int | None = None  # looks without a lower loss after which the run stops; None for never
    step_tokens: int = 4096  # tokens computed at once

    @classmethod
    def of(cls, examples: Sequence[Example], config: TrainingConfig) -> Validation:
        """The rule that a configuration has for these held-out rows."""
        return cls(examples, config.weighting, config.validate_steps, config.patience)

    def due(self, step: int, total: int) -> bool:
        """Whether to validate after this many steps."""
        return bool(self.examples) and (step % self.every == 0 or step == total)

    def look(self, trainee: Trainee, process: int = 0, processes: int = 1) -> Tally:
        """Loss and hits over the held-out rows, or over this process's share of them.

        Args:
            trainee: the model; with shards it cannot be used outside a step.
            process: number of this process.
            processes: how many look side by side; their tallies add up to the whole.
        """
        tally = Tally()
        with torch.no_grad():
            for load in self._loads()[process::processes]:
                losses, hits = trainee.losses(packed := pack(load, self.weighting))
                tally = tally + measure(packed, losses.cpu(), hits.cpu())
        return tally

    def _loads(self) -> list[list[Example]]:
        loads: list[list[Example]] = [[]]
        room = self.step_tokens
        for example in sorted(self.examples, key=len):
            if loads[-1] and len(example) > room:
                loads.append([])
                room = self.step_tokens
            loads[-1].append(example)
            room -= len(example)
        return loads

    def best(self, records: Sequence[Mapping[str, Any]]) -> int | None:
        """Step of the lowest held-out loss in a log; None without a validation."""
        looks = _looks(records)
        return min(looks, key=lambda one: (one[1], one[0]))[0] if looks else None

    def stopped(self, records: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the last `patience` validations of a log brought no lower loss."""
        if self.patience is None:
            return False
        steps = [step for step, _ in _looks(records)]
        best = self.best(records)
        return best is not None and len(steps) - 1 - steps.index(best) >= self.patience


def improved(records: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the newest validation of a log is its best."""
    looks = _looks(records)
    return len(looks) > 0 and all(looks[-1][1] < loss for _, loss in looks[:-1])


def keep_best(trainee: Trainee, journal: Journal) -> None:
    """Set the parameters to those of the best validation, if there was one."""
    if journal.load_best(trainee.parameters):
        trainee.refresh()


def _looks(records: Sequence[Mapping[str, Any]]) -> list[tuple[int, float]]:
    return [(int(one["step"]), float(one["validation"]["loss"])) for one in records if "validation" in one]
