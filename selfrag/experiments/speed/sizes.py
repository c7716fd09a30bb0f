"""How much of everything the benchmark measures; the defaults take about a quarter of an hour on two cores."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything.

    Attributes:
        questions: for ours and the floor.
        passages: of each question.
        repeats: rounds of ours against the floor, whose ratio must be exact.
        rounds: of everything else.
        rival_short: questions of the rivals, which are slow, in the short form.
        rival_long: the same in the long form.
        ablated_short: questions of the ablations in the short form.
        ablated_long: the same in the long form.
        growth: (questions, passages) of each cell of the growth table.
        rescored: recorded answers that are rescored.
        settings: weight settings under which each is rescored.
    """

    questions: int = 64
    passages: int = 5
    repeats: int = 3
    rounds: int = 2
    rival_short: int = 8
    rival_long: int = 4
    ablated_short: int = 32
    ablated_long: int = 16
    growth: tuple[tuple[int, int], ...] = tuple((q, p) for q in (16, 64, 256) for p in (2, 5, 10))
    rescored: int = 500
    settings: int = 1000

    @property
    def items(self) -> tuple[int, int]:
        """Questions, and passages of each, that must be read."""
        questions = max([self.questions, *(q for q, _ in self.growth)])
        return questions, max([self.passages, *(p for _, p in self.growth)])
