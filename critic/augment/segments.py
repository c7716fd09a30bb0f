"""Cutting an output into segments of sentences without losing a character. Pure; whoever calls finds the sentences."""

from __future__ import annotations

from collections.abc import Iterable

from retrieval.splitting import Span


def segments(text: str, sentences: Iterable[Span], shortest: int = 0) -> list[Span]:
    """Spans that follow each other without a gap and cover `text`.

    White space between two sentences belongs to the second one, what follows the last sentence to the last. So the
    tokens that follow a sentence come right after its last character, and the texts joined are `text`.

    Args:
        text: any text; a blank one has no segment.
        sentences: (start, end) of each sentence in order, white space included or not.
        shortest: a sentence of fewer characters joins the next one, the last one joins the one before.
    """
    ends = [start + len(text[start:end].rstrip()) for start, end in sentences if text[start:end].strip()]
    if not text.strip():
        return []
    spans: list[Span] = []
    begin = 0
    for end in [*(end for end in ends[:-1] if end < len(text)), len(text)]:
        if len(text[begin:end].strip()) >= shortest or end == len(text):
            spans.append((begin, end))
            begin = end
    if len(spans) > 1 and len(text[slice(*spans[-1])].strip()) < max(1, shortest):
        (start, _), (_, end) = spans[-2:]
        spans[-2:] = [(start, end)]
    return spans
