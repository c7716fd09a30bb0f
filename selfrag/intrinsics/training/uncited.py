"""Rows of citations whose evidence was cut out of the passages: what `no citation` is learned from. Pure.

Data of citations hold sentences that were cited; an adapter of such rows alone cites always. With its evidence gone, a
sentence rests on nothing that is left, as far as the annotators saw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from retrieval.passage import Passage
from selfrag.intrinsics.training.rows import Labelled, Span, evenly

ENDING = "/uncited"


def with_uncited(rows: Sequence[Labelled], share: float) -> list[Labelled]:
    """The rows, and after them `share` as many whose evidence is gone, taken evenly over the rows.

    Args:
        rows: of citations; others are passed over.
        share: of the cited rows, 0 to 1.
    """
    made = [without for row in rows if (without := without_evidence(row)) is not None]
    return [*rows, *evenly(made, round(share * len(made)))]


def without_evidence(row: Labelled) -> Labelled | None:
    """The row without the sentences it cites; None where it cites nothing, or where nothing else is left."""
    if not row.citations:
        return None
    passages = tuple(
        _cut(passage, [evidence for _, index, evidence in row.citations if index == at])
        for at, passage in enumerate(row.state.passages)
    )
    if not any(passage.text.strip() for passage in passages):
        return None
    source = row.source.rsplit("/", 1)[0] + ENDING
    state = replace(row.state, passages=passages)
    return replace(row, id=row.id + ENDING, source=source, state=state, citations=())


def _cut(passage: Passage, spans: Sequence[Span]) -> Passage:
    text = passage.text
    for begin, end in sorted(set(spans), reverse=True):
        text = text[:begin] + " " * (end - begin) + text[end:]  # as long as before: spans may overlap
    return replace(passage, text=" ".join(text.split())) if spans else passage
