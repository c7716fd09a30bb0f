"""What stands beside citation precision when the weights are swept: length, and how much an answer repeats. Pure text.

The paper shows MAUVE, which needs a language model of its own and says nothing about one answer. These figures need
none and have a value for each item: longer answers are what the paper explains its MAUVE with, and repetition is what
spoils the writing of small models.
"""

from __future__ import annotations

from itertools import pairwise

from selfrag.evaluation.items import Item
from selfrag.evaluation.metrics.output import Output
from selfrag.evaluation.metrics.registry import METRICS, Metric, Part


def repeated_bigrams(text: str) -> tuple[int, int]:
    """Of the pairs of neighbouring words those that occurred before in the text, and all pairs; case does not matter.

    "to be or not to be" has 1 of 5.
    """
    found = text.lower().split()
    pairs = list(pairwise(found))
    return len(pairs) - len(set(pairs)), len(pairs)


def _repeated(item: Item, output: Output) -> Part | None:
    repeated, pairs = repeated_bigrams(output.text)
    return float(repeated), float(pairs)


REPEATED = Metric("repeated_bigrams", _repeated, of_failure=None)
FLUENCY = (METRICS["words"], REPEATED)
