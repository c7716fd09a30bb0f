"""Recipes of adapters: the choice of rows, and the stage with its table `[rows]`.

`paper` has what arXiv 2504.11704 states: rank, learning rate, epochs, early stopping and the split. It states no batch
size, no alpha and no warm-up, and nothing for uncertainty; those are ours. `demo` trains all five in half an hour on
two idle CPU cores, on a model of 135M parameters: LoRA on the upper half of the layers, and some hundred rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from selfrag.training.recipes import CONFIGS, GENERATOR, Stage
from selfrag.training.settings import TrainingConfig

HELD_OUT = 0.1
"""Share of the rows to validate on; the paper's 90/10."""


@dataclass(frozen=True, slots=True)
class RowSelection:
    """How rows are chosen."""

    most_rows: int | None = None  # at most this many of those that give an example; None for all
    # sources alike in number, as far as they have rows; else in proportion. A source is a data set with a label, so a
    # label is then not guessed by where a row is from.
    even: bool = False
    most_slots: int | None = None  # at most this many targets of one row; None for all
    held_out: float = HELD_OUT  # share of the rows to validate on
    # further rows of citations with their evidence cut out, so that there is nothing to cite, as a share
    uncited: float = 0.0
    standalone: float = 0.0  # further rows of query rewrite whose last question stands on its own already, as a share
    isotonic: bool = True  # of the calibrator of uncertainty; False for temperature alone


ADAPTERS = Stage("intrinsics", CONFIGS / "intrinsics", {"training": TrainingConfig, "rows": RowSelection}, (GENERATOR,))
