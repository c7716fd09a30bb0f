"""`Draft`: a row before it has a number, and the cut that every passage goes through. Knows no data set."""

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


def cut(passage: Passage, rng: random.Random, keep: str = "") -> Passage:
    """The passage cut to 75-110 words, now and then 160, so that its length says nothing about its label."""
    words = 160 if rng.random() < 0.08 else rng.randint(75, 110)
    return replace(passage, text=window(passage.text, words, rng, keep), score=None)


def sample(drafts: Iterable[Draft], count: int, rng: random.Random) -> list[Draft]:
    """At most `count` of `drafts`, in random order."""
    drafts = list(drafts)
    return rng.sample(drafts, min(count, len(drafts)))
