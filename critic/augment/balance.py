"""Down- and up-sampling of labels that would dominate or be missing (appendix A.3). Pure: one pair at a time.

Every decision is drawn from the seed and the pair's id alone, so it does not depend on order, shards or machines.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from types import MappingProxyType
from typing import Literal

from critic.augment.augmented import Augmented, Segment
from retrieval.checks import choice, number


@dataclass(frozen=True, slots=True)
class Balance:
    """How labels are balanced.

    Attributes:
        keep_unretrieved: share of the rows without any retrieval that is kept.
        irrelevant: share of the pairs of `kinds` that also show an irrelevant passage, where one was judged.
        mode: `add` makes a second row for it (up-sampling), `swap` changes the row.
        kinds: kinds of pair this is done for; the paper names open-domain QA.
    """

    keep_unretrieved: float = 1.0
    irrelevant: float = 0.0
    mode: Literal["add", "swap"] = "add"
    kinds: tuple[str, ...] = ("short_qa",)

    def __post_init__(self) -> None:
        for name in ("keep_unretrieved", "irrelevant"):
            number(f"balance {name}", getattr(self, name), 0, 1)
        choice("balance mode", self.mode, ("add", "swap"))


BALANCES: Mapping[str, Balance] = MappingProxyType(
    {
        "none": Balance(),
        "paper": Balance(keep_unretrieved=0.5, irrelevant=0.25),
        "official": Balance(keep_unretrieved=0.4, irrelevant=0.25, mode="swap"),
    }
)
"""By name. The paper gives 50% and no figure for the up-sampling; a quarter is what the published code swaps."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One row to be written: what it says, what its id ends in, and why it is there."""

    augmented: Augmented
    suffix: str
    why: str


def variants(augmented: Augmented, balance: Balance, seed: int) -> list[Variant]:
    """The rows a pair gives: none if it is sampled out, two if an irrelevant passage is added."""
    rng = random.Random(f"{seed}/balance/{augmented.pair.id}")  # noqa: S311 - sampling, no secret
    keep, add = rng.random(), rng.random()
    if not augmented.retrieves:
        kept = keep < balance.keep_unretrieved
        return [Variant(augmented, "", f"no retrieval, kept {balance.keep_unretrieved:g}")] if kept else []
    plain = Variant(augmented, "", "retrieves")
    if augmented.pair.kind not in balance.kinds or add >= balance.irrelevant:
        return [plain]
    swapped = _with_irrelevant(augmented, rng)
    if swapped is None:
        return [plain]
    if balance.mode == "swap":
        return [Variant(swapped, "", f"irrelevant passage swapped in, {balance.irrelevant:g}")]
    return [plain, Variant(swapped, "#irrelevant", f"irrelevant passage added, {balance.irrelevant:g}")]


def _with_irrelevant(augmented: Augmented, rng: random.Random) -> Augmented | None:
    """One retrieved segment with an irrelevant candidate in the place of its passage, if any can have one.

    A segment whose passage a later one continues with keeps it, also if a sentence without retrieval is between them.
    """
    segments = augmented.segments
    able = [
        number
        for number, segment in enumerate(segments)
        if segment.others_irrelevant and not _continued(segments[number + 1 :])
    ]
    if not able:
        return None
    number = rng.choice(able)
    segment = segments[number]
    swapped: Segment = replace(segment, chosen=rng.choice(segment.others_irrelevant), rule="irrelevant, for balance")
    return replace(augmented, segments=(*segments[:number], swapped, *segments[number + 1 :]))


def _continued(later: Sequence[Segment]) -> bool:
    """Whether one of the segments up to the next passage goes on with the passage before them."""
    return any(segment.continues for segment in takewhile(lambda segment: segment.chosen is None, later))
