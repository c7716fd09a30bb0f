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
from selfrag.training.model import Tally, Trainee, measure
from selfrag.training.packing import filled, pack
from selfrag.training.rows import Example
from selfrag.training.settings import TrainingConfig, Weighting


def held_out(groups: Sequence[str], share: float, seed: int) -> frozenset[int]:
    """Numbers of the rows to hold out: a `share` of them, above 0 and below 1.

    Rows of one group (a conversation, a question) stay together, on one side or the other. A group that would go beyond
    the share is passed over; if all would, the smallest one is held out.

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
        lengths = [len(example) for example in self.examples]
        loads = filled(sorted(range(len(lengths)), key=lengths.__getitem__), lengths, self.step_tokens)
        tally = Tally()
        with torch.no_grad():
            for load in loads[process::processes]:
                losses, hits = trainee.losses(packed := pack([self.examples[row] for row in load], self.weighting))
                tally = tally + measure(packed, losses.cpu(), hits.cpu())
        return tally

    def stopped(self, records: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the last `patience` validations of a log brought no lower loss."""
        if self.patience is None:
            return False
        looks = _looks(records)
        return len(looks) > self.patience and min(looks) in looks[: -self.patience]


def improved(records: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the newest validation of a log is its best."""
    looks = _looks(records)
    return len(looks) > 0 and looks[-1] < min(looks[:-1], default=math.inf)


def log_step(journal: Journal, trainee: Trainee, figures: Mapping[str, Any], tally: Tally, seen: Tally | None) -> None:
    """Write the line of a step, and keep its parameters where its look at held-out rows is the best so far.

    Args:
        journal: of the run.
        trainee: after the step.
        figures: `step` and others that are no losses.
        tally: of the rows that were learned.
        seen: of the held-out rows; None where nobody looked.
    """
    record = {**figures, **tally.as_dict(trainee.tokenizer)}
    if seen is not None:
        record["validation"] = seen.as_dict(trainee.tokenizer)
        if improved([*journal.records(), record]):
            journal.save_best(record["step"], trainee.parameters)
    journal.log(record)


def keep_best(trainee: Trainee, journal: Journal) -> None:
    """Set the parameters to those of the best validation, if there was one."""
    if journal.load_best(trainee.parameters):
        trainee.refresh()


def _looks(records: Sequence[Mapping[str, Any]]) -> list[float]:
    """Held-out losses of a log."""
    return [float(one["validation"]["loss"]) for one in records if "validation" in one]
