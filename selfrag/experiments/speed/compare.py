"""Timing several ways of doing the same work against each other, so that noise of the machine hits all alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

from selfrag.experiments.speed.run import Run, Work


@dataclass(frozen=True, slots=True)
class Series:
    """One way, timed several times.

    Attributes:
        name: what is timed.
        questions: answered in each run.
        seconds: of each run.
        work: of the last run; greedy decoding makes all runs alike.
        texts: answers of the last run.
    """

    name: str
    questions: int
    seconds: tuple[float, ...]
    work: Work
    texts: tuple[str, ...]

    @property
    def speed(self) -> float:
        """Questions a second, from the median of the times."""
        return self.questions / median(self.seconds)


@dataclass(frozen=True, slots=True)
class Ratio:
    """Time of one way over the time of another, round by round.

    Attributes:
        median: of the rounds.
        low: smallest.
        high: largest.
    """

    median: float
    low: float
    high: float


def race(ways: Mapping[str, Callable[[], Run]], repeats: int, prepare: Callable[[], None]) -> dict[str, Series]:
    """Run all ways in turn, `repeats` times; every second round backwards.

    Args:
        ways: name to what runs it; in the first round they run in this order.
        repeats: rounds, at least 1.
        prepare: called before each run, outside the clock.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    last: dict[str, Run] = {}
    for number in range(repeats):
        for name in list(ways) if number % 2 == 0 else list(ways)[::-1]:
            prepare()
            last[name] = ways[name]()
            seconds[name].append(last[name].seconds)
    return {name: Series(name, len(run.texts), tuple(seconds[name]), run.work, run.texts) for name, run in last.items()}


def ratio(slow: Series, fast: Series) -> Ratio:
    """Time of `slow` over the time of `fast`, a question; rounds are compared with each other."""
    rounds = [(a / slow.questions) / (b / fast.questions) for a, b in zip(slow.seconds, fast.seconds, strict=True)]
    return Ratio(median(rounds), min(rounds), max(rounds))
