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
from selfrag.common.jsonl import JsonObject
from selfrag.interface import RETRIEVE, Judgment, replace_surrogates
from selfrag.training.rows import (
    TargetEvidence,
    TargetPart,
    TargetText,
    TargetToken,
    TrainingRow,
    parse_row,
)

_TOKEN = {label.name: label.token for label in RETRIEVE}


@dataclass(frozen=True, slots=True)
class Variant:
    """One row to be written: what it says, what its id ends in, and why it is there."""

    augmented: Augmented
    suffix: str
    why: str

    @property
    def id(self) -> str:
        """Return the id of the row."""
        return f"{self.augmented.pair.id}{self.suffix}"


def outcome(result: Augmented | Dropped, options: AugmentOptions) -> dict[str, Any]:
    """Return what a run keeps of a pair: its `rows` with their `provenance`, or why it is `dropped`."""
    if isinstance(result, Augmented):
        written = variants(result, options.balance, options.seed)
        rows = [row(variant).as_dict() for variant in written]
        for record in rows:
            parse_row(record)  # what is written here is what training reads
        if rows:
            return {
                "rows": rows,
                "provenance": [provenance(variant) for variant in written],
            }
        result = Dropped(
            result.pair.id,
            "sampled out",
            f"no retrieval, kept {options.balance.keep_unretrieved:g}",
        )
    key = replace_surrogates(result.id)  # it may be what is wrong with the pair
    return {"dropped": {"id": key, "reason": result.reason, "detail": result.detail}}


def variants(augmented: Augmented, balance: Balance, seed: int) -> list[Variant]:
    """Return the rows a pair gives: none if it is sampled out, two if an irrelevant passage is added.

    Drawn from the seed and the pair's id alone, so order, shards and machines do not matter.
    """
    rng = random.Random(f"{seed}/balance/{augmented.pair.id}")  # noqa: S311 - sampling, no secret
    keep, add = rng.random(), rng.random()
    if all(segment.chosen is None for segment in augmented.segments):
        if keep >= balance.keep_unretrieved:
            return []
        return [
            Variant(augmented, "", f"no retrieval, kept {balance.keep_unretrieved:g}")
        ]
    unchanged = Variant(augmented, "", "retrieves")
    if augmented.pair.kind not in balance.kinds or add >= balance.irrelevant:
        return [unchanged]
    swapped = _with_irrelevant(augmented, rng)
    if swapped is None:
        return [unchanged]
    if balance.mode == "swap":
        return [
            Variant(
                swapped, "", f"irrelevant passage swapped in, {balance.irrelevant:g}"
            )
        ]
    return [
        unchanged,
        Variant(
            swapped, "#irrelevant", f"irrelevant passage added, {balance.irrelevant:g}"
        ),
    ]


def _with_irrelevant(augmented: Augmented, rng: random.Random) -> Augmented | None:
    """Put an irrelevant candidate in the place of the passage of one retrieved segment, if any can have one.

    A segment whose passage a later one continues with keeps it, also if a sentence without retrieval is between them.
    """
    segments = augmented.segments
    # number of a segment -> places of its irrelevant candidates
    swaps: dict[int, list[int]] = {}
    for number, segment in enumerate(segments):
        until_next = takewhile(
            lambda later: later.chosen is None, segments[number + 1 :]
        )
        if segment.candidate is None or segment.candidate.irrelevant:
            continue
        irrelevant = [
            place
            for place, candidate in enumerate(segment.candidates)
            if candidate.irrelevant
        ]
        if irrelevant and CONTINUE not in {later.token for later in until_next}:
            swaps[number] = irrelevant
    if not swaps:
        return None
    number = rng.choice(list(swaps))
    swapped = replace(
        segments[number],
        chosen=rng.choice(swaps[number]),
        rule="irrelevant, for balance",
    )
    return replace(
        augmented, segments=(*segments[:number], swapped, *segments[number + 1 :])
    )


def row(variant: Variant) -> TrainingRow:
    """Return the training row of a variant."""
    pair = variant.augmented.pair
    source = f"{pair.dataset or 'unnamed'}/{pair.kind or 'unnamed'}"
    return TrainingRow(variant.id, source, pair.instruction, target(variant.augmented))


def target(augmented: Augmented) -> tuple[TargetPart, ...]:
    """Return the output with reflection tokens and passages; its texts joined are the output."""
    output = augmented.pair.output
    parts: list[TargetPart] = []
    for segment in augmented.segments:
        parts += _parts(segment, output[segment.start : segment.end])
    return (*parts, _token(augmented.use))


def _parts(segment: AugmentedSegment, text: str) -> tuple[TargetPart, ...]:
    first = TargetToken(_TOKEN[segment.token])
    candidate = segment.candidate
    if segment.token == NO_RETRIEVAL:
        return (first, TargetText(text))
    if candidate is None:
        return (first, TargetText(text), _token(segment.support))
    shown = (
        first,
        TargetEvidence(candidate.passage.with_score(None)),
        _token(candidate.isrel),
        TargetText(text),
    )
    if candidate.irrelevant:
        return shown
    return (*shown, _token(candidate.issup))


def _token(judgment: Judgment | None) -> TargetToken:
    if judgment is None:
        raise ValueError("a token nobody decided")
    return TargetToken(
        judgment.labels.labels[judgment.labels.index(judgment.label)].token
    )


def provenance(variant: Variant) -> JsonObject:
    """Return why the row is what it is, as plain values."""
    augmented = variant.augmented
    pair = augmented.pair
    return {
        "id": variant.id,
        "pair": pair.id,
        "dataset": pair.dataset,
        "kind": pair.kind,
        "why": variant.why,
        "retrieve": {
            **(_judgment(augmented.retrieve) or {}),
            "ratio": _rounded(augmented.ratio),
        },
        "query": augmented.query,
        "found": [
            {"id": passage.id, "score": _rounded(passage.score)}
            for passage in augmented.passages
        ],
        "segments": [_segment(segment) for segment in augmented.segments],
        "isuse": _judgment(augmented.use),
    }


def _segment(segment: AugmentedSegment) -> JsonObject:
    record: JsonObject = {"start": segment.start, "end": segment.end}
    record |= {"token": _TOKEN[segment.token], "why": segment.why}
    if segment.retrieve is not None:
        record |= {
            "retrieve": _judgment(segment.retrieve),
            "evidence": segment.evidence,
        }
    if segment.token == RETRIEVAL:
        record |= {
            "query": segment.query,
            "chosen": segment.candidates[segment.chosen or 0].passage.id,
            "rule": segment.rule,
            "candidates": [
                _candidate(rank, candidate)
                for rank, candidate in enumerate(segment.candidates, 1)
            ],
        }
    elif segment.support is not None:
        record |= {"used": segment.used, "issup": _judgment(segment.support)}
    return record


def _candidate(rank: int, candidate: PassageCandidate) -> JsonObject:
    return {
        "rank": rank,
        "id": candidate.passage.id,
        "title": candidate.passage.title,
        "score": _rounded(candidate.passage.score),
        "gold": candidate.gold,
        "isrel": _judgment(candidate.isrel),
        "issup": _judgment(candidate.issup),
    }


def _judgment(judgment: Judgment | None) -> JsonObject | None:
    if judgment is None:
        return None
    shares = zip(judgment.labels.names, judgment.distribution, strict=True)
    return {
        "label": judgment.label,
        "p": {name: _rounded(share) for name, share in shares},
        "coverage": _rounded(judgment.coverage),
        "source": str(judgment.source),
    }


def _rounded(value: float | None) -> float | None:
    if value is None:
        return None
    return round(value, 6)
