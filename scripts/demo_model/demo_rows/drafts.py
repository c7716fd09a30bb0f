"""A training row before it has a number, its cut passage, its reflection tokens, and the text it is made of."""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from retrieval.passage import Passage
from selfrag.experiments.intrinsics.conversations import PassageSearch
from selfrag.training.rows import (
    TargetEvidence,
    TargetPart,
    TargetText,
    TargetToken,
    TrainingRow,
)

T = TypeVar("T")
_SPACE_BEFORE = re.compile(
    r"(?<!\s)\s+([,.;:!?%)\]\u2019]|'s\b|n't\b|'re\b|'ve\b|'ll\b|'d\b)"
)
_SPACE_AFTER = re.compile(r"([(\[$£€])\s+")
_BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]"}


def detokenize(text: str) -> str:
    """Undo the spacing that some sources keep: `( 1990 ) , he said `` yes ''` becomes `(1990), he said "yes"`."""
    for mark, bracket in _BRACKETS.items():
        text = text.replace(mark, bracket)
    text = re.sub(r"``\s*", '"', text)
    text = re.sub(r"(?<!\s)\s*''", '"', text)
    text = _SPACE_BEFORE.sub(r"\1", _SPACE_AFTER.sub(r"\1", text))
    text = re.sub(r"(?<=\w) - (?=\w)", "-", text).replace(" -- ", "\u2013")
    return " ".join(text.split())


@functools.cache
def _splitter() -> Any:
    import spacy

    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    return nlp


def sentences(text: str) -> list[str]:
    """Return the sentences of `text`, in order, without surrounding white space."""
    stripped = [sentence.text.strip() for sentence in _splitter()(text).sents]
    return list(filter(None, stripped))


def without(text: str, answers: tuple[str, ...]) -> str:
    """Return `text` without the sentences that name an answer (upper and lower case do not matter)."""
    needles = [answer.casefold() for answer in answers]

    def names_no_answer(sentence: str) -> bool:
        return not any(needle in sentence.casefold() for needle in needles)

    return " ".join(filter(names_no_answer, sentences(text)))


def window(text: str, words: int, rng: random.Random, keep: str = "") -> str:
    """Return at most about `words` words of whole sentences, often the first ones, that still contain `keep`.

    A passage and its negative go through the same cut, so where a window begins says nothing about its label. A
    single sentence longer than `words` is cut between words, around `keep`.
    """
    if len(text.split()) <= words:
        return text
    parts = sentences(text)
    fits = [
        cut
        for start in range(len(parts))
        if keep in (cut := _fill(parts[start:], words))
    ]
    # Windows from the last sentences on are mere tails; prefer ones that use the room.
    full = [cut for cut in fits if 2 * len(cut.split()) >= words]
    if full:
        return full[0] if rng.random() < 0.6 else rng.choice(full)
    if fits:
        return fits[0]
    return _around(text, words, keep)


def _fill(parts: list[str], words: int) -> str:
    kept: list[str] = []
    left = words
    for part in parts:
        left -= len(part.split())
        if left < 0:
            break
        kept.append(part)
    return " ".join(kept)


