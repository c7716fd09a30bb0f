"""A tokenizer one can read: a character is its code point, EOS is 2, reflection tokens start at 200,000."""

from retrieval.passage import Passage
from selfrag.prompting import Layout, Prompting
from selfrag.reflection.labels import TOKENS
from selfrag.reflection.vocabulary import Vocabulary
from selfrag.training.rows import TargetEvidence, TargetText, TargetToken, TrainingRow

EOS = 2
IDS = {token: 200_000 + i for i, token in enumerate(TOKENS)}
OPEN, CLOSE = IDS["<paragraph>"], IDS["</paragraph>"]
BARE = Layout("bare", before="", after="")


class Letters:
    """A `TextCodec` in which no text can be a control token: those ids are no code points."""

    bos_ids = (1,)

    def encode(self, text):
        return [ord(letter) for letter in text]

    def decode(self, ids):
        return "".join(chr(i) for i in ids)


PROMPTING = Prompting(Letters(), Vocabulary(IDS, EOS), BARE)


def letters(text):
    """Ids of a text."""
    return [ord(letter) for letter in text]


def passage(text):
    """Evidence without title; its body is a line break and the text."""
    return TargetEvidence(Passage("p", text))


def row(
    *target,
    instruction="q",
    weight=1.0,
    source="s",
    id="r",  # noqa: A002 - the name of the field
):
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
