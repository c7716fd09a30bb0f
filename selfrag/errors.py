"""Errors of this package that a person can act on. `UserError` is the common base: one line, the value and the fix."""

from __future__ import annotations

from retrieval.errors import MissingExtraError, UserError, require

__all__ = [
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


class SearchError(DecodingError):
    """The retriever failed, so that one question could not be answered."""


class EngineError(UserError):
    """The engine refused a request, or stopped working."""
