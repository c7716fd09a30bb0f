"""Words of a text that is written in tokens, and which of them mean something by themselves."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass

STOP_WORDS = (
    " a about after again all also an and any are as at be because been before being between both but by can could"
    " did do does doing during each few for from further had has have having he her here hers him his how i if in"
    " into is it its just me more most my no nor not of off on once only or other our out over own same she should"
    " so some such than that the their theirs them then there these they this those through to too under until up"
    " very was we were what when where which while who whom why will with would you your thus answer "
)
"""Each between two spaces."""


@dataclass(frozen=True, slots=True)
class Word:
    """A run of tokens of which only the first may begin with white space."""

    text: str  # without white space and punctuation around it
    tokens: slice  # positions of its tokens

    @property
    def has_content(self) -> bool:
        """Return whether it is no stop word."""
        return bool(self.text) and f" {self.text.casefold()} " not in STOP_WORDS


def words_of(texts: Sequence[str]) -> list[Word]:
    """Return the words of the texts of tokens; signs between spaces are words without a text."""
    words = []
    first = 0
    for position in range(1, len(texts) + 1):
        if position == len(texts) or texts[position][:1].isspace():
            text = "".join(texts[first:position]).strip()
            words.append(Word(text.strip(string.punctuation), slice(first, position)))
            first = position
    return words
