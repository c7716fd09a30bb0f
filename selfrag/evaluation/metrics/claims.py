"""Claim recall: share of the claims of a complete answer that a text entails (ALCE's measure for ELI5). Pure."""

from __future__ import annotations

from collections.abc import Sequence

from selfrag.evaluation.metrics.alce import Entails
from selfrag.evaluation.metrics.alce_text import evaluated


def claim_recall(texts: Sequence[str], claims: Sequence[Sequence[str]], entails: Entails) -> list[float | None]:
    """Share of its claims that each text entails.

    Args:
        texts: answers; of each the first line is read, without citations in brackets. An empty one entails nothing, and
            is not asked about.
        claims: of each answer, the statements that a complete one makes.
        entails: the judge; every distinct pair is asked once, all in one call.

    Returns:
        A share each; None without claims, or with a missing verdict.

    Raises:
        ValueError: not as many texts as lists of claims.
    """
    premises = [evaluated(text) for text in texts]
    wanted = list(zip(premises, claims, strict=True))
    pairs = list(dict.fromkeys((text, claim) for text, own in wanted for claim in own if text))
    verdicts = dict(zip(pairs, entails(pairs) if pairs else (), strict=True))
    found: list[float | None] = []
    for text, own in wanted:
        known = [verdicts[text, claim] if text else False for claim in own]
        found.append(None if not own or None in known else sum(map(bool, known)) / len(own))
    return found
