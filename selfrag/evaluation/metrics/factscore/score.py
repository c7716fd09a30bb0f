"""FactScore from verdicts on atomic facts, with and without its penalty for short answers. Pure numbers.

Source: FActScore (arXiv 2305.14251) and its code: the mean over answers that are not abstentions; an answer of at most
`GAMMA` facts is multiplied by exp(1 - gamma / facts).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from selfrag.evaluation.metrics.metric import Part

GAMMA = 10

NAMES = ("factscore", "factscore_unpenalised", "facts", "responds")


@dataclass(frozen=True, slots=True)
class Fact:
    """A statement of an answer.

    Attributes:
        text: that cannot be split further.
        supported: by the knowledge source; None where the judge gave no verdict.
    """

    text: str
    supported: bool | None


@dataclass(frozen=True, slots=True)
class Facts:
    """What became of one answer.

    Attributes:
        facts: in the order of the answer; empty where it abstains or states nothing.
        failed: why its facts could not be found, or empty.
    """

    facts: tuple[Fact, ...] = ()
    failed: str = ""

    @property
    def decided(self) -> bool:
        """Whether every fact was found and judged."""
        return not self.failed and all(fact.supported is not None for fact in self.facts)


def penalty(facts: int, gamma: int = GAMMA) -> float:
    """Factor for an answer of so many facts, at least one; `gamma` 0 turns it off."""
    return 1.0 if facts > gamma else math.exp(1 - gamma / facts)


def parts(found: Facts | None, gamma: int = GAMMA) -> Mapping[str, Part | None]:
    """What an answer adds to each figure of `NAMES`.

    An abstention counts in `responds` only, and an answer with a missing verdict nowhere, as nobody knows its score.

    Args:
        found: None for an item that failed: no response, like an abstention.
        gamma: of the penalty.
    """
    if found is not None and not found.decided:
        return dict.fromkeys(NAMES)
    facts = () if found is None else found.facts
    if not facts:
        return {**dict.fromkeys(NAMES), "responds": (0.0, 1.0)}
    share = sum(bool(fact.supported) for fact in facts) / len(facts)
    return {
        "factscore": (share * penalty(len(facts), gamma), 1.0),
        "factscore_unpenalised": (share, 1.0),
        "facts": (float(len(facts)), 1.0),
        "responds": (1.0, 1.0),
    }
