"""What an answer took, and how long it is: retrieval rate, tokens, requests, searches, words. Pure."""

from __future__ import annotations

from selfrag.evaluation.items import Item
from selfrag.evaluation.metrics.alce_text import without_marks
from selfrag.evaluation.metrics.metric import Metric, Part
from selfrag.evaluation.metrics.output import Output


def _retrieved(item: Item, output: Output) -> Part:
    """1 where evidence was used: asking in vain retrieves nothing."""
    return float(output.retrieved and bool(output.read)), 1.0


def _counted(name: str) -> Metric:
    def measure(item: Item, output: Output) -> Part:
        return float(output.usage.get(name, 0)), 1.0

    return Metric(name, measure, of_failure=None, unit="count")


def _words(item: Item, output: Output) -> Part:
    return float(len(without_marks(output.text).split())), 1.0


WORDS = Metric("words", _words, of_failure=None, unit="count")
"""Length of an answer without citations in brackets; ALCE's `length` is that of the first line."""
RETRIEVAL_RATE = Metric("retrieval_rate", _retrieved, of_failure=None)
EFFORT = (
    RETRIEVAL_RATE,
    _counted("prompt_tokens"),
    _counted("generated_tokens"),
    _counted("requests"),
    _counted("searches"),
)
