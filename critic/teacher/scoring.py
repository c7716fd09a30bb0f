"""Label scoring from the log-probabilities of an answer's first token. Pure.

An endpoint tells the most probable tokens only. A label that is not among them is less probable than those that are, so
the best of those present is the best of all; its probability is unknown, and is never filled in with a number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TOP = 20
"""Most log-probabilities a position that endpoints give."""

_NO_VALUE = -1_000.0  # servers write -9999.0 where they have none


@dataclass(frozen=True, slots=True)
class Scored:
    """The best label.

    Attributes:
        label: label name, or None.
        reason: why there is none.
        distribution: label name -> probability, normalised; None unless every label was among the tokens told.
        coverage: probability mass found on the labels, a lower bound where some were not told.
    """

    label: str | None
    reason: str
    distribution: Mapping[str, float] | None
    coverage: float


def first_token(choice: Mapping[str, Any]) -> list[tuple[str, float]] | None:
    """Tokens and log-probabilities told for the first position; None where the endpoint gave none."""
    match choice.get("logprobs"):
        case {"content": [{"top_logprobs": [*entries]}, *_]}:
            pairs: list[tuple[Any, Any]] = [
                (e.get("token"), e.get("logprob")) for e in entries if isinstance(e, Mapping)
            ]
        case {"top_logprobs": [{**table}, *_]}:
            pairs = list(table.items())
        case _:
            return None
    return [
        (token, float(value))
        for token, value in pairs
        if isinstance(token, str) and type(value) in (int, float) and _NO_VALUE < value <= 1e-3
    ]


def best_letter(scores: list[tuple[str, float]], letters: Mapping[str, str], least: float) -> Scored:
    """The label whose letter is most probable; `A` and ` A` are the same letter.

    Args:
        scores: of the first position.
        letters: letter -> label name.
        least: coverage below which there is no label.
    """
    mass: dict[str, float] = {}
    for token, value in dict(scores).items():
        if (letter := token.strip()) in letters:
            mass[letter] = mass.get(letter, 0.0) + math.exp(value)
    coverage = min(1.0, math.fsum(mass.values()))
    if not mass:
        return Scored(None, f"no label among the {len(scores)} most probable tokens", None, 0.0)
    if coverage < least:
        return Scored(None, f"coverage {coverage:.3f} of the label set is below {least:g}", None, coverage)
    best = max(letters, key=lambda letter: mass.get(letter, -1.0))
    distribution = None
    if len(mass) == len(letters):
        total = math.fsum(mass.values())
        distribution = {label: mass[letter] / total for letter, label in letters.items()}
    return Scored(letters[best], "", distribution, coverage)
