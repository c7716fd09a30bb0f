"""Reliance on memory: how often right answers are not in the passages (appendix C.1 of the paper). Pure text.

An item counts if its answer is right, that is if it contains a gold answer; it is from memory if none of the gold
answers it contains stands in a passage. The paper looks for substrings, this file for whole normalised words. Both
read all passages of the item, also those that an answer without retrieval never saw.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from retrieval.passage import Passage
from selfrag.evaluation.items import Item
from selfrag.evaluation.metrics.output import Output
from selfrag.evaluation.metrics.registry import Metric, Part
from selfrag.evaluation.normalisation import contains_any

PUBLISHED: Mapping[str, float] = MappingProxyType(
    {"Self-RAG 7B": 0.02, "Alpaca 7B, 13B": 0.15, "Llama2-chat 13B": 0.18, "Alpaca 30B": 0.20}
)
"""Share of right answers that are not in the passages, TriviaQA and PopQA (appendix C.1)."""


def from_memory(item: Item, output: Output) -> Part | None:
    """Of the right answers, those that stand in no passage of the item; None without short answers or passages."""
    return _outside(item, output, item.passages)


def unseen(item: Item, output: Output) -> Part | None:
    """Of the right answers, those that stand in no passage the model read; without evidence that is every one."""
    return _outside(item, output, tuple(passage for passage in item.passages if passage.id in output.read))


def uncited(item: Item, output: Output) -> Part | None:
    """Of the answers from memory, those that cite nothing: the model said that its passages are irrelevant."""
    part = from_memory(item, output)
    return None if part is None else (part[0] * (not output.cited), part[0])


def _outside(item: Item, output: Output, passages: tuple[Passage, ...]) -> Part | None:
    if not item.answers or not item.passages:
        return None
    given = [answer for answer in item.answers if contains_any(output.text, [answer])]
    held = any(contains_any(f"{passage.title} {passage.text}", given) for passage in passages)
    return float(bool(given) and not held), float(bool(given))


FROM_MEMORY = Metric("from_memory", from_memory, of_failure=None)
UNSEEN = Metric("unseen", unseen, of_failure=None)
UNCITED = Metric("from_memory_uncited", uncited, of_failure=None)
MEMORY = (FROM_MEMORY, UNSEEN, UNCITED)
