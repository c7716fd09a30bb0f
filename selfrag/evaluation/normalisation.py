"""Text normalisation before matching: SQuAD, and ALCE's first line and citation marks.

Sources: `normalize_answer` of SQuAD 1.1; `eval.py` and `utils.py` of ALCE (arXiv 2305.14627). Beyond ALCE,
`[1, 2]` is read as two citations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from retrieval.normalisation import fold_text, split_units, without_punctuation

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def normalise(text: str) -> str:
    """Return the words of a text as SQuAD 1.1 compares them: no case, punctuation or articles, single spaces.

    Beyond SQuAD, a letter, quote, dash or digit that can be written in several ways is the same (`fold_text`), the
    punctuation of all scripts is left out, and each character of a script without spaces is a word.
    """
    return " ".join(_ARTICLES.sub(" ", _without_punctuation(text)).split())


def normalise_pair(text: str, answer: str) -> tuple[str, str]:
    """Return a text and an answer, normalised; with articles, or as they are, where nothing is left of the answer.

    Example:
        >>> normalise_pair("Vitamin A", "A")
        ('vitamin a', 'a')
    """
    for reduce in (normalise, _without_punctuation):
        words = reduce(answer)
        if words:
            return reduce(text), words
    return text.strip(), answer.strip()


def _without_punctuation(text: str) -> str:
    return " ".join(without_punctuation(split_units(fold_text(text))).split())


def contains_any(text: str, answers: Iterable[str]) -> bool:
    """Return whether one of `answers` occurs in `text` as a run of whole words, both normalised.

    An answer of articles only, such as `A` or `The The`, must occur in its own case. One of punctuation never counts.
    """
    normalised = f" {normalise(text)} "
    for answer in answers:
        words = normalise(answer)
        if words:
            if f" {words} " in normalised:
                return True
            continue
        spelled = " ".join(without_punctuation(answer).split())
        if (
            spelled
            and f" {spelled} " in f" {' '.join(without_punctuation(text).split())} "
        ):
            return True
    return False


_MARK = re.compile(r"(?<!\s)\s*+\[(\d{1,9}(?:\s*[,;]\s*\d{1,9})*)\]")


_STOPS = frozenset(".!?\u3002\uff01\uff1f\uff61\u0964\u061f")


def first_line(text: str) -> str:
    """Return the first line that is not blank; ALCE reads no further, as few-shot models go on with a question."""
    return text.strip().partition("\n")[0].rstrip()


def evaluated(text: str) -> str:
    """Return what all of ALCE's figures but those of citations read: the first line, without citations."""
    return without_marks(first_line(text)).strip()


def marks(text: str) -> tuple[int, ...]:
    """Return the numbers cited in square brackets, in order, repetitions included."""
    return tuple(
        int(number)
        for group in _MARK.findall(text)
        for number in re.split(r"[,;]", group)
    )


def lifted(text: str) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Return the text without citations, and where in it each number stood: `(offset, number)`, in order.

    Of two full stops around a citation, as in `So it is. [1].`, one is kept.
    """
    parts: list[str] = []
    offsets: list[tuple[int, int]] = []
    position, length, last = 0, 0, ""
    for mark in _MARK.finditer(text):
        part = text[position : mark.start()]
        if part:
            parts.append(part)
            length, last = length + len(part), part[-1]
        offsets += [(length, number) for number in marks(mark[0])]
        position = mark.end()
        if last in _STOPS and text[position : position + 1] in _STOPS:
            position += 1
    parts.append(text[position:])
    return "".join(parts), tuple(offsets)


def without_marks(text: str) -> str:
    """Return the text without citations and the white space before them."""
    return _MARK.sub("", text)
