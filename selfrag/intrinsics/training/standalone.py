"""Rows of query rewrite whose last question is its own rewrite: what leaving a question alone is learned from. Pure.

Data of rewrites hold follow-ups, few of which stand on their own; an adapter of such rows alone rewrites always. What
people rewrote a question to stands on its own in the same conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from selfrag.intrinsics.query_rewrite import same_question
from selfrag.intrinsics.state import Message
from selfrag.intrinsics.training.rows import Labelled, evenly

ENDING = "/standalone"


def with_standalone(rows: Sequence[Labelled], share: float) -> list[Labelled]:
    """The rows, and after them `share` as many that ask what the rewrite asks, taken evenly over the rows.

    Args:
        rows: of query rewrite; others are passed over.
        share: of the rows that people changed, 0 to 1.
    """
    made = [alone for row in rows if (alone := asked_alone(row)) is not None]
    return [*rows, *evenly(made, round(share * len(made)))]


def asked_alone(row: Labelled) -> Labelled | None:
    """The row with its rewrite as the last question; None where there is no rewrite, or it is the question already."""
    if row.text is None or same_question(row.state.query or "", row.text):
        return None
    messages = (*row.state.messages[:-1], Message("user", row.text))
    source = row.source.rsplit("/", 1)[0] + ENDING
    return replace(row, id=row.id + ENDING, source=source, state=replace(row.state, messages=messages))
