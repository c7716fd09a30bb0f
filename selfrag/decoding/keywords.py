"""The fields of `Decoding` as keywords of a call, for editors and type checkers. A test compares both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypedDict

from selfrag.decoding.policy import (
    Decoding,
    LikelihoodKind,
    SegmentEnd,
    WithoutEvidence,
)
from selfrag.decoding.terms import Guardrail, ScoreTerm
from selfrag.reflection.weights import Weights


class DecodingFields(TypedDict, total=False):
    """Settings of one call: `decoding`, or the defaults of the `SelfRAG`, with these fields changed."""

    decoding: Decoding
    mode: Literal["adaptive", "always", "never"]
    threshold: float | None
    retrieve_test: Literal["yes_no", "all", "log_ratio", "written"]
    keep_evidence: Literal["most_probable", "below_threshold"]
    retrieve_once: bool
    no_retrieval_branch: bool
    without_evidence: WithoutEvidence
    passages: int
    shortlist: int | None
    beam: int
    max_segments: int
    segment_end: SegmentEnd
    segment_tokens: int
    after_cut: Literal["end", "go_on"]
    answer_tokens: int
    passage_tokens: int
    weights: Weights
    calibrated: bool
    likelihood: LikelihoodKind
    undefined: Literal["skip", "force", "zero"]
    accumulate: Literal["mean", "sum", "product"]
    aggregate: Literal["product", "sum", "vote"]
    require: Mapping[str, str | Iterable[str]]
    forbid: Mapping[str, str | Iterable[str]]
    judges: Sequence[ScoreTerm | str]
    survivors: tuple[int, int, int]
    guardrails: Sequence[Guardrail | str]
    abstention: str
    history: Literal["text+passages", "text", "written", "leaked"]
    pool: Literal["finished", "deepest"]
