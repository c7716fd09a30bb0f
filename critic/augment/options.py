"""Settings of an augmentation run that decide which rows are written: `AugmentOptions` and its `Balance`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Literal, get_args, get_type_hints

from retrieval.checks import choice, number, whole
from retrieval.errors import UserError

LONGEST = 100_000
"""Characters that spaCy gets at once; its memory grows with them."""


@dataclass(frozen=True, slots=True)
class Balance:
    """Down- and up-sampling of labels that would dominate or be missing (appendix A.3).

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
        number("balance keep_unretrieved", self.keep_unretrieved, 0, 1)
        number("balance irrelevant", self.irrelevant, 0, 1)
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
class AugmentOptions:
    """How pairs become training rows. Equal options, seed included, give equal rows on any number of machines.

    Attributes:
        seed: of every random choice; each pair draws from its own generator, so order and neighbours do not matter.
        passages: passages a search (K), > 0.
        threshold: retrieve at the start if p(Retrieval) / (p(Retrieval) + p(No Retrieval)) is above this (A.4).
        initial: what the first judgment sees. `instruction`: only that, as at inference; `output`: the output too
            (Algorithm 3), which suits a critic whose training rows always showed it.
        first: the Retrieve token of the first sentence. `initial`: the decision made from the instruction, as the
            generator decides; `judged`: like any other sentence (the paper's letter).
        choice: among relevant passages: `paper` takes the best retrieved of those that support fully or partly;
            `graded` prefers full to partial support (as the published code), then the best retrieved.
        unsupported: where no passage is relevant and supports the sentence: `random` draws one of them (paper), `best`
            takes the best retrieved, `drop` leaves the pair out and counts it.
        gold: passages that the pair brings: `off` ignores them, `join` puts them before the retrieved candidates,
            `only` searches nothing for pairs that have some.
        judge_all: judge IsSup for irrelevant passages too; only the provenance changes.
        query: `full` searches with the instruction as it is; `input` leaves out a task instruction before its input.
        sentences: `rules`, or the name of an installed spaCy model.
        shortest: a sentence of fewer characters ("1.", "Yes.") joins its neighbour.
        longest: pairs with more characters in instruction and output are left out and counted.
        balance: down- and up-sampling.
    """

    seed: int = 0
    passages: int = 5
    threshold: float = 0.5
    initial: Literal["instruction", "output"] = "instruction"
    first: Literal["initial", "judged"] = "initial"
    choice: Literal["paper", "graded"] = "paper"
    unsupported: Literal["random", "best", "drop"] = "random"
    gold: Literal["off", "join", "only"] = "off"
    judge_all: bool = False
    query: Literal["full", "input"] = "full"
    sentences: str = "rules"
    shortest: int = 12
    longest: int = 20_000
    balance: Balance = BALANCES["paper"]

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for item in fields(self):
            if choices := get_args(hints[item.name]):
                choice(item.name, getattr(self, item.name), choices)
        whole("passages", self.passages)
        number("threshold", self.threshold, 0, 1)
        if self.threshold == 1:
            raise UserError("threshold=1: no critic is that sure; give a number below 1")
        whole("shortest", self.shortest, 0)
        whole("longest", self.longest, 1, LONGEST)