def _around(text: str, words: int, keep: str) -> str:
    at = text.find(keep)
    before = len(text[:at].split()) if at > 0 else 0
    tokens = text.split()
    start = max(0, min(before - words // 4, len(tokens) - words))
    return " ".join(tokens[start : start + words])


@dataclass(frozen=True, slots=True)
class Draft:
    """A training row without its id."""

    source: str  # `data set/kind`, what the manifest counts
    instruction: str  # what the user asks
    target: tuple[TargetPart, ...]  # what the model learns to write
    weight: float = 1.0  # factor on the row's loss
    copies: int = 1  # how often the row is written, for kinds that are rare

    def row(self, number: int) -> TrainingRow:
        """Return the row with its id."""
        return TrainingRow(
            f"demo-{number:05d}",
            self.source,
            self.instruction,
            self.target,
            self.weight,
        )


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long passages are after the cut, in words, and how many keep their title."""

    usual: tuple[int, int] = (75, 110)  # most are cut to a random number between these
    long: int = 160  # the others are cut to this
    long_share: float = 0.08  # how many those are
    short: tuple[int, int] = (10, 30)  # a few are cut to a sentence or two
    short_share: float = 0.0  # how many those are, of all
    untitled_share: float = 0.0  # how many lose their title


@dataclass(frozen=True, slots=True)
class Cutter:
    """Cuts every passage, whatever its label, so that length, place and title say nothing about the label."""

    lengths: Lengths
    rng: random.Random

    def __call__(self, passage: Passage, keep: str = "") -> Passage:
        """Return the passage cut to whole sentences around `keep`."""
        lengths, rng = self.lengths, self.rng
        words = (
            lengths.long
            if rng.random() < lengths.long_share
            else rng.randint(*lengths.usual)
        )
        # A share of 0 draws no number, so that the rows of a mixture without it stay the same.
        if lengths.short_share and rng.random() < lengths.short_share:
            words = rng.randint(*lengths.short)
        untitled = lengths.untitled_share and rng.random() < lengths.untitled_share
        title = "" if untitled else passage.title
        return replace(
            passage,
            title=title,
            text=window(passage.text, words, rng, keep),
            score=None,
        )


def sample(items: Iterable[T], count: int, rng: random.Random) -> list[T]:
    """Return at most `count` items, in random order."""
    items = list(items)
    return rng.sample(items, min(count, len(items)))


FULLY = "Fully supported"
ABSTENTION = "I don't know."
"""What a target says where the passage gives no answer."""


def grounded(
    passage: Passage, answer: str, *, support: str = FULLY, utility: int = 5
) -> tuple[TargetPart, ...]:
    """Return one segment from one relevant passage."""
    return (
        *segment(passage, answer, support=support),
        TargetToken(f"[Utility:{utility}]"),
    )


def segment(
    passage: Passage, sentence: str, *, support: str = FULLY
) -> tuple[TargetPart, ...]:
    """Return `[Retrieval]` passage `[Relevant]` sentence `[support]`: the unit that multi-segment targets repeat."""
    return (
        TargetToken("[Retrieval]"),
        TargetEvidence(passage),
        TargetToken("[Relevant]"),
        TargetText(sentence),
        TargetToken(f"[{support}]"),
    )


def continued(sentence: str) -> tuple[TargetPart, ...]:
    """Return a further sentence from the evidence of the one before."""
    return (
        TargetToken("[Continue to Use Evidence]"),
        TargetText(sentence),
        TargetToken(f"[{FULLY}]"),
    )


def abstaining(passage: Passage) -> tuple[TargetPart, ...]:
    """Return an irrelevant passage: no answer and, as in the published data, no IsSup token."""
    return (
        TargetToken("[Retrieval]"),
        TargetEvidence(passage),
        TargetToken("[Irrelevant]"),
        TargetText(ABSTENTION),
        TargetToken("[Utility:1]"),
    )


def unaided(output: str, *, utility: int = 5) -> tuple[TargetPart, ...]:
    """Return an answer without retrieval."""
    return (
        TargetToken("[No Retrieval]"),
        TargetText(output),
        TargetToken(f"[Utility:{utility}]"),
    )


def long_form(
    segments: Sequence[tuple[TargetPart, ...]], *, utility: int = 5
) -> tuple[TargetPart, ...]:
    """Return segments in order, one utility at the end."""
    return (
        *(part for parts in segments for part in parts),
        TargetToken(f"[Utility:{utility}]"),
    )


def search(
    corpus: Mapping[str, Passage], queries: Sequence[str], k: int
) -> list[list[Passage]]:
    """Return the `k` best passages of each query by BM25 (k1 1.2, b 0.75, title and text)."""
    if not queries or not corpus:
        return [[] for _ in queries]
    return PassageSearch(list(corpus.values()))(queries, k)
