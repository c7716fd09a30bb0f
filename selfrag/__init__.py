"""Retrieval-augmented generation in which one model retrieves on demand, cites, and criticises its own writing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, overload

from selfrag.common.own_packages import own_name, separate_packages

separate_packages()  # before anything imports `retrieval`
if not hasattr(import_module(own_name("retrieval")), "DISTRIBUTION"):
    raise ImportError(
        "The files of the package `retrieval` belong to another distribution. It and selfrag cannot share an"
        " environment: uninstall it and reinstall selfrag, or use a new environment."
    )
if TYPE_CHECKING:
    from retrieval.passage import Passage
    from selfrag.api import SelfRAG
    from selfrag.common.errors import UserError
    from selfrag.decoding.answer import Answer, Segment
    from selfrag.decoding.policy import Decoding
    from selfrag.reflection.judgment import Judgment
    from selfrag.reflection.weights import Weights

_HOMES = {
    "Answer": "selfrag.decoding.answer",
    "Decoding": "selfrag.decoding.policy",
    "Judgment": "selfrag.reflection.judgment",
    "Passage": "retrieval.passage",
    "Segment": "selfrag.decoding.answer",
    "SelfRAG": "selfrag.api",
    "UserError": "selfrag.common.errors",
    "Weights": "selfrag.reflection.weights",
}
"""Where each name is defined. Its module is imported when the name is first used, so that commands start quickly."""

__all__ = [
    "Answer",
    "Decoding",
    "Judgment",
    "Passage",
    "Segment",
    "SelfRAG",
    "UserError",
    "Weights",
    "generate",
]


if not TYPE_CHECKING:  # else every name would be known to type checkers

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            from selfrag.common.provenance import package_version

            return package_version()
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(own_name(_HOMES[name])), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


@cache
def _default() -> SelfRAG:
    from selfrag.api import SelfRAG

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

    Raises:
        UserError: an unknown option, a value that is not allowed, or nothing could be generated.

    Example:
        >>> from selfrag import Passage
        >>> faust = Passage("faust", "Faust is a tragedy by Johann Wolfgang von Goethe.", "Faust")
        >>> generate("Who wrote Faust?", evidence=[faust]).text
        'Johann Wolfgang von Goethe'
    """
    answers: Answer | list[Answer] = _default().generate(question, **options)
    return answers
