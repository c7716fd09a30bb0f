"""A tokenizer one can read: a character is its code point, EOS is 2, reflection tokens start at 200,000."""

from __future__ import annotations

from collections.abc import Sequence

from retrieval.passage import Passage
from selfrag.prompting import Layout, Prompting
from selfrag.reflection.labels import TOKENS
from selfrag.reflection.vocabulary import Vocabulary
from selfrag.training.rows import (
    TargetEvidence,
    TargetPart,
    TargetText,
    TargetToken,
    TrainingRow,
)

EOS = 2
IDS = {token: 200_000 + i for i, token in enumerate(TOKENS)}
OPEN, CLOSE = IDS["<paragraph>"], IDS["</paragraph>"]
BARE = Layout("bare", before="", after="")


class Letters:
    """A `TextCodec` in which no text can be a control token: those ids are no code points."""

    bos_ids = (1,)

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(i) for i in ids)


PROMPTING = Prompting(Letters(), Vocabulary(IDS, EOS), BARE)


def letters(text: str) -> list[int]:
    """Ids of a text."""
    return [ord(letter) for letter in text]


def passage(text: str) -> TargetEvidence:
    """Evidence without title; its body is a line break and the text."""
    return TargetEvidence(Passage("p", text))


def row(
    *target: TargetPart | str,
    instruction: str = "q",
    weight: float = 1.0,
    source: str = "s",
    id: str = "r",  # noqa: A002 - the name of the field
) -> TrainingRow:
    """A row; strings in square brackets are reflection tokens, other strings are text."""
    parts = [
        part
        if not isinstance(part, str)
        else TargetToken(part)
        if part in IDS
        else TargetText(part)
        for part in target
    ]
    return TrainingRow(id, source, instruction, tuple(parts), weight)
