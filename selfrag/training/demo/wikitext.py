"""Cutting and cleaning encyclopaedic text: sentences, windows of whole sentences, source tokenisation undone. Pure."""

from __future__ import annotations

import functools
import random
import re
from typing import Any

_SPACE_BEFORE = re.compile(r"(?<!\s)\s+([,.;:!?%)\]\u2019]|'s\b|n't\b|'re\b|'ve\b|'ll\b|'d\b)")
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
    """Sentences of `text`, in order, without surrounding white space."""
    found = (sentence.text.strip() for sentence in _splitter()(text).sents)
    return [sentence for sentence in found if sentence]


def without(text: str, answers: tuple[str, ...]) -> str:
    """`text` without the sentences that name an answer (upper and lower case do not matter)."""
    needles = [answer.casefold() for answer in answers]
    return " ".join(s for s in sentences(text) if not any(needle in s.casefold() for needle in needles))


def window(text: str, words: int, rng: random.Random, keep: str = "") -> str:
    """At most about `words` words of whole sentences, often the first ones, that still contain `keep`.

    A passage and its negative go through the same cut, so where a window begins says nothing about its label. A
    single sentence longer than `words` is cut between words, around `keep`.
    """
    if len(text.split()) <= words:
        return text
    parts = sentences(text)
    fits = [cut for start in range(len(parts)) if keep in (cut := _fill(parts[start:], words))]
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
