"""Words in common, and BM25 among the sentences that were given. No model."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

from retrieval.passage import Passage

_WORD = re.compile(r"\w+")
_FUNCTION_WORDS = frozenset(
    _WORD.findall(
        "a an and are as at be been but by can could did do does for from had has have he her his how i if in is it its"
        " may me my no not of on or our she should so some than that the their them then there these they this to was"
        " we were what when where which who whom whose why will with would you your"
    )
)
K1, B = 1.2, 0.75


def content_words(text: str) -> list[str]:
    """Words that are no function words, in lower case, in order; all words where there are no others."""
    words = _WORD.findall(text.casefold())
    return [word for word in words if word not in _FUNCTION_WORDS] or words


def overlap(text: str, passage: str) -> float:
    """Share of the content words of `text` that `passage` has, from 0 to 1; 0 without any word."""
    wanted, there = content_words(text), set(_WORD.findall(passage.casefold()))
    return sum(word in there for word in wanted) / len(wanted) if wanted else 0.0


def shown(passage: Passage) -> str:
    """Title and text."""
    return f"{passage.title}\n{passage.text}"


def bm25(text: str, sentences: Sequence[str], passage: str) -> float:
    """Okapi BM25 (k1 1.2, b 0.75) of a passage as a share of the most that any passage could get, from 0 to 1.

    Args:
        text: what is looked for.
        sentences: where words are counted, to tell rare ones from frequent ones; at least one.
        passage: what is scored.
    """
    documents = [content_words(one) for one in sentences]
    mean = sum(map(len, documents)) / len(documents) or 1.0
    found, size = Counter(content_words(passage)), len(content_words(passage))
    score = most = 0.0
    for word in set(content_words(text)):
        df = sum(word in document for document in documents)
        rarity = math.log(1 + (len(documents) - df + 0.5) / (df + 0.5))
        score += rarity * found[word] * (K1 + 1) / (found[word] + K1 * (1 - B + B * size / mean))
        most += rarity * (K1 + 1)
    return score / most if most else 0.0
