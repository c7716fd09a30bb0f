"""Which passage a sentence is shown with (appendix A.3): the paper's rules, ties by retrieval rank. Pure.

A critique that was never made is no critique: a candidate without it can neither win nor be drawn.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

from critic.augment.augmented import Candidate, writable

_FULLY, _PARTIALLY = "Fully supported", "Partially supported"


def ranked(gold: Sequence[Candidate], retrieved: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Candidates best first: gold passages, then the retrieved ones by falling score, equal ones in their order.

    A gold passage that was also retrieved counts once, with the id and the score of the retrieved one. Left out are
    blank passages, ones without an id, ones that are not Unicode, and repeated ids and texts.
    """
    scores = [candidate.passage.score for candidate in retrieved]
    ordered = list(retrieved)
    if all(score is not None for score in scores):
        ordered.sort(key=lambda candidate: -(candidate.passage.score or 0.0))
    found = {_key(candidate): candidate for candidate in reversed(ordered)}
    kept: dict[str, Candidate] = {}
    ids: set[str] = set()
    for candidate in (*gold, *ordered):
        key = _key(candidate)
        best = Candidate(found[key].passage, gold=True) if candidate.gold and key in found else candidate
        passage = best.passage
        usable = key and passage.id.strip() and writable(passage.id, passage.title, passage.text)
        if usable and key not in kept and passage.id not in ids:
            kept[key] = best
            ids.add(passage.id)
    return tuple(kept.values())


def choose(
    candidates: Sequence[Candidate],
    choice: Literal["paper", "graded"],
    unsupported: Literal["random", "best", "drop"],
    rng: random.Random,
) -> tuple[int | None, str]:
    """Position of the chosen candidate, and the rule that chose it; None if there is none.

    Args:
        candidates: best first.
        choice: see `Augmenting`.
        unsupported: see `Augmenting`.
        rng: for the draw among unsupported ones.
    """
    groups = ((_FULLY,), (_PARTIALLY,)) if choice == "graded" else ((_FULLY, _PARTIALLY),)
    for labels in groups:
        able = [n for n, c in enumerate(candidates) if c.relevant and c.issup is not None and c.issup.label in labels]
        if able:
            return able[0], f"relevant and {' or '.join(labels).lower()}, best of {len(able)}"
    able = [number for number, candidate in enumerate(candidates) if candidate.judged]
    if not able or unsupported == "drop":
        return None, "no passage is relevant and supports it" if able else "no passage could be judged"
    if unsupported == "best":
        return able[0], f"nothing relevant supports it, best of {len(able)}"
    return rng.choice(able), f"nothing relevant supports it, drawn from {len(able)}"


def _key(candidate: Candidate) -> str:
    return " ".join(candidate.passage.text.split())
