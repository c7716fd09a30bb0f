"""The target layouts of the demo rows: which reflection token stands where. Knows no data set."""

from __future__ import annotations

from collections.abc import Sequence

from retrieval.passage import Passage
from selfrag.training.rows import Evidence, Part, Text, Token

FULLY = "Fully supported"
ABSTENTION = "I don't know."
"""What a target says where the passage gives no answer."""


def grounded(passage: Passage, answer: str, *, support: str = FULLY, utility: int = 5) -> tuple[Part, ...]:
    """One segment from one relevant passage."""
    return (*segment(passage, answer, support=support), Token(f"[Utility:{utility}]"))


def segment(passage: Passage, sentence: str, *, support: str = FULLY) -> tuple[Part, ...]:
    """`[Retrieval]` passage `[Relevant]` sentence `[support]`: the unit that multi-segment targets repeat."""
    return (Token("[Retrieval]"), Evidence(passage), Token("[Relevant]"), Text(sentence), Token(f"[{support}]"))


def continued(sentence: str, *, support: str = FULLY) -> tuple[Part, ...]:
    """A further sentence from the evidence of the one before."""
    return (Token("[Continue to Use Evidence]"), Text(sentence), Token(f"[{support}]"))


def abstaining(passage: Passage) -> tuple[Part, ...]:
    """An irrelevant passage: no answer and, as in the published data, no IsSup token."""
    return (
        Token("[Retrieval]"),
        Evidence(passage),
        Token("[Irrelevant]"),
        Text(ABSTENTION),
        Token("[Utility:1]"),
    )


def unaided(output: str, *, utility: int = 5) -> tuple[Part, ...]:
    """An answer without retrieval."""
    return (Token("[No Retrieval]"), Text(output), Token(f"[Utility:{utility}]"))


def long_form(segments: Sequence[tuple[Part, ...]], *, utility: int = 5) -> tuple[Part, ...]:
    """Segments in order, one utility at the end."""
    return (*(part for parts in segments for part in parts), Token(f"[Utility:{utility}]"))
