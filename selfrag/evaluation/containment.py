"""Does an answer contain a gold answer? Normalisation of SQuAD and DPR. Pure text, no model."""

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
