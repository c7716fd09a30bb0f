"""`Augmenting`: everything that decides what is written, as one frozen value. Knows no critic and no file."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args, get_type_hints

from critic.augment.balance import BALANCES, Balance
from retrieval.checks import choice, number, whole
from retrieval.errors import UserError


@dataclass(frozen=True, slots=True)
class Augmenting:
    """How pairs become training rows. The same value, seed included, gives the same rows on any number of machines.

    Attributes:
        seed: of every random choice; each pair draws from a generator of its own, so its order in the file and its
            neighbours do not matter.
        passages: passages a search (K), > 0.
        threshold: retrieve at the start if p(Retrieval) / (p(Retrieval) + p(No Retrieval)) is above this (A.4).
        initial: what the first judgment sees. `instruction`: only that, as at inference; `output`: the output too
            (Algorithm 3), which is what a critic wants whose training rows always showed it.
        first: the Retrieve token of the first sentence. `initial`: the decision made from the instruction, which is
            what the generator decides from; `judged`: judged like any other sentence of an output of several (the
            paper's letter).
        choice: among relevant passages: `paper` takes the best retrieved of those that support fully or partly;
            `graded` takes a fully supporting one before a partly supporting one (as the published code), then the
            best retrieved.
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
    balance: Balance = field(default_factory=lambda: BALANCES["paper"])

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for item in fields(self):
            value, choices = getattr(self, item.name), get_args(hints[item.name])
            if choices:
                choice(item.name, value, choices)
        whole("passages", self.passages)
        number("threshold", self.threshold, 0, 1)
        if self.threshold == 1:
            raise UserError("threshold=1: no critic is that sure; give a number below 1")
        whole("shortest", self.shortest, 0)
        whole("longest", self.longest, 1, LONGEST)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


LONGEST = 100_000
"""Characters that spaCy gets at once; its memory grows with them."""
