"""Retrieval-augmented generation in which one model retrieves on demand, cites, and criticises its own writing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, overload

try:
    from retrieval import DISTRIBUTION as _DISTRIBUTION  # noqa: F401 - only the `retrieval` of this distribution has it
except ImportError as error:
    if error.name != "retrieval" or isinstance(error, ModuleNotFoundError):
        raise
    raise ImportError(
        f"{error}. The package `retrieval` belongs to another distribution. It and selfrag cannot share an environment:"
        " uninstall it and reinstall selfrag, or use a new environment."
    ) from None
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


@overload
def generate(question: str, **options: Any) -> Answer: ...


@overload
def generate(question: Sequence[str], **options: Any) -> list[Answer]: ...


def generate(question: str | Sequence[str], **options: Any) -> Answer | list[Answer]:
    """Answer with the demo model, loaded at the first call and kept.

    Args:
        question: what to answer; several share the engine's batches.
        options: fields of `Decoding`, and `evidence`.

    Returns:
        One answer, or one for each question of a list.
    """
    answers: Answer | list[Answer] = _default().generate(question, **options)
    return answers
