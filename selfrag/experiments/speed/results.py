"""What the benchmark found, as plain values: `dataclasses.asdict` makes them JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from selfrag.experiments.speed.compare import Ratio, Series
from selfrag.experiments.speed.growth import Cell
from selfrag.experiments.speed.sizes import Sizes


@dataclass(frozen=True, slots=True)
class FormReport:
    """Everything measured in one form.

    Attributes:
        form: `short`, `long` or `overview`.
        segments: of an answer, on average.
        ours: on all questions.
        floor: the same requests in one call.
        over_floor: time of ours over that of the floor.
        rivals: ours, the faithful and the kind rival on the same few questions.
        faster: name of a rival to its time over ours, on the same few questions and per question against all of ours.
        ablations: ours and ours without one choice, on the same questions.
        slower: name of an ablation to its time over ours.
        same_text: name of an ablation to the share of its answers that equal ours.
    """

    form: str
    segments: float
    ours: Series
    floor: Series
    over_floor: Ratio
    rivals: tuple[Series, ...]
    faster: dict[str, tuple[Ratio, float]]
    ablations: tuple[Series, ...]
    slower: dict[str, Ratio]
    same_text: dict[str, float]


@dataclass(frozen=True, slots=True)
class Rescoring:
    """Time to re-rank recorded answers.

    Attributes:
        answers: how many.
        recorded: distinct ones among them; the others repeat these.
        nodes: candidates in all their traces.
        settings: weight settings.
        seconds: for all answers under all settings.
    """

    answers: int
    recorded: int
    nodes: int
    settings: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Report:
    """The benchmark's result; `dataclasses.asdict` makes it JSON."""

    machine: dict[str, Any]
    engine: dict[str, Any]
    sizes: Sizes
    forms: tuple[FormReport, ...]
    rescoring: Rescoring
    growth: tuple[Cell, ...]
