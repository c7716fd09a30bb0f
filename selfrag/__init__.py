"""Retrieval-augmented generation in which one model retrieves on demand, cites, and criticises its own writing."""

from __future__ import annotations

from functools import cache
from typing import Any

from retrieval.errors import UserError
from retrieval.passage import Passage
from selfrag.api import SelfRAG
from selfrag.decoding.answer import Answer, Segment
from selfrag.decoding.policy import Decoding
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.weights import Weights

__all__ = ["Answer", "Decoding", "Judgment", "Passage", "Segment", "SelfRAG", "UserError", "Weights", "generate"]


@cache
def _default() -> SelfRAG:
    return SelfRAG.from_pretrained()


def generate(question: str, **options: Any) -> Answer:
    """Answer a question with the demo model, loaded at the first call and kept.

    Args:
        question: what to answer.
        options: fields of `Decoding`, and `evidence`.
    """
    answer: Answer = _default().generate(question, **options)
    return answer
