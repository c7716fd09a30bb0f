"""The grid of cut-off x passage order x examples x prompt. A cell is one method; the paper has 81."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeVar

from selfrag.experiments.self_interpretation.prompts import Asking, asking
from selfrag.experiments.self_interpretation.settings import ORDERS, PAPER, GridSettings
from selfrag.interface import UserError, count_of

MOST_EXAMPLES = 2
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GridCell:
    """One method of the grid."""

    cutoff: int  # passages in the prompt: the best so many
    order: str  # best first; `top-last`: the best one after all others; `random`; `reversed`: best last
    examples: int  # demonstrations before the question, 0 to 2
    prompt: str  # name of the strategy

    def __post_init__(self) -> None:
        if self.cutoff < 1 or not 0 <= self.examples <= MOST_EXAMPLES:
            raise UserError(
                f"cut-off {self.cutoff}, {count_of(self.examples, 'examples')}: give at least 1, and 0 to 2"
            )
        if self.order not in ORDERS:
            raise UserError(f"unknown order {self.order!r}; known: {', '.join(ORDERS)}")
        if self.strategy.needs_examples and not self.examples:
            raise UserError(
                f"the prompt {self.prompt} asks about examples; give --examples 1 or 2 with it"
            )

    @property
    def strategy(self) -> Asking:
        """Return the strategy."""
        return asking(self.prompt)

    @property
    def name(self) -> str:
        """Return the name in files and options, such as `k3-ranked-0-basic`."""
        return f"k{self.cutoff}-{self.order}-{self.examples}-{self.prompt}"

    @classmethod
    def from_dict(cls, values: Any) -> GridCell:
        """Return a cell of plain values."""
        try:
            return cls(
                int(values["cutoff"]),
                str(values["order"]),
                int(values["examples"]),
                str(values["prompt"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"no cell of a grid: {values!r:.80}") from error


def grid(axes: GridSettings = PAPER) -> tuple[GridCell, ...]:
    """Return all combinations, the paper's 81 by default; prompts which begin alike follow each other."""
    strategies = [asking(name) for name in dict.fromkeys(axes.prompts)]
    cells = []
    for strategy, shots, cutoff, order in product(
        strategies,
        dict.fromkeys(axes.examples),
        dict.fromkeys(axes.cutoffs),
        dict.fromkeys(axes.orders),
    ):
        if shots or not strategy.needs_examples:
            cells.append(GridCell(cutoff, order, shots, strategy.name))
    if not cells:
        raise UserError(
            "nothing is left of the grid: the prompt examples needs --examples 1 or 2"
        )
    return tuple(cells)


def arranged(ranking: Sequence[T], cutoff: int, order: str, seed: str) -> tuple[T, ...]:
    """Return the best `cutoff` of a ranking in the order of a cell; the seed of `random` has the item's id within."""
    kept = list(ranking[:cutoff])
    if order == "top-last":
        kept = [*kept[1:], *kept[:1]]
    elif order == "reversed":
        kept.reverse()
    elif order == "random":
        random.Random(seed).shuffle(kept)  # noqa: S311 - no cryptography
    return tuple(kept)
