"""Critics for tests: verdicts by a function of the moment, asked for with real requests or with none; all recorded."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from written import PROMPTING

from selfrag.decoding.reflectors import Asking, Moment, Verdict
from selfrag.decoding.requests import Generate
from selfrag.reflection.judgment import Judgment, Source
from selfrag.reflection.labels import ISSUP, LabelSet


def says(*distribution: float, labels: LabelSet = ISSUP, source: Source = Source.ADAPTER) -> Judgment:
    """A judgment with this distribution."""
    return Judgment(labels, "somewhere", distribution, 1.0, source)


@dataclass
class Scripted:
    """A critic that answers `verdict(moment)`.

    Attributes:
        name: as in the policy.
        verdict: a judgment, several of them (one a place), or None for undefined.
        asks: whether each moment costs a one-token request.
    """

    name: str
    verdict: Callable[[Moment], Judgment | Sequence[Judgment] | None]
    cost: int = 1
    of_passages: bool = False
    needs_evidence: bool = True
    asks: bool = False
    moments: list[Moment] = field(default_factory=list)

    def judge(self, moments: Sequence[Moment]) -> Asking[list[Verdict]]:
        self.moments += moments
        if self.asks:
            yield [Generate(PROMPTING.prompt("Q"), 1) for _ in moments]
        found = []
        for moment in moments:
            made = self.verdict(moment)
            places = () if made is None else (made,) if isinstance(made, Judgment) else tuple(made)
            found.append(Verdict(places))
        return found


def draw(seed: int, *parts: str) -> random.Random:
    """Reproducible chance for some texts."""
    return random.Random(zlib.crc32(repr((seed, parts)).encode()))


def distribution(seed: int, *parts: str, size: int = 3) -> tuple[float, ...]:
    """A distribution that depends on some texts only; ties are common."""
    chance = draw(seed, *parts)
    raw = [chance.choice((0.1, 0.2, 0.5, chance.random() + 0.01)) for _ in range(size)]
    return tuple(value / sum(raw) for value in raw)
