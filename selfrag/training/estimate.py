"""What a run will take before it starts: tokens and steps, exactly. No weights are loaded."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import nlargest
from itertools import chain

from selfrag.common.errors import count_of
from selfrag.training.rows import MASKED
from selfrag.training.run import PreparedRows, plan
from selfrag.training.settings import Scale, TrainingConfig


@dataclass(frozen=True, slots=True)
class RunEstimate:
    """What a run takes."""

    steps: int  # optimiser steps
    tokens: int  # over the whole run
    targets: int  # positions with a loss over the whole run
    largest_load: int  # tokens that one process holds at once

    def lines(self, passes: int) -> list[str]:
        """Return the estimate for people, a line a subject."""
        over = count_of(passes, "passes")
        return [
            f"tokens      {self.tokens} over {over}, {self.targets} of them with a loss",
            f"steps       {self.steps}, at most {count_of(self.largest_load, 'tokens')} at once a process",
        ]


def estimate(
    prepared: PreparedRows, config: TrainingConfig, scale: Scale | None
) -> RunEstimate:
    """Count what a run takes."""
    steps = plan(prepared, config)
    lengths = [len(example) for example in prepared.examples]
    rows = list(chain.from_iterable(chain.from_iterable(steps)))
    tokens = sum(lengths[row] for row in rows)
    masked = sum(prepared.examples[row].labels.count(MASKED) for row in rows)
    # tokens in memory at once: of the CPU loop a load a worker, of the Trainer one load
    largest = 0
    for step in steps:
        loads = [sum(lengths[row] for row in load) for load in step]
        largest = max(largest, sum(nlargest(config.workers, loads)))
    if scale is not None:
        largest = max(scale.micro_tokens, *lengths)
    return RunEstimate(len(steps), tokens, tokens - masked, largest)
