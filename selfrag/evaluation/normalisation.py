"""Text normalisation before matching: SQuAD, DPR, abstentions, and ALCE's first line and citation marks.

Sources: `normalize_answer` of SQuAD 1.1; DPR; `eval.py` and `utils.py` of ALCE (arXiv 2305.14627). Beyond ALCE,
`[1, 2]` is read as two citations.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Iterable

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ABSTENTION = re.compile(
    r"\b(?:i|we) (?:do not|dont|did not|didnt|can not|cannot|cant) (?:know|answer|say|tell|find)\b"
    r"|\bi am not sure\b|\bim not sure\b|\bnot enough information\b"
    r"|\b(?:passage|paragraph|text|context) (?:does not|doesnt) (?:say|answer|mention|contain|provide|state)\b"
)


def normalise(text: str) -> str:
    """`squad_normalise` after NFD, so that the same letter written in two ways is the same (DPR)."""
    return squad_normalise(unicodedata.normalize("NFD", text))


def squad_normalise(text: str) -> str:
    """Lower case, without ASCII punctuation and articles, single spaces (`normalize_answer` of SQuAD 1.1)."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def contains_any(text: str, answers: Iterable[str]) -> bool:
    """Whether one of `answers` occurs in `text` as a run of whole words, both normalised.

    An answer that normalises to nothing (`The`, `?`) never counts as contained.
    """
    padded = f" {normalise(text)} "
    return any(f" {wanted} " in padded for wanted in map(normalise, answers) if wanted)


def abstains(answer: str) -> bool:
    """Whether `answer` is empty or says that it does not know."""
    said = normalise(answer.replace("\u2019", "'"))
    return not said or _ABSTENTION.search(said) is not None


_MARK = re.compile(r"(?<!\s)\s*+\[(\d{1,9}(?:\s*[,;]\s*\d{1,9})*)\]")


_STOPS = frozenset(".!?\u3002\uff01\uff1f\uff61\u0964\u061f")


def first_line(text: str) -> str:
    """The first line that is not blank; ALCE reads no further, as few-shot models continue with another question."""
    return text.strip().partition("\n")[0].rstrip()


def evaluated(text: str) -> str:
    """What all of ALCE's figures but those of citations read: the first line, without citations."""
    return without_marks(first_line(text)).strip()


def marks(text: str) -> tuple[int, ...]:
    """Numbers cited in square brackets, in order, repetitions included."""
    return tuple(int(number) for group in _MARK.findall(text) for number in re.split(r"[,;]", group))


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
    """The text without citations and the white space before them."""
    return _MARK.sub("", text)
