"""Errors of this package that a person can act on. `UserError` is the common base: one line, the value and the fix."""

from __future__ import annotations

from retrieval.errors import MissingExtraError, UserError, require

__all__ = [
    "ContextLengthError",
    "DecodingError",
    "EngineError",
    "MissingExtraError",
    "SearchError",
    "UserError",
    "VocabularyError",
    "require",
]


class VocabularyError(UserError):
    """A tokenizer does not hold every reflection token as one distinct id."""


class DecodingError(UserError):
    """One question could not be answered; other questions of the same call are not affected."""


class ContextLengthError(DecodingError):
    """A conversation, or the evidence with it, is longer than the context of the model."""


class SearchError(DecodingError):
    """The retriever failed, so that one question could not be answered."""


class EngineError(UserError):
    """The engine refused a request, or stopped working."""


TOO_LONG = "does not fit a context of"
"""Stands in the reason of every request that is longer than the context."""


def generation_error(message: str) -> DecodingError:
    """Return the error of a generation that failed, by its reason."""
    too_long = TOO_LONG in message or "maximum context length" in message  # the latter in the words of OpenAI
    return ContextLengthError(message) if too_long else DecodingError(message)
