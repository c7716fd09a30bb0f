"""Records of D_gen: the training row, and the provenance that says why each of its tokens and passages is there.

Knows the two file formats; docs/dgen.md describes them. Probabilities are rounded to six digits here and nowhere else.
"""

from __future__ import annotations

from typing import Any

from critic.augment.augmented import NO_RETRIEVAL, RETRIEVAL, Augmented, Candidate, Segment
from critic.augment.balance import Variant
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import RETRIEVE
from selfrag.training.rows import Evidence, Part, Row, Text, Token

_DIGITS = 6
_TOKEN = {label.name: label.token for label in RETRIEVE}


def row(variant: Variant) -> Row:
    """The training row of a variant."""
    augmented = variant.augmented
    pair = augmented.pair
    source = f"{pair.dataset or 'unnamed'}/{pair.kind or 'unnamed'}"
    return Row(f"{pair.id}{variant.suffix}", source, pair.instruction, target(augmented))


def target(augmented: Augmented) -> tuple[Part, ...]:
    """The output with its reflection tokens and passages; its texts joined are the output, character by character."""
    output = augmented.pair.output
    parts = [part for segment in augmented.segments for part in _segment(segment, output[segment.start : segment.end])]
    return (*parts, _token(augmented.use))


def _segment(segment: Segment, text: str) -> tuple[Part, ...]:
    first = Token(_TOKEN[segment.token])
    candidate = segment.candidate
    if segment.token == NO_RETRIEVAL:
        return (first, Text(text))
    if candidate is None:
        return (first, Text(text), _token(segment.support))
    shown = (first, Evidence(candidate.passage.with_score(None)), _token(candidate.isrel), Text(text))
    return shown if candidate.irrelevant else (*shown, _token(candidate.issup))


def _token(judgment: Judgment | None) -> Token:
    if judgment is None:
        raise ValueError("a token nobody decided")
    return Token(judgment.labels.labels[judgment.labels.index(judgment.label)].token)


def provenance(variant: Variant) -> dict[str, Any]:
    """Why the row is what it is, as plain values."""
    augmented = variant.augmented
    pair = augmented.pair
    return {
        "id": f"{pair.id}{variant.suffix}",
        "pair": pair.id,
        "dataset": pair.dataset,
        "kind": pair.kind,
        "why": variant.why,
        "retrieve": {**_judgment(augmented.retrieve), "ratio": round(augmented.ratio, _DIGITS)},
        "query": augmented.query,
        "found": [{"id": passage.id, "score": _rounded(passage.score)} for passage in augmented.found],
        "segments": [_segment_dict(segment) for segment in augmented.segments],
        "isuse": _judgment(augmented.use),
    }


def _segment_dict(segment: Segment) -> dict[str, Any]:
    record: dict[str, Any] = {
        "start": segment.start,
        "end": segment.end,
        "token": _TOKEN[segment.token],
        "why": segment.why,
    }
    if segment.retrieve is not None:
        record |= {"retrieve": _judgment(segment.retrieve), "evidence": segment.evidence}
    if segment.token == RETRIEVAL:
        record |= {
            "query": segment.query,
            "chosen": segment.candidates[segment.chosen or 0].passage.id,
            "rule": segment.rule,
            "candidates": [_candidate(rank, candidate) for rank, candidate in enumerate(segment.candidates, 1)],
        }
    elif segment.support is not None:
        record |= {"used": segment.used, "issup": _judgment(segment.support)}
    return record


def _candidate(rank: int, candidate: Candidate) -> dict[str, Any]:
    return {
        "rank": rank,
        "id": candidate.passage.id,
        "title": candidate.passage.title,
        "score": _rounded(candidate.passage.score),
        "gold": candidate.gold,
        "isrel": None if candidate.isrel is None else _judgment(candidate.isrel),
        "issup": None if candidate.issup is None else _judgment(candidate.issup),
    }


def _judgment(judgment: Judgment) -> dict[str, Any]:
    shares = zip(judgment.labels.names, judgment.distribution, strict=True)
    return {
        "label": judgment.label,
        "p": {name: _rounded(share) for name, share in shares},
        "coverage": _rounded(judgment.coverage),
        "source": str(judgment.source),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)
