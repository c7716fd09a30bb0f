"""From an augmented pair to what is written: balanced training rows, and the provenance of their tokens and passages.

docs/guides/dgen.md describes both formats. Probabilities are rounded to six digits here; decisions use the exact ones.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from critic.augment.algorithm import (
    CONTINUE,
    NO_RETRIEVAL,
    RETRIEVAL,
    Augmented,
    AugmentedSegment,
    AugmentOptions,
    Balance,
    PassageCandidate,
)
from critic.pairs import Dropped
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import RETRIEVE
from selfrag.training.rows import TargetEvidence, TargetPart, TargetText, TargetToken, TrainingRow, parse_row

_TOKEN = {label.name: label.token for label in RETRIEVE}


@dataclass(frozen=True, slots=True)
class Variant:
    """One row to be written: what it says, what its id ends in, and why it is there."""

    augmented: Augmented
    suffix: str
    why: str

    @property
    def id(self) -> str:
        """Of the row."""
        return f"{self.augmented.pair.id}{self.suffix}"


def outcome(result: Augmented | Dropped, options: AugmentOptions) -> dict[str, Any]:
    """What a shard's file holds for a pair: its `rows` with their `provenance`, or why it is `dropped`."""
    if isinstance(result, Augmented):
        if written := variants(result, options.balance, options.seed):
            rows = [row(variant).as_dict() for variant in written]
            for record in rows:
                parse_row(record)  # what is written here is what training reads
            return {"rows": rows, "provenance": [provenance(variant) for variant in written]}
        result = Dropped(result.pair.id, "sampled out", f"no retrieval, kept {options.balance.keep_unretrieved:g}")
    id_ = result.id.encode("utf-8", "replace").decode()  # it may be what is wrong with the pair
    return {"dropped": {"id": id_, "reason": result.reason, "detail": result.detail}}


def variants(augmented: Augmented, balance: Balance, seed: int) -> list[Variant]:
    """The rows a pair gives: none if it is sampled out, two if an irrelevant passage is added.

    Drawn from the seed and the pair's id alone, so order, shards and machines do not matter.
    """
    rng = random.Random(f"{seed}/balance/{augmented.pair.id}")  # noqa: S311 - sampling, no secret
    keep, add = rng.random(), rng.random()
    if all(segment.chosen is None for segment in augmented.segments):
        kept = keep < balance.keep_unretrieved
        return [Variant(augmented, "", f"no retrieval, kept {balance.keep_unretrieved:g}")] if kept else []
    plain = Variant(augmented, "", "retrieves")
    if augmented.pair.kind not in balance.kinds or add >= balance.irrelevant:
        return [plain]
    swapped = _with_irrelevant(augmented, rng)
    if swapped is None:
        return [plain]
    if balance.mode == "swap":
        return [Variant(swapped, "", f"irrelevant passage swapped in, {balance.irrelevant:g}")]
    return [plain, Variant(swapped, "#irrelevant", f"irrelevant passage added, {balance.irrelevant:g}")]


def _with_irrelevant(augmented: Augmented, rng: random.Random) -> Augmented | None:
    """One retrieved segment with an irrelevant candidate in the place of its passage, if any can have one.

    A segment whose passage a later one continues with keeps it, also if a sentence without retrieval is between them.
    """
    segments = augmented.segments
    others: dict[int, list[int]] = {}
    for number, segment in enumerate(segments):
        until_next = takewhile(lambda later: later.chosen is None, segments[number + 1 :])
        if segment.candidate is not None and not segment.candidate.irrelevant:
            irrelevant = [place for place, candidate in enumerate(segment.candidates) if candidate.irrelevant]
            if irrelevant and not any(later.token == CONTINUE for later in until_next):
                others[number] = irrelevant
    if not others:
        return None
    number = rng.choice(list(others))
    swapped = replace(segments[number], chosen=rng.choice(others[number]), rule="irrelevant, for balance")
    return replace(augmented, segments=(*segments[:number], swapped, *segments[number + 1 :]))


def row(variant: Variant) -> TrainingRow:
    """The training row of a variant."""
    pair = variant.augmented.pair
    source = f"{pair.dataset or 'unnamed'}/{pair.kind or 'unnamed'}"
    return TrainingRow(variant.id, source, pair.instruction, target(variant.augmented))


def target(augmented: Augmented) -> tuple[TargetPart, ...]:
    """The output with its reflection tokens and passages; its texts joined are the output, character by character."""
    output = augmented.pair.output
    parts = [part for segment in augmented.segments for part in _parts(segment, output[segment.start : segment.end])]
    return (*parts, _token(augmented.use))


def _parts(segment: AugmentedSegment, text: str) -> tuple[TargetPart, ...]:
    first = TargetToken(_TOKEN[segment.token])
    candidate = segment.candidate
    if segment.token == NO_RETRIEVAL:
        return (first, TargetText(text))
    if candidate is None:
        return (first, TargetText(text), _token(segment.support))
    shown = (first, TargetEvidence(candidate.passage.with_score(None)), _token(candidate.isrel), TargetText(text))
    return shown if candidate.irrelevant else (*shown, _token(candidate.issup))


def _token(judgment: Judgment | None) -> TargetToken:
    if judgment is None:
        raise ValueError("a token nobody decided")
    return TargetToken(judgment.labels.labels[judgment.labels.index(judgment.label)].token)


def provenance(variant: Variant) -> dict[str, Any]:
    """Why the row is what it is, as plain values."""
    augmented = variant.augmented
    pair = augmented.pair
    return {
        "id": variant.id,
        "pair": pair.id,
        "dataset": pair.dataset,
        "kind": pair.kind,
        "why": variant.why,
        "retrieve": {**_judgment(augmented.retrieve), "ratio": _rounded(augmented.ratio)},
        "query": augmented.query,
        "found": [{"id": passage.id, "score": _rounded(passage.score)} for passage in augmented.found],
        "segments": [_segment(segment) for segment in augmented.segments],
        "isuse": _judgment(augmented.use),
    }


def _segment(segment: AugmentedSegment) -> dict[str, Any]:
    record: dict[str, Any] = {"start": segment.start, "end": segment.end}
    record |= {"token": _TOKEN[segment.token], "why": segment.why}
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


def _candidate(rank: int, candidate: PassageCandidate) -> dict[str, Any]:
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
    return None if value is None else round(value, 6)
