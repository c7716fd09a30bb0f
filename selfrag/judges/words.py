"""Words in common between a text and a passage: the share of content words. No model."""

from __future__ import annotations

from retrieval.normalisation import split_words
from retrieval.passage import Passage

_FUNCTION_WORDS = frozenset(
    split_words(
        "a an and are as at be been but by can could did do does for from had has have he her his how i if in is it its"
        " may me my no not of on or our she should so some than that the their them then there these they this to was"
        " we were what when where which who whom whose why will with would you your"
    )
)


def content_words(text: str) -> list[str]:
    """Return the words that are no function words, in lower case, in order; all words where there are no others."""
    words = split_words(text)
    return [word for word in words if word not in _FUNCTION_WORDS] or words


def overlap(text: str, passage: str) -> float:
    """Return the share of the content words of `text` that `passage` has, from 0 to 1; 0 without any word."""
    words = content_words(text)
    known = set(split_words(passage, singles=True))
    return sum(map(known.__contains__, words)) / len(words) if words else 0.0


def shown(passage: Passage) -> str:
    """Return title and text."""
    return f"{passage.title}\n{passage.text}"
