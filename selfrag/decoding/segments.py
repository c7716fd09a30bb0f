"""Reads a segment from generated ids: text ids, critiques, likelihood, boundary and score (Eq. 3-4).

Every request watches every label, so a critique that the model did not emit can still be read where it was due. Only a
segment cut by its budget needs one more request.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from selfrag.reflection.judgment import Judgment, JudgmentSource
from selfrag.reflection.labels import (
    CRITIQUES,
    ISREL,
    ISSUP,
    ISUSE,
    RETRIEVE,
    LabelSet,
    Role,
)
from selfrag.reflection.requests import Finish, Generated
from selfrag.reflection.vocabulary import Vocabulary
from selfrag.reflection.weights import TOKEN_TERMS

WatchedRow: TypeAlias = NDArray[np.float32]
Branch: TypeAlias = Literal["passage", "continue", "none"]
"""What a segment is written from: a new passage, the passage of the segment before, or nothing."""


@dataclass(slots=True)
class SegmentReading:
    """One generated segment, read."""

    ids: tuple[int, ...]  # generated ids without the boundary (a Retrieve token or EOS)
    text_ids: tuple[int, ...]  # `ids` without reflection tokens
    # critique role to judgment, None where undefined
    judgments: dict[Role, Judgment | None]
    # distribution over Retrieve where the next decision is due; None if the answer ends there
    boundary: Judgment | None
    # geometric mean or product of the token probabilities in (0, 1]; 0 if switched off or nothing was generated
    likelihood: float
    ended: bool  # nothing may follow (EOS, budget or context)
    cut: bool = False  # its budget ran out; a later request may say how to go on
    finish: Finish = Finish.EOS  # why the generation ended
    tokens: int = 0  # new tokens that it took from the budget of the answer
    text: str = ""  # without reflection tokens
    # ids that stand before it in later prompts, where that is not what its parent ends with
    before: tuple[int, ...] = ()
    reasoning: str = ""  # what the model thought before it
    remark: str = ""  # why there is no text, or not all of it


def read_critique(
    vocabulary: Vocabulary,
    labels: LabelSet,
    row: WatchedRow,
    site: str,
    evidence: str | None = None,
) -> Judgment:
    """Return the distribution of one group from a watched row whose columns follow `Vocabulary.watch`, calibrated."""
    logprobs = row[vocabulary.columns(labels)].tolist()
    judgment = Judgment.from_logprobs(labels, logprobs, site=site, evidence=evidence)
    scaling = vocabulary.scalings.get(labels.role)
    return judgment if scaling is None else scaling(judgment)


APPLICABLE: Mapping[Branch, tuple[LabelSet, ...]] = {
    "passage": CRITIQUES,
    "continue": (ISSUP, ISUSE),
    "none": (ISUSE,),
}
"""Critiques that can be made: IsRel is due after a new passage, IsSup where there is one, IsUse always."""


def geometric_mean(logprobs: tuple[float, ...]) -> float:
    """Return the geometric mean of the token probabilities, or 0.0 for an empty sequence."""
    return math.exp(math.fsum(logprobs) / len(logprobs)) if logprobs else 0.0


def read(
    generated: Generated,
    vocabulary: Vocabulary,
    *,
    branch: Branch,
    site: str,
    evidence: str | None = None,
    likelihood: Literal["segment", "all", "product", "none"] = "segment",
    forced: Collection[Role] = (),
    cut: int | None = None,
) -> SegmentReading:
    """Read one generated segment, of a request that watched `Vocabulary.watch`.

    Critiques in `forced` are read where they were due although another token was emitted there. With `cut` the
    segment ends before this position; critiques and likelihood are of the whole completion.
    """
    # 1. Find where the segment ends, and the first token of each critique in the completion.
    emitted = generated.token_ids
    roles = vocabulary.roles
    body = emitted[:-1] if generated.finish in (Finish.STOP, Finish.EOS) else emitted
    # of the segment; nothing stands there if its budget ran out
    end = cut if cut is not None else len(body)
    first: dict[Role, int] = {}
    for i in [i for i, token in enumerate(body) if token in roles]:
        first.setdefault(roles[body[i]], i)
    judgments: dict[Role, Judgment | None] = {labels.role: None for labels in CRITIQUES}
    for labels in APPLICABLE[branch]:
        position = first.get(labels.role)
        if labels.role == Role.RELEVANCE and position != 0:
            position = 0 if labels.role in forced and emitted else None
        if position is None and labels.role in forced and end < len(emitted):
            position = _due(labels, emitted[: end + 1], vocabulary)
        if position is not None:
            judgments[labels.role] = read_critique(
                vocabulary, labels, generated.watched[position], site, evidence
            )
    stopped = cut is not None or generated.finish is Finish.STOP
    boundary = None
    if stopped:
        boundary = read_critique(vocabulary, RETRIEVE, generated.watched[end], site)
    return SegmentReading(
        ids=body[:end],
        text_ids=tuple(vocabulary.text_ids(body[:end])),
        judgments=judgments,
        boundary=boundary,
        likelihood=token_likelihood(generated.token_logprobs, len(body), likelihood),
        ended=not stopped,
        cut=not stopped and generated.finish is Finish.BUDGET,
        finish=generated.finish,
        tokens=end + 1 if stopped else len(emitted),
    )


def token_likelihood(logprobs: tuple[float, ...], segment: int, kind: str) -> float:
    """Return the likelihood of a completion whose first `segment` tokens stand before its end."""
    if kind == "none":
        return 0.0
    if kind != "all":
        logprobs = logprobs[:segment]
    if kind == "product" and logprobs:
        return math.exp(math.fsum(logprobs))
    return geometric_mean(logprobs)


def _due(labels: LabelSet, emitted: tuple[int, ...], vocabulary: Vocabulary) -> int:
    """Return where an unemitted critique was due: IsUse at the end, IsSup at the first control token after the text."""
    end = len(emitted) - 1  # where another EOS than the vocabulary's may stand
    if labels.role == Role.UTILITY:
        return end
    isrel = vocabulary.group(ISREL)
    return next(
        (
            i
            for i, token in enumerate(emitted)
            if token in vocabulary.control and token not in isrel
        ),
        end,
    )


Undefined = Literal["skip", "force", "zero"]
LEAST_COVERAGE = 0.01
"""Probability that the model must give a critique group for a token read there to count in the score.

