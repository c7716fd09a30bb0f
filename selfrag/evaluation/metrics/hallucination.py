"""Response-level hallucination detection by the paper's rule: flagged if one sentence is hardly faithful. Pure.

Source: "A Library of LLM Intrinsics for RAG" (arXiv 2504.11704), section 4.2 and table 8.
"""

from __future__ import annotations

from collections.abc import Sequence

from selfrag.evaluation.metrics.classes import Classification, classification

BELOW = 0.1
"""A response with a sentence of less faithfulness than this is flagged."""

HALLUCINATED, FAITHFUL = "hallucinated", "faithful"


def flagged(faithfulness: Sequence[float | None], *, below: float = BELOW) -> bool | None:
    """Whether a response is flagged.

    Args:
        faithfulness: of each sentence, 0 to 1; None where it is not defined (too short, or never produced).
        below: the threshold, exclusive.

    Returns:
        None if no sentence has a value: nothing can be said of the response.
    """
    known = [value for value in faithfulness if value is not None]
    return min(known) < below if known else None


def detection(truth: Sequence[bool], found: Sequence[bool | None], *, seed: int = 0) -> Classification:
    """Figures of flagged responses; the table of the paper shows those of the class `HALLUCINATED`.

    Args:
        truth: whether each response is hallucinated.
        found: what `flagged` said; None counts as not found.
        seed: of the intervals.
    """
    names = {True: HALLUCINATED, False: FAITHFUL}
    return classification(
        [names[one] for one in truth],
        [None if one is None else names[one] for one in found],
        (HALLUCINATED, FAITHFUL),
        seed=seed,
    )
