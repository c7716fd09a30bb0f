"""`Draft`: a row before it has a number, and `Cutter`: the cut that every passage goes through. Knows no data set."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace

from retrieval.passage import Passage
from selfrag.training.demo.wikitext import window
from selfrag.training.rows import Part, Row


@dataclass(frozen=True, slots=True)
class Draft:
    """A training row without its id.

    Attributes:
        source: `data set/kind`, what the manifest counts.
        instruction: what the user asks.
        target: what the model shall write.
        weight: factor on the row's loss.
        copies: how often the row is written, for kinds that are rare.
    """

    source: str
    instruction: str
    target: tuple[Part, ...]
    weight: float = 1.0
    copies: int = 1

    def row(self, number: int) -> Row:
        """The row with its id."""
        return Row(f"demo-{number:05d}", self.source, self.instruction, self.target, self.weight)


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long passages are after the cut, in words.

    Attributes:
        usual: most are cut to a random number between these.
        long: the others are cut to this.
        long_share: how many those are.
    """

    usual: tuple[int, int] = (75, 110)
    long: int = 160
    long_share: float = 0.08


@dataclass(frozen=True, slots=True)
class Cutter:
    """Cuts every passage, whatever its label, so that length and place say nothing about the label."""

    lengths: Lengths
    rng: random.Random

    def __call__(self, passage: Passage, keep: str = "") -> Passage:
        """The passage cut to whole sentences around `keep`."""
        lengths, rng = self.lengths, self.rng
        words = lengths.long if rng.random() < lengths.long_share else rng.randint(*lengths.usual)
        return replace(passage, text=window(passage.text, words, rng, keep), score=None)


def sample(drafts: Iterable[Draft], count: int, rng: random.Random) -> list[Draft]:
    """At most `count` of `drafts`, in random order."""
    drafts = list(drafts)
    return rng.sample(drafts, min(count, len(drafts)))