A model that learned one Utility token, at the end of an answer, gives the group about 1e-8 at the end of an inner
segment. What is left after normalising would be noise.
"""
Accumulate = Literal["mean", "sum", "product"]
_LARGEST = sys.float_info.max
ScoreArray = NDArray[np.float64]
ScoreValue = TypeVar("ScoreValue", float, NDArray[np.float64])
NOTHING: Mapping[str, Judgment | None] = MappingProxyType({})


def judgment_score(judgment: Judgment | None, undefined: Undefined) -> float:
    """Return the score of a judgment, or NaN where it is undefined or the model expected no such token there."""
    if judgment is None:
        return math.nan
    noise = (
        judgment.source is JudgmentSource.TOKEN and judgment.coverage < LEAST_COVERAGE
    )
    return math.nan if noise and undefined != "zero" else judgment.score


def group_scores(
    judgments: Mapping[Role, Judgment | None],
    judges: Mapping[str, Judgment | None] = NOTHING,
    terms: Sequence[str] = TOKEN_TERMS,
    undefined: Undefined = "skip",
) -> list[float]:
    """Return the scores of the T terms (isrel, issup, isuse, other judges), NaN where undefined."""
    known = [judgments.get(labels.role) for labels in CRITIQUES]
    known += [judges.get(name) for name in terms[len(CRITIQUES) :]]
    return [judgment_score(judgment, undefined) for judgment in known]


def critique_score(
    scores: Sequence[float], weights: Sequence[ScoreValue], undefined: Undefined
) -> ScoreValue:
    """Return the weighted critique term S of Eq. 4 from T scores (NaN if undefined) and T weights or arrays of them.

    The weights of the defined groups are scaled up to the sum of all weights, so that a missing critique neither
    rewards nor punishes a candidate. With `zero` an undefined group adds 0. Without any defined group the term is 0.
    """
    # No matrix product: its rounding depends on the shapes, and ties would break.
    total = 0 * weights[0]
    present = 0 * weights[0]
    every = 0 * weights[0]
    complete = True
    for score, weight in zip(scores, weights, strict=True):
        every = every + abs(weight)
        if score != score:
            complete = False
        else:
            total = total + weight * score
            present = present + abs(weight)
    if undefined == "zero" or complete:
        return total
    # where nothing is present, the total is 0
    scaled: ScoreValue = total * (every / (present + (present == 0)))
    return scaled


def segment_score(
    likelihood: float,
    judgments: Mapping[Role, Judgment | None],
    weights: Sequence[float],
    undefined: Undefined = "skip",
    *,
    judges: Mapping[str, Judgment | None] = NOTHING,
    terms: Sequence[str] = TOKEN_TERMS,
) -> float:
    """Return the score of one candidate: p(y_t|x,d,y_<t) + sum_G w_G s_G, other judges among the groups."""
    return likelihood + critique_score(
        group_scores(judgments, judges, terms, undefined), weights, undefined
    )


def add_to_path(
    total: ScoreValue, score: ScoreValue, accumulate: Accumulate
) -> ScoreValue:
    """Return the sum, or for `product` the product, of a path and the score of its next segment.

    A product stays finite, so that it can be written as JSON.
    """
    if accumulate != "product":
        return total + score
    if isinstance(total, float):
        return max(-_LARGEST, min(total * score, _LARGEST))
    with np.errstate(over="ignore"):
        return np.clip(total * score, -_LARGEST, _LARGEST)


def path_score(
    segment_scores: Sequence[ScoreValue], accumulate: Accumulate
) -> ScoreValue:
    """Return the score of a hypothesis from those of its segments, at least one; elementwise for arrays."""
    total = segment_scores[0]
    if accumulate == "product":
        for score in segment_scores[1:]:
            total = add_to_path(total, score, accumulate)
        return total
    total = sum(segment_scores[1:], total)
    return total / len(segment_scores) if accumulate == "mean" else total
